"""What a strategy's hooks return in a round, and its checks: clients, arrays to send, new model."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from fedapps.core.errors import RunError, as_returned
from fedapps.method.flower import BaseStrategy
from fedapps.models.layers import Arrays, Layout
from fedapps.training.plan import Plan


def check_selected(round_: int, selected: Iterable[int], there: Sequence[int]) -> list[int]:
    """Return the selected clients as ints; raises `RunError` for one twice, or one not there."""
    hook, right = f"round {round_}: select", "a list of clients"
    listed = as_returned(hook, selected, isinstance(selected, Iterable), right)
    clients = [int(client) for client in listed]
    if absent := [client for client in clients if client not in there]:
        raise RunError(f"round {round_}: select gave client {min(absent)}, which is not there")
    if len({*clients}) < len(clients):
        raise RunError(f"round {round_}: select gave a client twice: {clients}")
    return clients


def download(strategy: BaseStrategy, round_: int, client: int, plan: Plan) -> Arrays:
    """Return the arrays that a client gets for its plan; variances of BatchNorms are at least 0.

    So are those of the server's model (`check_aggregate`), but mixtures of what clients have sent
    are made here. Raises `RunError` if their names or the shapes of further arrays are not those
    that its plan says, or if a value that is not of the server's model is not finite, and TypeError
    for anything but a dict.
    """
    hook = strategy.newcomer_download if plan.newcomer else strategy.download
    arrays = _arrays(f"round {round_}: download", hook(round_, client, plan))
    if wrong := arrays.keys() ^ {*plan.down(strategy.layout)}:
        name = min(wrong)
        what = "gave" if name in arrays else "left out"
        but = "does not have" if name in arrays else "has"
        raise RunError(f"round {round_}: download {what} {name}, which the plan {but}")
    for name, shape in plan.receives.items():
        if (found := np.shape(arrays[name])) != tuple(shape):
            raise RunError(f"round {round_}: download gave {name} {found}, but the plan {shape}")
    model = strategy.shown(strategy.arrays, arrays.keys() & strategy.arrays.keys())
    own = [name for name, array in arrays.items() if array is not model.get(name)]
    for name in own:
        if not np.isfinite(arrays[name]).all():
            method = strategy.settings.strategy
            raise RunError(f"round {round_}: download of {method} gave {name}, which is not finite")
    mixed = strategy.layout.variances.intersection(own)
    negative = [name for name in mixed if np.any(np.less(arrays[name], 0))]
    return arrays | {name: np.maximum(arrays[name], 0.0) for name in negative}


def check_aggregate(round_: int, new: object, layout: Layout) -> Arrays:
    """Return the aggregated arrays as float32; variances of BatchNorms are at least 0.

    Attackers, and robust means of a few clients, can make them negative, and the model useless.
    Raises `RunError` if a key or a shape is not that of the model, or if a value is not finite as
    float32, and TypeError for anything but a dict.
    """
    given = _arrays(f"round {round_}: aggregate", new)
    arrays = _fitting(given, layout, f"round {round_}: aggregate gave")
    return arrays | {key: np.maximum(arrays[key], 0.0) for key in arrays.keys() & layout.variances}


def check_model(round_: int, arrays: Arrays, layout: Layout) -> Arrays:
    """Return the server's model, into which hooks can put anything, as float32.

    Raises `RunError` as `check_aggregate` does, and also for a key that is missing.
    """
    if missing := layout.shapes.keys() - arrays.keys():
        raise RunError(f"round {round_}: self.arrays has no {min(missing)}, but the model has")
    return _fitting(arrays, layout, f"round {round_}: self.arrays has")


def _fitting(given: Arrays, layout: Layout, has: str) -> Arrays:
    arrays: Arrays = {}
    for key, value in given.items():
        shape, right = np.shape(value), layout.shapes.get(key)
        if shape != right:
            model = f"has shape {right}" if right else "has no such key"
            raise RunError(f"{has} {key} {shape}, but the model {model}")
        with np.errstate(over="ignore"):  # an overflow is refused just below
            arrays[key] = np.asarray(value, np.float32)
        if not np.isfinite(arrays[key]).all():
            raise RunError(f"{has} {key}, which is not finite")
    return arrays


def _arrays(hook: str, found: Any) -> Arrays:
    """Return what a hook returned; raises TypeError for anything but a dict.

    It is, for example, the tuple that `weighted_mean` returns.
    """
    arrays: Arrays = as_returned(hook, found, isinstance(found, dict), "a dict of arrays")
    return arrays
