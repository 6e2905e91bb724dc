"""Layers and slices: which arrays of a model belong to which layer, and which may travel.

The layers of a model are ordered groups of its parameters: the named children of a Sequential, or
what another model declares (`fedapps.models.grouping`). A slice is a tuple of layer names. A layer
can have named parts, which a slice names as `layer:part`: `conv1:norms` are the BatchNorms of
conv1, and `conv1:rest` is everything in conv1 that is in no part. BatchNorms are always a part; a
model can declare others (`fedapps.models.grouping`).

    layout.without_norms(("conv1", "fc1"))  # ('conv1:rest', 'fc1')
    layout.part_of(layout.names, "adapter")  # ('fc1:adapter',)

Only this module takes the state of a model apart or puts it together.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from itertools import takewhile

import numpy as np
import torch
from torch import Tensor, nn

from fedapps.core.errors import RunError
from fedapps.models.grouping import (
    NORMS,
    REST,
    can_be_cut,
    children_of,
    declared_parts,
    keys_by_layer,
    layers_by_module,
)

Slice = tuple[str, ...]
Arrays = dict[str, np.ndarray]
UNCUT = "only an nn.Sequential can run some of its layers alone; this model runs as a whole"


@dataclass(frozen=True)
class Layout:
    """The ordered layers of one model, and the state-dict keys of each layer.

    `keys[layer]` are the floating-point entries of the layer: parameters and running statistics.
    (Integer counters are left out, because they never travel.) `parts[key]` is the part to which an
    entry belongs; entries that are in no part are not in it. `stays` holds the keys that never
    leave a client, whatever slice it uploads, because of `bn-stats` and `bn-local`
    (docs/notation.md, BatchNorm). `modules[path]` are the layers of a module of the model. If the
    model `can_be_cut`, its layers can run one after the other; otherwise they run together only.
    """

    names: Slice
    head: Slice
    keys: Mapping[str, tuple[str, ...]]
    shapes: Mapping[str, tuple[int, ...]]
    parameters: frozenset[str]
    parts: Mapping[str, str]
    stays: frozenset[str]
    modules: Mapping[str, frozenset[str]] = field(default_factory=dict)
    can_be_cut: bool = True
    _known: dict[Slice, tuple[str, ...]] = field(default_factory=dict, init=False, compare=False)

    @property
    def body(self) -> Slice:
        """All layers except the head."""
        return tuple(name for name in self.names if name not in self.head)

    def slice_of(self, word: str) -> Slice:
        """Return the slice that one of the words full, body and head stands for."""
        return {"full": self.names, "body": self.body, "head": self.head}[word]

    @property
    def norms(self) -> frozenset[str]:
        """The keys of all BatchNorms."""
        return frozenset(key for key, part in self.parts.items() if part == NORMS)

    @property
    def variances(self) -> frozenset[str]:
        """The keys of the running variances of BatchNorms, which cannot be negative."""
        return frozenset(k for k in self.norms - self.parameters if k.endswith(".running_var"))

    @property
    def part_names(self) -> tuple[str, ...]:
        """The names of all parts that layers can have; `norms` is there even if no layer has it."""
        return tuple(dict.fromkeys((NORMS, *self.parts.values(), REST)))

    def slice(self, layers: Iterable[str]) -> Slice:
        """Return `layers` in model order; raises `RunError` for a layer that does not exist."""
        wanted = set(layers)
        suffixes = ("", *(f":{part}" for part in self.part_names))
        known = tuple(name + suffix for name in self.names for suffix in suffixes)
        for name in sorted(wanted.difference(known)):
            if isinstance(layers, str):  # "conv1" or ("conv1"): each letter is taken for a layer
                raise RunError(f'"{layers}" is not a slice: write ("{layers}",), with a comma')
            raise RunError(f'layer "{name}": the model has {", ".join(self.names)}')
        return tuple(item for item in known if item in wanted)

    def norms_of(self, layers: Slice) -> Slice:
        """Return the BatchNorms of a slice."""
        return self.part_of(layers, NORMS)

    def without_norms(self, layers: Slice) -> Slice:
        """Return a slice without its BatchNorms."""
        return self.without(layers, NORMS)

    def part_of(self, layers: Slice, part: str) -> Slice:
        """Return the `part` of a slice; it is empty if no layer of the slice has that part."""
        return tuple(
            f"{name}:{part}"
            for name, own in map(_split, self.slice(layers))
            if own in ("", part) and part in self._parts_of(name)
        )

    def without(self, layers: Slice, part: str) -> Slice:
        """Return a slice without the `part` of its layers."""
        return tuple(item for wanted in self.slice(layers) for item in self._less(wanted, part))

    def _less(self, item: str, part: str) -> Slice:
        """Return what is left of one item of a slice if `part` is taken away."""
        name, own = _split(item)
        if own or part not in self._parts_of(name):
            return () if own == part else (item,)
        return tuple(f"{name}:{other}" for other in self._parts_of(name) if other != part)

    def _parts_of(self, name: str) -> tuple[str, ...]:
        """Return the names of a layer's parts, including `rest`."""
        own = {REST, *(self.parts.get(key) for key in self.keys[name])}
        return tuple(part for part in self.part_names if part in own)

    def named(self, text: str, key: str) -> Slice:
        """Return the slice that the run-config key `key` names, such as `fc1,fc2`.

        Raises `RunError` for a layer that does not exist.
        """
        try:
            words = [word.strip() for word in text.split(",")]
            return self.slice(word.replace(":", "?") for word in words)  # whole layers only
        except RunError as error:
            raise RunError(f'{key} = "{text}": {error}') from error

    def keys_of(self, layers: Slice) -> tuple[str, ...]:
        """Return all floating-point keys of a slice, each once, in the model's order."""
        if layers not in self._known:
            keys = (key for item in self.slice(layers) for key in self._keys_of(item))
            self._known[layers] = tuple(dict.fromkeys(keys))
        return self._known[layers]

    def _keys_of(self, item: str) -> tuple[str, ...]:
        name, part = _split(item)
        return tuple(k for k in self.keys[name] if part in ("", self.parts.get(k, REST)))

    def covering(self, layers: Slice, keys: Set[str]) -> Slice:
        """Return what of a slice has some of these keys: whole layers, or parts of them."""
        found: list[str] = []
        for item in self.slice(layers):
            parts = [one for part in self.part_names for one in self.part_of((item,), part)]
            some = [one for one in parts if not keys.isdisjoint(self._keys_of(one))]
            found += [item] if some == parts else some
        return tuple(found)

    def layers_of(self, keys: Iterable[str]) -> Slice:
        """Return the layers that have some of these keys, in the model's order."""
        touched = set(keys)
        return tuple(name for name in self.names if not touched.isdisjoint(self.keys[name]))

    def shared(self, layers: Slice) -> tuple[str, ...]:
        """Return the keys that travel if the slice `layers` is exchanged, in the model's order."""
        return tuple(key for key in self.keys_of(layers) if key not in self.stays)

    def personal(self, layers: Slice) -> tuple[str, ...]:
        """Return the keys that a client keeps to itself if the slice `layers` is exchanged."""
        travelling = set(self.shared(layers))
        return tuple(key for key in self.keys_of(self.names) if key not in travelling)

    def restricted(self, layers: Slice) -> "Layout":
        """Return the layout of a model that has only these `layers`."""
        names = self.slice(layers)
        head = tuple(name for name in self.head if name in names)
        return dataclasses.replace(self, names=names, head=head)

    def count(self, layers: Iterable[str]) -> int:
        """Return the number of trainable parameters of a slice."""
        trained = self.parameters.intersection(self.keys_of(tuple(layers)))
        return sum(math.prod(self.shapes[key]) for key in trained)

    def prefix(self, trained: Slice) -> Slice:
        """Return the layers before the first one in which something is `trained`."""
        touched = self.touched(trained)
        return tuple(takewhile(lambda name: name not in touched, self.names))

    def touched(self, layers: Slice) -> Slice:
        """Return the layers of which a slice has something, whole layers or parts."""
        names = {_split(item)[0] for item in layers}
        return tuple(name for name in self.names if name in names)


def _split(item: str) -> tuple[str, str]:
    """Return layer and part of an item of a slice; the part is "" if the item is a whole layer."""
    name, _, part = item.partition(":")
    return name, part


def layout_of(model: nn.Module, head_layers: int, bn_stats: str, bn_local: bool) -> Layout:
    """Describe the layers of `model`; raises `RunError` for no body, or nothing in the head."""
    by_layer = keys_by_layer(model)
    names = tuple(by_layer)
    if head_layers >= len(names):
        told = f"the model has {len(names)} layers; leave at least one for the body"
        raise RunError(f"head-layers = {head_layers}: {told}")
    values = model.state_dict()
    state = {key: values[key] for keys in by_layer.values() for key in keys}
    parameters = frozenset(name for name, _ in model.named_parameters() if name in state)
    head = names[-head_layers:]
    if parameters.isdisjoint(key for name in head for key in by_layer[name]):
        raise RunError(f"head-layers = {head_layers}: {', '.join(head)} has no parameters to train")
    parts = {key: part for key, part in declared_parts(model).items() if key in state}
    norms = {key for key, part in parts.items() if part == NORMS}
    stays = norms if bn_local else norms - parameters if bn_stats != "shared" else set()
    return Layout(
        names=names,
        head=head,
        keys=by_layer,
        shapes={key: tuple(value.shape) for key, value in state.items()},
        parameters=parameters,
        parts=parts,
        stays=frozenset(stays),
        modules=layers_by_module(model, by_layer),
        can_be_cut=can_be_cut(model),
    )


def take(model: nn.Module, keys: Iterable[str]) -> Arrays:
    """Copy entries of the model's state into NumPy arrays (float32, one copy each)."""
    state = model.state_dict()
    return {key: state[key].detach().cpu().numpy().copy() for key in keys}


def as_sent(arrays: Mapping[str, np.ndarray]) -> Arrays:
    """Return arrays as they come out of a message: float32 and read-only."""
    sent = {key: np.asarray(value, np.float32).view() for key, value in arrays.items()}
    for view in sent.values():
        view.flags.writeable = False
    return sent


def as_stored(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return copies for safetensors, which refuses tensors with strides or with shared memory."""
    whole = torch.contiguous_format
    return {key: value.detach().cpu().clone(memory_format=whole) for key, value in tensors.items()}


def put(model: nn.Module, arrays: Mapping[str, np.ndarray]) -> None:
    """Copy arrays into the model's state in place; raises `RunError` for a wrong shape."""
    state = model.state_dict()
    for key, value in arrays.items():
        if tuple(state[key].shape) != value.shape:
            raise RunError(
                f"{key}: has shape {value.shape}; the model needs {tuple(state[key].shape)}"
            )
        if state[key].is_cpu:
            np.copyto(state[key].numpy(), value)
        else:
            state[key].copy_(torch.from_numpy(np.array(value)))


def in_sequence(model: nn.Module, layers: Iterable[str]) -> nn.Sequential:
    """Return the modules of consecutive layers, of a model that can be cut, as a model."""
    return nn.Sequential(*map(model.get_submodule, children_of(model, layers)))


def run(model: nn.Module, x: Tensor, layers: Iterable[str]) -> Tensor:
    """Run consecutive layers of the model on `x`, the input of the first of them.

    Raises `RunError` for a part of the layers of a model that cannot be cut.
    """
    if not can_be_cut(model):
        if tuple(layers) != tuple(keys_by_layer(model)):
            raise RunError(f"{type(model).__name__}: {UNCUT}")
        return model(x)
    for child in children_of(model, layers):
        x = model.get_submodule(child)(x)
    return x
