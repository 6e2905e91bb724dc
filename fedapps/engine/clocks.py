"""Make the clock of a run, and refuse settings and methods that do not fit."""

from fedapps.core import log
from fedapps.core.errors import RunError
from fedapps.core.memory import reserve
from fedapps.engine.checks import AVERAGING, replaced
from fedapps.engine.clock import Clock, VirtualClock
from fedapps.engine.robust import refuse_presum
from fedapps.method.flower import BaseStrategy
from fedapps.method.tools import CHECKPOINT_COPIES

REAL = "round-timeout ends a round of real devices"


def clock(strategy: BaseStrategy) -> Clock:
    """Return the clock of a run; raises `RunError` for settings that do not fit.

    On real devices, it warns of keys that go by virtual time: updates that have come could be lost.
    """
    s = strategy.settings
    values = {"deadline": s.deadline, "over-selection": s.over_selection, "dropout": s.dropout}
    told = [f"{key} = {value:g}" for key, value in values.items() if value]
    told += ['round-mode = "async"'] if s.round_mode == "async" else []
    if not s.devices:
        if told:
            cure = REAL if s.on_devices else "say with `devices` how fast the clients are"
            raise RunError(f"{told[0]}: needs virtual time; {cure}")
        return Clock(strategy)
    if told and s.on_devices:
        log.warning(
            f"{told[0]} goes by the speeds that `devices` assumes, not by real time; {REAL}"
        )
    found = VirtualClock(strategy)
    _check(found)
    return found


def _check(clock: VirtualClock) -> None:
    """Refuse settings and methods that do not fit; raises `RunError`."""
    strategy, s = clock.strategy, clock.strategy.settings
    ends = {"deadline": s.deadline, "over-selection": s.over_selection}
    told = [f"{key} = {value:g}" for key, value in ends.items() if value]
    if clock.is_async and told:
        raise RunError(f'{told[0]}: not with round-mode = "async", which has a buffer; use 0')
    if not (clock.is_async or told):
        return
    key = 'round-mode = "async"' if clock.is_async else told[0]
    what = 'late = "later"' if clock.keeps and not clock.is_async else key
    refuse_presum(s, key)
    if strategy.has_channel:
        raise RunError(f"{key}: the clients of {s.strategy} work together in a round")
    if s.over_selection and replaced(strategy, ["select"]):
        raise RunError(f"{told[-1]}: {s.strategy} selects its clients itself; use 0")
    if s.dp.mode == "central" and clock.ranks:
        raise RunError(f'{what}: not with dp.mode = "central", where all that were drawn count')
    if told and strategy.by_mean:  # by then, the client has already stored what it keeps
        kept = ", ".join(strategy.by_mean)
        raise RunError(
            f"{told[0]}: {s.strategy} keeps a mean over all clients ({kept}), which is wrong if the"
            " update of a client is late; use 0"
        )
    if not clock.keeps:
        return
    if own := replaced(strategy, AVERAGING):
        raise RunError(
            f"{what}: {s.strategy} does more than average updates of one common model (it replaces"
            f" {', '.join(own)})"
        )
    some = strategy.workspace.population.some_client
    first, last = ({*strategy.plan(r, some).upload} for r in (1, s.num_rounds))
    if s.aggregation != "mean" and first != last:
        raise RunError(
            f'aggregation = "{s.aggregation}": not with {what}, as {s.strategy} exchanges other'
            ' layers later, and a round would have updates of both; use "mean"'
        )
    if clock.is_async and clock.buffer > clock.cohort:
        most = f"the {clock.cohort} clients that are at work (fraction-train)"
        raise RunError(f"buffer = {clock.buffer}: must be at most {most}")
    size = sum(array.nbytes for array in strategy.arrays.values())
    copies = 1 + CHECKPOINT_COPIES * bool(s.checkpoint_every)
    less = "use a smaller fraction-train"
    reserve("updates that are on their way", copies * clock.cohort * size, less)
