"""Models of one's own: a file with one function that makes the model.

The key `model` names it: `mine` is the file `models/mine.py` beside `fedapps/`, which Flower sends
to SuperNodes with the app; `models/mine.py:make` is a function of a file in the app, and
`/path/mine.py:make` one of a file that each process finds at that place.
"""

import copy
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Collection, Iterator
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from typing import NoReturn

import torch
from torch import Tensor, nn

from fedapps.core.errors import RunError, named
from fedapps.core.paths import APP, expanded, model_file
from fedapps.core.words import some
from fedapps.data.spec import Spec
from fedapps.models.blocks import ModelSpec
from fedapps.models.grouping import freeze_as_built, frozen_keys, keys_by_layer

FOLDER = "models"
MAKE = "make"  # the function that is taken if there are several
PASSES = 2, 32, 32, 32, 32  # samples of the passes in which each parameter should get a gradient
KINDS = ("images", "tables", "series", "tokens", "values")  # of `Spec.kind`


def folder() -> Path:
    """Return the folder of models that are known by their file's name."""
    return APP / FOLDER


def names() -> tuple[str, ...]:
    """Return the names of the files in `models/`, sorted."""
    found = (path.stem for path in folder().glob("*.py"))
    return tuple(sorted(name for name in found if not name.startswith("_")))


def file_of(name: str) -> Path | None:
    """Return the file of a model of one's own; None if `name` is neither a file nor a path."""
    named = model_file(name)
    if not named:
        return folder() / f"{name}.py" if name in names() else None
    path = expanded(named[0], "model")
    if not path.is_absolute() and ".." in path.parts:
        raise RunError(f'model = "{name}": must be below the folder of the app, or absolute')
    return APP / path


def spec_of(name: str) -> ModelSpec | None:
    """Return the spec of a model of one's own; None if `name` is neither a file nor a path.

    Its `build` is the author's function. Raises `RunError` if the file cannot be used.
    """
    path, named = file_of(name), model_file(name)
    return _spec(name, path, named[1] if named else "") if path else None


class _Source(SourceFileLoader):
    """Runs a file as it is: compiled code of the same second and length can be older."""

    def path_stats(self, path: str) -> NoReturn:
        """Tell nothing, so that no compiled code is looked for, nor left beside the file."""
        raise OSError


def _spec(name: str, path: Path, function: str) -> ModelSpec:
    where, module_name = f'model = "{name}"', f"{FOLDER}.{path.stem}"
    if not path.is_file():
        cure = "each process needs this file: copy yours there"
        if path.is_relative_to(APP) and (here := path.relative_to(APP)).is_file():
            cure += f', or give the whole path {here.absolute()}, in Python Path("{here}")'
        raise RunError(f"{where}: {path} is not there; {cure}")
    loader = _Source(module_name, str(path))
    spec = ModuleSpec(module_name, loader, origin=str(path))
    spec.has_location = True
    module = sys.modules[module_name] = importlib.util.module_from_spec(spec)
    try:
        loader.exec_module(module)
    except Exception as error:
        raise RunError(f"{where}: {path.name}: {_told(error, path)}") from error
    own = {
        key: value
        for key, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__ and key[0] != "_"
    }
    wanted = f"a function {function}" if function else f"one function, or one named {MAKE}"
    function = function or (next(iter(own)) if len(own) == 1 else MAKE)
    if function not in own:
        cure = f"; model = {path}:NAME names one" if own else ""
        there = ", ".join(own) or "none without a leading _"
        raise RunError(f"{where}: {path.name} must have {wanted}, has {there}{cure}")
    takes = getattr(module, "takes", KINDS)
    takes = (takes,) if isinstance(takes, str) else tuple(takes)
    if wrong := [kind for kind in takes if kind not in KINDS]:
        raise RunError(f"{where}: takes = {wrong[0]!r}: must be some of {', '.join(KINDS)}")
    return ModelSpec(own[function], takes, smallest=1, per_step=True)


def in_app(name: str) -> str:
    """Return the name of a model of one's own as that of a file in the app, wherever it was.

    A model file says no more of where it was; and it can be a stranger's, who must not say which
    code is run.
    """
    path, named = file_of(name), model_file(name)
    if not path or not named or not expanded(named[0]).is_absolute():
        return name
    inside = path.relative_to(APP) if path.is_relative_to(APP) else Path(FOLDER, path.name)
    return str(inside) + (f":{named[1]}" if named[1] else "")


def oddities(
    model: nn.Module, inputs: Spec, keys: Collection[str], classes: bool
) -> list[str | RunError]:
    """Return a line for each thing that looks wrong with a model whose parameters are `keys`.

    `classes` tells a classifier. That the model cannot train on random samples is an error instead.
    """
    lost: str | RunError
    try:
        lost = without_gradient(model, inputs, keys)
    except RunError as error:
        lost = error
    odd = probabilities(model, inputs) if classes else ""
    return [line for line in (lost, odd, unseen_layers(model)) if line]


def without_gradient(model: nn.Module, inputs: Spec, keys: Collection[str]) -> str:
    """Say which of the parameters `keys` get no gradient from random samples; "" if none.

    A branch can be taken by few samples, so more are drawn as long as some parameter has none.
    Raises `RunError` if the model cannot train.
    """
    model, draw = copy.deepcopy(model).cpu().train(), torch.Generator().manual_seed(0)
    parameters = {key: value for key, value in model.named_parameters() if key in keys}
    lost = [*parameters]
    try:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)  # branches can be chosen by chance, too
            for size in PASSES:
                output = model(random_samples(inputs, size, draw))
                if output.requires_grad:
                    output.sum().backward()
                lost = [key for key in lost if parameters[key].grad is None]
                if not lost:
                    return ""
    except Exception as error:  # the author's code can raise anything
        raise RunError(f"cannot train: {_told(error, None)}") from error
    told = f"no gradient in {sum(PASSES)} random samples for {some(lost)}"
    return f"{told}: they stay as they are if forward does not use them, or uses detach()"


def probabilities(model: nn.Module, inputs: Spec) -> str:
    """Say that a classifier's outputs are probabilities, if they look so; "" otherwise."""
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        found = copy.deepcopy(model).cpu().eval()(random_samples(inputs, 2, draw))
    sums = found.sum(-1)
    alike = bool((found >= 0).all()) and torch.allclose(sums, torch.ones_like(sums), atol=1e-4)
    told = "outputs sum to 1 like probabilities, but the loss takes logits: leave out the softmax"
    return told if alike else ""


def unseen_layers(model: nn.Module) -> str:
    """Say where a model holds layers in a plain list, tuple or dict; "" if nowhere.

    Those that are also registered, have nothing to train, or are frozen as a teacher is, may be.
    """
    seen = {*model.modules()}
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            lost = (part for held in _modules_in(value) for part in held.modules())
            trained = (p for part in lost if part not in seen for p in part.parameters(False))
            if any(parameter.requires_grad for parameter in trained):
                told = (
                    "holds layers that PyTorch does not see, so they are neither trained nor sent"
                )
                return f"{path}.{name} {told}: use nn.ModuleList or nn.ModuleDict".lstrip(".")
    return ""


def _modules_in(value: object) -> Iterator[nn.Module]:
    if isinstance(value, nn.Module):
        yield value
    elif isinstance(value, list | tuple | dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _modules_in(each)


def checked(name: str, make: Callable[[], nn.Module], inputs: Spec, outputs: Spec) -> nn.Module:
    """Return what `make` makes: a model of one's own that all processes can make.

    Parameters that its author has frozen (`requires_grad`) are frozen for good. Raises `RunError`,
    with one line, if it is no module, has fewer than two layers, values that are not finite
    float32, or others the next time; or if its forward pass gives wrong shapes, or changes its
    input or the model. What it does in training, `training_pass` checks.
    """
    try:
        model = make()
        if isinstance(model, nn.Module):
            freeze_as_built(model)
        problem = _wrong(model, make) or next(_wrong_passes(model, inputs, outputs), "")
    except RunError as error:
        problem = str(error)
    except Exception as error:  # the author's code can raise anything
        told = _told(error, file_of(name))
        raise RunError(f'model = "{name}": for {inputs}: {told}') from error
    if problem:
        raise RunError(f'model = "{name}": {problem}')
    return model


def _wrong(model: object, make: Callable[[], nn.Module]) -> str:
    """Say what is wrong with a model before it has run; "" if nothing."""
    if not isinstance(model, nn.Module):
        return f"returned a {type(model).__name__}: must return an nn.Module"
    if not hasattr(model, "layers") and not [*model.children()]:  # its parameters are no layers
        told = f"is one layer, a {type(model).__name__}: must have two or more"
        return f"{told}, such as the children of an nn.Sequential, or what layers declares"
    if len(layers := keys_by_layer(model)) < 2:
        frozen = " that are not frozen (requires_grad)" if frozen_keys(model) else ""
        return f"has the layers {', '.join(layers) or '(none)'}{frozen}: must have two or more"
    for key, value in model.state_dict().items():
        if value.is_floating_point() and value.dtype != torch.float32:
            return f"{key} is {value.dtype}: must be float32"
        if not value.isfinite().all():
            return f"{key} has values that are not finite"
    for path, module in model.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse:
            return f"{path} has sparse=True: its gradients must be dense, so leave this out"
    if differ := _differences(model.state_dict(), make().state_dict()):
        return f"{differ[0]} differs the next time: use torch's random numbers and nothing else"
    return ""


def _wrong_passes(model: nn.Module, inputs: Spec, outputs: Spec) -> Iterator[str]:
    """Yield what is wrong with forward passes of two samples and of one, in eval mode."""
    model.eval()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    draw = torch.Generator().manual_seed(0)
    for size in (2, 1):
        x = random_samples(inputs, size, draw)
        given = x.clone()
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            found, again = model(x), model(x)
        if not isinstance(found, Tensor):
            yield f"forward returned a {type(found).__name__}: must return a Tensor"
        elif found.shape != (size, *outputs.shape):
            wanted = [size, *outputs.shape]
            yield f"{size} of {inputs} give {list(found.shape)}: must be {wanted} (outputs.shape)"
        elif not torch.equal(x, given):
            yield "forward changes its input in place"
        elif differ := _differences(before, model.state_dict()):
            yield f"forward in eval mode changes {differ[0]}"
        elif not torch.isfinite(found).all():
            yield "forward returns NaN or infinity for random inputs"
        elif not torch.equal(found, again):
            yield "forward in eval mode gives other outputs the second time"


def random_samples(inputs: Spec, size: int, draw: torch.Generator) -> Tensor:
    """Return random samples [size, ...], which leave torch's own generator as it is."""
    shape = (size, *inputs.shape)
    if inputs.is_whole:
        return torch.randint(inputs.choices, shape, generator=draw)
    return torch.rand(shape, generator=draw)


def _differences(one: dict[str, Tensor], other: dict[str, Tensor]) -> list[str]:
    """Return the keys that only one state has, or that have other values."""
    same = {key for key in one.keys() & other.keys() if torch.equal(one[key], other[key])}
    return [key for key in one | other if key not in same]


def _told(error: Exception, path: Path | None) -> str:
    """Return an error in one line, with the last line of the author's file that led to it."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(path)]
    where = f" ({path.name}, line {lines[-1]})" if path and lines else ""
    if (
        isinstance(error, ModuleNotFoundError)
        and path
        and path.with_name(f"{error.name}.py").exists()
    ):
        where += f"; a model is one file: copy what it needs of {error.name}.py into it"
    if "more than 1 value per channel" in str(error):  # torch's words for a batch of one
        where += "; a BatchNorm must keep running statistics, which single samples need"
    return f"{named(error)}{where}"
