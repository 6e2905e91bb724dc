"""Which keys work with which method: found out by a run's own checks, without any training."""

import copy
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from fedapps.core import config, registry
from fedapps.core.errors import RunError
from fedapps.core.schema import Scalar
from fedapps.core.settings import Settings
from fedapps.engine import returned, unused
from fedapps.engine.rounds import Rounds
from fedapps.method.flower import BaseStrategy
from fedapps.method.together import round_of, why_alone
from fedapps.models.layers import as_sent
from fedapps.training.workspace import Workspace

# Each column: its keys, with values that stand for all values that turn them on.
COLUMNS: dict[str, dict[str, Scalar]] = {
    "dp central": {"dp.mode": "central"},
    "dp local": {"dp.mode": "local"},
    "dp distributed": {"dp.mode": "distributed", "secure-sum": True},
    "presum": {"presum": True},
    "secure-sum": {"secure-sum": True},
    "server-data": {"server-data": 0.1},
    "adapters": {"adapter-rank": 2},
    "server-optimizer": {"server-optimizer": "adam"},
    "aggregation": {"aggregation": "median"},
    "group": {"group": 2},
    "async": {"round-mode": "async", "devices": "lognormal"},
}
YES, NO, NOTHING = "yes", "no", "no effect"
WITH_NORMS = "lenet5"  # a small model with BatchNorm, for methods that need one


class Cell(NamedTuple):
    """Whether some keys work with a method, and why not (in one line, without their names)."""

    found: str
    why: str = ""


def table() -> dict[str, dict[str, Cell]]:
    """Return a cell for each method and column, with the default settings on digits."""
    return {
        name: {column: cell(name, keys) for column, keys in COLUMNS.items()}
        for name in registry.names()
    }


def cell(method: str, keys: dict[str, Scalar]) -> Cell:
    """Return whether some keys work with a method: a run with them is prepared, but not started."""
    model = WITH_NORMS if registry.strategy_class(method).needs_norms else "mlp"
    flat: dict[str, Scalar] = {"strategy": method, "model": model, "device": "cpu", "threads": 1}
    settings = config.read(config.applied(flat | keys))
    try:
        strategy = registry.strategy_class(method)(_space(settings))
        Rounds(strategy)
    except RunError as error:
        return Cell(NO, _reason(str(error), method))
    for key, why in unused.told(strategy):
        if key in keys:
            return Cell(NOTHING, _reason(why, method))
    why = alone(strategy) if settings.group else ""
    return Cell(NO, _reason(why, method)) if why else Cell(YES)


def _space(settings: Settings) -> Workspace:
    """Return a workspace; those with the same clients and the same model share these."""
    validation, rank = settings.validation_fraction, settings.adapter_rank
    base = _shared(settings.model, rank, float(validation))
    data = copy.copy(base.data)
    data.settings = settings
    return Workspace(settings, data, base.resident)


@cache
def _shared(model: str, rank: int, validation: float) -> Workspace:
    keys: dict[str, Scalar] = {"strategy": registry.names()[0], "device": "cpu", "threads": 1}
    keys |= {"model": model, "adapter-rank": rank, "validation-fraction": validation}
    return Workspace(config.read_general(config.applied(keys)))


def alone(strategy: BaseStrategy) -> str:
    """Say why clients cannot be trained together (`group`); "" if they can.

    A client works up to its first training.
    """
    space, client = strategy.workspace, strategy.clients[0]
    plan = strategy.plan(1, client)
    if strategy.has_channel:
        return "clients train on a channel"
    own = registry.client_class(space.settings.strategy)(space, client, {})
    received = as_sent(returned.download(strategy, 1, client, plan))
    job = next(round_of(own, "train_round", plan, received))
    return why_alone(space.group, job)


def reasons(found: dict[str, dict[str, Cell]]) -> Iterator[tuple[str, str, list[str]]]:
    """Yield each column, a reason why it does not work, and the methods that have this reason."""
    for column in COLUMNS:
        methods = defaultdict(list)
        for method, cells in found.items():
            if cells[column].why:
                methods[cells[column].why].append(method)
        yield from ((column, why, those) for why, those in methods.items())


def _reason(text: str, method: str) -> str:
    """Return the reason in a line that begins with a key and its value, without the remedy."""
    text = text.partition("; ")[0].removeprefix(f"on {method}, whose ")
    head, colon, reason = re.sub(rf"\b{method}\b", "the method", text).partition(": ")
    return reason if colon and ("=" in head or head in COLUMNS) else head
