"""The models by name, and how to build one with weights that depend on the seed alone."""

import torch
from torch import nn

from fedapps.core.words import nearest
from fedapps.data.spec import Spec, image_spec
from fedapps.models import deep, mlp, of_torchvision, own, sequences, small, vit
from fedapps.models.blocks import ModelSpec, Shape

_FAMILIES = (small, deep, vit, of_torchvision, mlp, sequences)
MODELS: dict[str, ModelSpec] = {k: v for family in _FAMILIES for k, v in family.MODELS.items()}


def build(name: str, inputs: Spec | Shape, outputs: Spec | int, seed: int) -> nn.Module:
    """Return the named model with fresh weights, on the CPU, for samples `inputs`.

    The model maps samples [N, *inputs.shape] to outputs [N, *outputs.shape]. A shape alone stands
    for images (channels, height, width), a number alone for the logits of so many classes. The
    weights are a pure function of the four arguments; the global random state stays as it is.

    Raises ValueError for an unknown name, samples that the model does not take, images that are too
    small for it, or fewer than 2 classes; and `RunError` for a model of one's own that cannot be
    used (`fedapps.models.own`).
    """
    model, *specs = _checked(name, inputs, outputs)

    def make() -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            # torch.manual_seed would also reseed the GPUs, which fork_rng does not restore here
            torch.default_generator.manual_seed(int(seed))
            return model.build(*specs)

    return make() if name in MODELS else own.checked(name, make, *specs)


def size(name: str, inputs: Spec | Shape, outputs: Spec | int) -> int:
    """Return how many values the state of a model has; takes no memory for them.

    A model of one's own whose function needs real numbers, such as `tensor.item()`, is built for
    it. Raises ValueError as `build` does.
    """
    model, *specs = _checked(name, inputs, outputs)
    try:
        with torch.device("meta"):
            made = model.build(*specs)
    except Exception:  # the author's code can raise anything; that file is the user's own
        if name in MODELS:
            raise
        with torch.random.fork_rng(devices=[]):
            made = model.build(*specs)
    return sum(value.numel() for value in made.state_dict().values())


def spec_of(name: str) -> ModelSpec:
    """Return the spec of a model by its name; raises ValueError if there is none.

    Raises `RunError` for a file with a model of one's own that cannot be used.
    """
    if name in MODELS and name in own.names():
        raise ValueError(
            f"model {name!r}: models/{name}.py has the name of another model; rename it"
        )
    model = MODELS.get(name) or own.spec_of(name)
    if model is None:
        known = (*MODELS, *own.names())
        close = nearest(name.lower(), known, least=0.0)
        raise ValueError(
            f"unknown model {name!r}: nearest is {close!r}; one of your own is a file of this name"
            f' in {own.folder()}, or model = "/path/mine.py"; allowed: {", ".join(known)}'
        )
    return model


def of_file(name: str) -> str:
    """Return the name of a model file's model, as that of a model that is here (`own.in_app`).

    Raises `ValueError` if none is called so.
    """
    name = own.in_app(name)
    if name not in MODELS and own.file_of(name) is None:
        raise ValueError(
            f"unknown model {name!r}: if it is your own, put {name}.py into {own.FOLDER}/ of this"
            " project's folder here, and install it again"
            " (docs/devices.md#use-the-personalized-model)"
        )
    return name


def _checked(name: str, inputs: Spec | Shape, outputs: Spec | int) -> tuple[ModelSpec, Spec, Spec]:
    model = spec_of(name)
    if not isinstance(inputs, Spec):
        if len(inputs) != 3 or min(inputs) < 1:
            raise ValueError(
                f"model {name!r}: shape must be (channels, height, width), each at least 1,"
                f" got {inputs}"
            )
        inputs = image_spec(inputs)
    if inputs.kind not in model.takes:
        fitting = ", ".join(other for other, spec in MODELS.items() if inputs.kind in spec.takes)
        rows = inputs.kind == "tables" and "series" in model.takes
        raise ValueError(
            f"model {name!r}: takes {' or '.join(model.takes)}, but the data are {inputs};"
            f" use {fitting or 'a model of your own'}"
            + ", or set window if the rows are steps of a recording" * rows
            + (", or save floats if they are a table" if inputs.is_whole else "")
        )
    if inputs.image and min(inputs.shape[1:]) < model.smallest:
        height, width = inputs.shape[1:]
        raise ValueError(
            f"model {name!r}: images of {height}x{width} pixels are too small,"
            f" smallest is {model.smallest}x{model.smallest}"
        )
    if isinstance(outputs, int):
        if outputs < 2:
            raise ValueError(f"model {name!r}: classes must be at least 2, got {outputs}")
        outputs = Spec((outputs,))
    if len(outputs.shape) > 1 and not model.per_step:
        raise ValueError(
            f"model {name!r}: has one output a sample, but the targets are {outputs.shape[0]} a"
            " sample"
        )
    return model, inputs, outputs
