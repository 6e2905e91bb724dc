"""Weights that a model starts from, read from a file instead of drawn from the seed."""

import hashlib
from collections.abc import Collection
from pathlib import Path

import numpy as np
import safetensors.numpy
from safetensors import SafetensorError
from torch import nn

from fedapps.core.errors import RunError, one_line
from fedapps.core.words import some
from fedapps.models.grouping import frozen_keys, keys_by_layer
from fedapps.models.layers import Arrays, Slice, put


def start_from(model: nn.Module, path: Path, head: Collection[str]) -> tuple[Slice, str]:
    """Put the weights of a .safetensors file into a model, of the names and shapes that it has.

    Layers of the `head` that are not in the file, or have another shape there, stay as they are.
    Return these layers, and the SHA-256 of the file. Raises `RunError` for a file that cannot be
    read or is not of this model. Entries that are no floats, such as counters, are ignored. What is
    frozen for good is read, too: a run never trains it, and so could not correct it.
    """
    arrays, digest = _read(path)
    layers = keys_by_layer(model)
    state = model.state_dict()
    frozen = [k for k in state if k in frozen_keys(model) and state[k].is_floating_point()]
    known = [*frozen, *(key for keys in layers.values() for key in keys)]
    shapes = {key: tuple(state[key].shape) for key in known}
    found = {key: value.shape for key, value in arrays.items()}
    fresh = tuple(
        name
        for name in layers
        if name in head and any(found.get(k) != shapes[k] for k in layers[name])
    )
    own = [key for name, keys in layers.items() if name not in fresh for key in keys] + frozen
    problems = {
        "lacks": [key for key in own if key not in found],
        "has other names:": [key for key in found if key not in state],
        "has other shapes:": [
            f"{k} {found[k]} instead of {shapes[k]}"
            for k in own
            if found.get(k, shapes[k]) != shapes[k]
        ],
    }
    for what, names in problems.items():
        if names:
            cure = (
                "what fedapps export writes"
                if names[0] in frozen
                else "the weights of the same model"
            )
            raise RunError(f'initial-model = "{path}": {what} {some(names)}; give {cure}')
    put(model, {key: arrays[key] for key in own})
    return fresh, digest


def _read(path: Path) -> tuple[Arrays, str]:
    try:
        content = path.read_bytes()
        arrays = safetensors.numpy.load(content)
    except FileNotFoundError as error:
        told = "is not there; each process needs it at this path (devices get it from the server)"
        raise RunError(f'initial-model = "{path}": {told}') from error
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        reason = one_line(str(error))
        raise RunError(f'initial-model = "{path}": cannot be read ({reason})') from error
    floats = {k: v for k, v in arrays.items() if np.issubdtype(v.dtype, np.floating)}
    if broken := [key for key, value in floats.items() if not np.isfinite(value).all()]:
        raise RunError(f'initial-model = "{path}": {broken[0]} has values that are not finite')
    return floats, hashlib.sha256(content).hexdigest()
