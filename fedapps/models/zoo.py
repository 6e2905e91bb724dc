"""The models by name, and how to build one with weights that depend on the seed alone."""

import torch
from torch import nn

from fedapps.core.words import nearest
from fedapps.models import cnn, conv4, lenet, mobilenet, resnet, vgg
from fedapps.models.blocks import ModelSpec, Shape

MODELS: dict[str, ModelSpec] = {
    **cnn.MODELS,
    **lenet.MODELS,
    **conv4.MODELS,
    **mobilenet.MODELS,
    **resnet.MODELS,
    **vgg.MODELS,
}


def build(name: str, shape: Shape, classes: int, seed: int) -> nn.Sequential:
    """Return the named model with fresh weights, on the CPU, for images of `shape`.

    `shape` is (channels, height, width). The model maps float images [N, channels, height, width]
    to logits [N, classes]. The weights are a pure function of the four arguments; the global random
    state stays as it is.

    Raises ValueError for an unknown name, a shape that is not (channels, height, width), images
    that are too small for the model, or fewer than 2 classes.
    """
    _check(name, shape, classes)
    with torch.random.fork_rng(devices=[]):
        # torch.manual_seed would also reseed the GPUs, which fork_rng does not restore here
        torch.default_generator.manual_seed(int(seed))
        return MODELS[name].build(shape, classes)


def size(name: str, shape: Shape, classes: int) -> int:
    """Return how many values the state of a model has; takes no memory for them.

    Raises ValueError as `build` does.
    """
    _check(name, shape, classes)
    with torch.device("meta"):
        return sum(
            value.numel() for value in MODELS[name].build(shape, classes).state_dict().values()
        )


def _check(name: str, shape: Shape, classes: int) -> None:
    if name not in MODELS:
        close = nearest(name.lower(), MODELS, least=0.0)
        raise ValueError(
            f"unknown model {name!r}: nearest is {close!r}; allowed: {', '.join(MODELS)}"
        )
    if len(shape) != 3 or min(shape) < 1:
        raise ValueError(
            f"model {name!r}: shape must be (channels, height, width), each at least 1, got {shape}"
        )
    _, height, width = shape
    smallest = MODELS[name].smallest
    if min(height, width) < smallest:
        raise ValueError(
            f"model {name!r}: images of {height}x{width} pixels are too small,"
            f" smallest is {smallest}x{smallest}"
        )
    if classes < 2:
        raise ValueError(f"model {name!r}: classes must be at least 2, got {classes}")
