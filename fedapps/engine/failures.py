"""React to clients that fail: give advice, and end the run if too many fail."""

from collections.abc import Mapping, Sequence

import msgspec

from fedapps.core import log
from fedapps.core.errors import DIVERGED, RunError
from fedapps.core.settings import Settings
from fedapps.method.update import Failure

DEVICE_TIMES = 3  # a run ends if all devices that were asked fail this often in a row
DIVERGED_TIMES = 3  # it ends if more than half of the clients diverge this often in a row
ANY = "any"  # counts training and evaluation together, in the order in which they happen


def refuse_dead_workers(round_: int, failures: Sequence[Failure]) -> None:
    """Raise `RunError` if the worker process of any failed client has died."""
    dead = [failure for failure in failures if failure.worker_died]
    if dead:
        clients = ", ".join(str(failure.client) for failure in dead)
        whose = f"client{'s' if len(dead) > 1 else ''} {clients}"
        raise RunError(
            f"round {round_}: the worker process of {whose} died, usually for lack of"
            " memory: use fewer workers at once (--federation-config client-resources-num-cpus=2),"
            " a smaller batch-size or a smaller cache-limit"
        )


class FailureCounts(msgspec.Struct):
    """Ends a run if all clients of a round fail, or more than `max-failures` (-1: no such limit).

    There are five more rules:

    - Devices may all fail in fewer than `DEVICE_TIMES` requests in a row, because a round may have
      asked only one device.
    - Training and evaluation are counted together and also each for itself, because clients can
      still score a model that none of them can train any more.
    - A run fails at its last round if no client has ever succeeded in training (or in evaluation).
    - A run fails if training diverges at more than half of the clients in `DIVERGED_TIMES` rounds
      in a row: the clients that spoil the model may still be answering.
    - A round whose secure sum is spoilt is neither a success nor a failure of all: one client lies,
      and nobody can see which. A run without any sum fails at its last round.

    A checkpoint keeps the counts. `in_a_row` maps a kind of request ("train", "evaluate" or `ANY`)
    to how often in a row all clients failed, and `succeeded` lists the kinds in which any client
    has succeeded. In the last `diverged_in_a_row` rounds, training diverged at more than half of
    the clients.
    """

    in_a_row: dict[str, int] = {}
    succeeded: list[str] = []
    diverged_in_a_row: int = 0
    advised: bool = False

    def apply(
        self,
        settings: Settings,
        round_: int,
        kind: str,
        failures: Sequence[Failure],
        asked: int,
        failed: Sequence[Failure],
        devices: bool,
        spoilt: str = "",
        clips: bool = True,
    ) -> None:
        """Raise `RunError` if the run must end; its message gives the cause of the first failure.

        Who declined is counted where nobody did anything else, and named if nobody failed.
        `kind` is what the `asked` clients had to do, "train" or "evaluate". `failed` has one for
        each client that has failed in the round so far, in training or evaluation. `spoilt` says
        why a round has no secure sum, unless too many failed. `clips` is False if the method does
        not take `max-norm`.
        """
        if kind == "train":
            causes = {f.client: f.cause for f in reversed(failures) if DIVERGED in f.cause}
            self._end_if_most_diverge(round_, causes, asked)
            self._advise(settings, round_, len(causes), asked, clips)
        all_failed = bool(asked) and len({failure.client for failure in failures}) == asked
        if all_failed:
            self.in_a_row |= {name: self.in_a_row.get(name, 0) + 1 for name in (kind, ANY)}
        elif asked and not spoilt:
            self.in_a_row |= {kind: 0, ANY: 0}
            if kind not in self.succeeded:
                self.succeeded.append(kind)
        end = max(self.in_a_row.values(), default=0) >= (DEVICE_TIMES if devices else 1)
        in_vain = round_ == settings.num_rounds and kind not in self.succeeded
        if spoilt and in_vain:
            raise RunError(f"round {round_}: no round had a sum: {spoilt}")
        limit = settings.max_failures
        if not failures or not (end or in_vain or 0 <= limit < len(failed)):
            return
        broken = [failure for failure in failures if not failure.declined]
        first, what = (broken or failures)[0], "failed" if broken else "declined"
        count, of, rule = len(failures), f" of {asked}", f"all {what}"
        if not all_failed:
            first, count, rule = failed[0], len(failed), f"max-failures = {limit}"
            if count > len({failure.client for failure in broken}):  # others in the training
                of = ""
        raise RunError(
            f"round {round_}: {count}{of} clients {what} ({rule}); "
            f"client {first.client}: {first.cause}"
        )

    def _end_if_most_diverge(self, round_: int, causes: Mapping[int, str], asked: int) -> None:
        """Raise `RunError` if more than half diverge too often; `apply` ends a run if all do."""
        most = 2 * len(causes) > asked
        self.diverged_in_a_row = self.diverged_in_a_row + 1 if most else 0
        if len(causes) < asked and self.diverged_in_a_row >= DIVERGED_TIMES:
            client = min(causes)
            raise RunError(
                f"round {round_}: training diverged at {len(causes)} of {asked} clients, at more "
                f"than half for {DIVERGED_TIMES} rounds in a row; client {client}: {causes[client]}"
            )

    def _advise(
        self, settings: Settings, round_: int, diverged: int, asked: int, clips: bool
    ) -> None:
        """Warn once in a run that training diverges, and say what helps."""
        if not diverged or self.advised:
            return
        self.advised = True
        advised = clips and not settings.max_norm
        limit = ", or limit gradients, for example max-norm=10" if advised else ""
        lr = f"lower lr = {settings.round_lr(round_):g}{limit}"
        if noise := settings.dp.noise:
            clip = settings.dp.clip_norm
            lr = f"lower dp.noise-multiplier = {noise:g} or dp.clip-norm = {clip:g}, or {lr}"
        log.warning(f"round {round_}: training diverged at {diverged} of {asked} clients: {lr}")
