"""A forward pass in training, of a model of one's own: what it draws, depends on and leaves."""

import copy
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedapps.core.errors import RunError
from fedapps.data.spec import Spec
from fedapps.models.own import random_samples

# Generators that anybody can draw from, and what returns the state of each.
TORCH = "torch"
GENERATORS: dict[str, Callable[[], Any]] = {
    TORCH: torch.get_rng_state,
    "random": random.getstate,
    "numpy.random": np.random.get_state,
}
# First passes, as a model can keep what it draws. One generator that moves only once can have moved
# for another thread, such as Ray's.
PASSES = 3


def check_training(name: str, model: nn.Module, inputs: Spec) -> None:
    """Raise `RunError` if training depends on more than weights, samples and torch's generator.

    Clients would share what no state has. Two passes of the same model from the same seed must be
    the same, and leave the same. One that fails is nothing to refuse: the run's own samples can be
    others.
    """
    if problem := _hidden_state(copy.deepcopy(model).cpu(), inputs):
        raise RunError(f'model = "{name}": forward in training {problem}')


def _hidden_state(model: nn.Module, inputs: Spec) -> str:
    allowed = "only weights, samples and torch's random numbers may decide"
    firsts = [_trained(copy.deepcopy(model), inputs)[1] for _ in range(PASSES)]
    if others := set.intersection(*firsts) - {TORCH}:
        return f"draws from {min(others)}: {allowed}"
    state, found = model.state_dict(), list[dict[str, object]]()
    before = {key: value.clone() for key, value in state.items()}
    for _ in range(2):
        found.append({"": _trained(model, inputs)[0], **_values(model)})
        for key, value in state.items():
            value.copy_(before[key])
    differ = [key for key, value in found[0].items() if not _same(value, found[1].get(key))]
    if differ == [""]:
        return f"gives other outputs the second time: {allowed}"
    if differ := [key for key in differ if key]:
        return f"changes {differ[0]}: only persistent buffers may change"
    return ""


def draws(model: nn.Module, inputs: Spec) -> bool:
    """Tell whether a training pass draws random numbers of torch."""
    return TORCH in _trained(copy.deepcopy(model).cpu(), inputs)[1]


def _trained(model: nn.Module, inputs: Spec) -> tuple[object, set[str]]:
    """Run two samples in training mode from a seed; return outputs, and which generators moved.

    Torch's is then as it was. The others must not be set back: they have also given numbers to
    other threads, which would get them twice.
    """
    x = random_samples(inputs, 2, torch.Generator().manual_seed(0))
    kept, found = torch.get_rng_state(), None
    torch.default_generator.manual_seed(0)
    before = {name: state() for name, state in GENERATORS.items()}
    try:
        with torch.no_grad(), suppress(Exception):  # the author's code can raise anything
            found = model.train()(x)
        return found, {name for name in before if not _equal(before[name], GENERATORS[name]())}
    finally:
        torch.set_rng_state(kept)


def _equal(one: Any, other: Any) -> bool:
    """Compare states of a generator: tensors, arrays, or tuples that can contain these."""
    if isinstance(one, tuple):
        return all(map(_equal, one, other))
    return np.array_equal(one, other)


def _values(model: nn.Module) -> dict[str, object]:
    """Return all numbers and tensors that the modules hold, but no parameters; as copies."""
    return {
        f"{path}.{name}".lstrip("."): value.clone() if isinstance(value, Tensor) else value
        for path, module in model.named_modules()
        for name, value in (vars(module) | module._buffers).items()
        if isinstance(value, int | float | Tensor)
    }


def _same(one: object, other: object) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor) and one.dtype == other.dtype:
        return torch.equal(one.nan_to_num(), other.nan_to_num())
    return repr(one) == repr(other)
