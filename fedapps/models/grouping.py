"""The layers of any model, and parts of layers: which entries of its state, and which modules.

The layers of a model are what it declares as `layers`, a dict of names and patterns:

    model.layers = {"stem": ("conv1", "bn1"), "blocks": ("layer*",), "fc": ("fc",)}

A pattern is the path of a module or of a parameter, with `*` for any letters. Without `layers`, the
children of the model that have parameters are the layers, in the order in which they were added. A
child that has only buffers, such as a normalization, belongs to the layer before it, and to the
first one if there is none.

A part is something in a layer that can travel, or stay on the client, separately from the rest. All
BatchNorms are in the part `norms`; they need not be declared. Any other part is declared like this:

    chain(fc=nn.Linear(64, 32), lora=declare_part(LowRank(64, 32), "adapter"))
"""

from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from copy import deepcopy
from fnmatch import fnmatchcase
from typing import TypeVar, overload
from weakref import WeakKeyDictionary, WeakSet

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedapps.core.errors import RunError
from fedapps.core.words import did_you_mean

Names = tuple[str, ...]
_CHILDREN: WeakKeyDictionary[nn.Module, dict[str, list[str]]] = WeakKeyDictionary()
_ORIGINS: WeakKeyDictionary[nn.Module, WeakSet[nn.Module]] = WeakKeyDictionary()  # of copies


def can_be_cut(model: nn.Module) -> bool:
    """Tell whether the layers of a model can run one after the other: those of a Sequential can."""
    plain = type(model).forward is nn.Sequential.forward
    return plain and not isinstance(getattr(model, "layers", None), Mapping)


def keys_by_layer(model: nn.Module) -> dict[str, Names]:
    """Return the keys of the model's floating-point state by layer, each key in one layer.

    Entries that are frozen for good (`freeze`) are in no layer. Raises `RunError` for any other key
    in no layer or in two, for a layer without keys, and for a tensor that two layers share. Of the
    keys of a shared tensor within a layer, the first one is returned.
    """
    frozen = frozen_keys(model)
    values = model.state_dict().items()
    state = {k: v for k, v in values if v.is_floating_point() and k not in frozen}
    declared = getattr(model, "layers", None)
    wanted = (
        {name: _patterns(name, given) for name, given in declared.items()}
        if isinstance(declared, Mapping)
        else _with_parameters(model, state)
    )
    found: dict[str, list[str]] = {name: [] for name in wanted}
    owner: dict[int, str] = {}
    for key, value in state.items():
        name = _layer_of(key, wanted, model)
        if owner.setdefault(place := _place(value), name) != name:
            raise RunError(
                f"layers {owner[place]} and {name} share the tensor {key}: put both into one layer"
            )
        found[name].append(key)
    for name, keys in found.items():
        if not keys and not frozen:
            raise RunError(f"layer {name} = {wanted[name]}: nothing in the model matches")
    return {name: tuple(_distinct(keys, state)) for name, keys in found.items() if keys}


def layers_by_module(model: nn.Module, keys: Mapping[str, Names]) -> dict[str, frozenset[str]]:
    """Return, for the path of each module, the layers to which it belongs.

    A module without a state, such as a dropout, belongs to the layer of the module around it. If
    that one has parts in several layers, it belongs to the layer of the module before it.
    """
    layer_of = {key: name for name, own in keys.items() for key in own}
    found: dict[str, frozenset[str]] = {}
    last = frozenset([next(iter(keys))])
    for path, _ in model.named_modules():
        prefix = f"{path}." if path else ""
        own = frozenset(name for key, name in layer_of.items() if key.startswith(prefix))
        around = found.get(path.rpartition(".")[0], frozenset())
        found[path] = own or (around if len(around) == 1 else last)
        last = found[path] if len(found[path]) == 1 else last
    return found


def children_of(model: nn.Module, layers: Iterable[str]) -> list[str]:
    """Return the children that make up some layers of a model that can be cut, in order.

    A child that is no layer belongs to the layer before it; at the beginning, to the first one.
    """
    if model not in _CHILDREN:
        found: dict[str, list[str]] = {name: [] for name in keys_by_layer(model)}
        current = next(iter(found))
        for name in model._modules:  # `named_children` leaves out a module that comes again
            current = name if name in found else current
            found[current].append(name)
        _CHILDREN[model] = found
    children = _CHILDREN[model]
    return [child for layer in layers for child in children[layer]]


@overload
def copied(model: nn.Module) -> nn.Module: ...
@overload
def copied(model: nn.Module, layers: Iterable[str]) -> nn.Sequential: ...
def copied(model: nn.Module, layers: Iterable[str] | None = None) -> nn.Module:
    """Return a copy of the model; or, if it can be cut, of consecutive layers under the same names.

    What has no parameters, such as a ReLU, comes with the layer before it. Recurrent layers keep
    their weights in one piece, as GPUs want them.
    """
    if layers is None:
        copy = deepcopy(model)
    else:
        names = children_of(model, layers)
        copy = nn.Sequential(OrderedDict((n, deepcopy(model.get_submodule(n))) for n in names))
    for module in copy.modules():
        if isinstance(module, nn.RNNBase):
            module.flatten_parameters()
    _ORIGINS[copy] = WeakSet([model, *_ORIGINS.get(model, ())])
    return copy


def is_copy(module: nn.Module, model: nn.Module) -> bool:
    """Tell whether `copied` has made a module of this model, or of a copy of it."""
    return model in _ORIGINS.get(module, ())


def _with_parameters(model: nn.Module, state: Collection[str]) -> dict[str, Names]:
    """Return, for each child with parameters in `state`, its name and those of what joins it.

    If nothing has parameters, each child is a layer.
    """
    names = dict.fromkeys(key.partition(".")[0] for key in state)
    parameters = (name for name, _ in model.named_parameters(remove_duplicate=False))
    trained = {key.partition(".")[0] for key in parameters if key in state} or names
    found: dict[str, Names] = {}
    waiting: Names = ()  # before the first layer
    for name in names:
        if name in trained:
            found[name], waiting = (*waiting, name), ()
        elif found:
            found[next(reversed(found))] += (name,)
        else:
            waiting += (name,)
    return found


def _patterns(name: str, given: object) -> Names:
    patterns = (given,) if isinstance(given, str) else tuple(given)  # type: ignore[arg-type]
    if not name.isidentifier():
        raise RunError(f'layer "{name}": must be a word of letters, digits and "_"')
    return patterns


def _layer_of(key: str, wanted: Mapping[str, Names], model: nn.Module) -> str:
    found = [name for name, patterns in wanted.items() if any(_fits(key, p) for p in patterns)]
    if len(found) != 1:
        where = f"is in the layers {' and '.join(found)}" if found else "is in no layer"
        if not found and (lost := _without_match(wanted, model)):
            raise RunError(lost)
        raise RunError(
            f"{key} {where}: each parameter must be in one; layers are {', '.join(wanted)}"
        )
    return found[0]


def _without_match(wanted: Mapping[str, Names], model: nn.Module) -> str:
    """Say which pattern stands for nothing in the model, as a misspelt one does; "" if none."""
    known = [*dict(model.named_modules()), *model.state_dict()][1:]
    for name, patterns in wanted.items():
        for pattern in patterns:
            if not any(fnmatchcase(path, pattern) for path in known):
                hint = did_you_mean(pattern, known)
                return f'layer {name}: nothing in the model is called "{pattern}"{hint}'
    return ""


def _fits(key: str, pattern: str) -> bool:
    """Tell whether a pattern stands for a key, or for a module around it."""
    words, depth = key.split("."), pattern.count(".") + 1
    return len(words) >= depth and fnmatchcase(".".join(words[:depth]), pattern)


def _distinct(keys: Iterable[str], state: Mapping) -> Iterable[str]:
    """Leave out keys of a tensor that has another key before it."""
    seen: set[int] = set()
    for key in keys:
        if (place := _place(state[key])) not in seen:
            seen.add(place)
            yield key


def _place(value: Tensor) -> int:
    """Return where the values of a tensor are; tensors that share them have the same place."""
    return value.data_ptr() if value.numel() and not value.is_meta else id(value)


Module = TypeVar("Module", bound=nn.Module)
NORMS, REST = "norms", "rest"  # a layer's BatchNorms, and all that is in no part
_PART = "layer_part"  # attribute of a module that was declared as a part
_FROZEN = "frozen_entries"  # attribute of a module: names of its own entries


def declare_part(module: Module, part: str) -> Module:
    """Put all that `module` holds into the `part` of its layer, such as "adapter"; return it.

    A module inside of it can be declared as another part. Raises ValueError for a name that a slice
    could not contain.
    """
    if not part.isidentifier() or part == REST:
        raise ValueError(f'part "{part}": must be a word of letters, and not "{REST}"')
    object.__setattr__(module, _PART, part)  # nn.Module itself sets a str in this way
    return module


def freeze(model: nn.Module, keys: Iterable[str]) -> None:
    """Freeze entries of the state for good: they are in no layer of the model any more.

    They run with the layer before them, and with the first one if there is none.
    """
    for key in keys:
        path, _, name = key.rpartition(".")
        module = model.get_submodule(path)
        object.__setattr__(module, _FROZEN, {*getattr(module, _FROZEN, ()), name})


def freeze_as_built(model: nn.Module) -> None:
    """Freeze for good the parameters that ask for no gradient.

    If none of a module's own parameters does, its buffers, such as running statistics, are frozen
    with them.
    """
    for path, module in model.named_modules():
        own = dict(module.named_parameters(recurse=False))
        names = [name for name, parameter in own.items() if not parameter.requires_grad]
        if names and len(names) == len(own):
            names += dict(module.named_buffers(recurse=False))
        freeze(model, [f"{path}.{name}" if path else name for name in names])


def frozen_keys(model: nn.Module) -> set[str]:
    """Return the keys of the state that are frozen for good."""
    return {
        f"{path}.{name}" if path else name
        for path, module in model.named_modules()
        for name in getattr(module, _FROZEN, ())
    }


def declared_parts(model: nn.Module) -> dict[str, str]:
    """Return the part of each state-dict key that is in one; BatchNorms are in `norms` by type.

    If a declared module is inside another one, the declaration of the inner module counts.
    """
    parts: dict[str, str] = {}
    for prefix, module in model.named_modules():  # outer ones first
        part = getattr(module, _PART, NORMS if isinstance(module, _BatchNorm) else "")
        if part:
            parts |= dict.fromkeys((f"{prefix}.{key}" for key in module.state_dict()), part)
    return parts
