"""The building blocks of the models: layers, and the modules inside them.

A layer is a block of named modules. It holds all that belongs to it (normalization, activation,
pooling, flattening), so that its output is exactly what the next layer receives.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from fedapps.data.spec import Spec

Shape = tuple[int, int, int]  # channels, height, width
Builder = Callable[[Spec, Spec], nn.Module]
Modules = dict[str, nn.Module]  # by name, in order


@dataclass(frozen=True)
class ModelSpec:
    """A model that users can ask for by name.

    `build` maps the specs of an input and of an output to the model with fresh weights. `takes` are
    the kinds of samples that it can take (`Spec.kind`). `smallest` is the smallest height and width
    of an image, in pixels. `per_step` says whether it can have an output for each step of a series.
    """

    build: Builder
    takes: tuple[str, ...] = ("images",)
    smallest: int = 8
    per_step: bool = False


def of_images(build: Callable[[Shape, int], nn.Module], smallest: int = 8) -> ModelSpec:
    """Return the spec of a model that `build` makes for images and a number of classes."""

    def made(inputs: Spec, outputs: Spec) -> nn.Module:
        channels, height, width = inputs.shape
        return build((channels, height, width), outputs.shape[-1])

    return ModelSpec(made, smallest=smallest)


def chain(**modules: nn.Module) -> nn.Sequential:
    """Return the modules in sequence, under their names."""
    return nn.Sequential(OrderedDict(modules))


def conv_layer(
    inputs: int,
    outputs: int,
    kernel: int,
    after: Modules | None = None,
    *,
    padding: int,
    bn: bool = False,
    bias: bool = True,
    pool: bool = False,
) -> nn.Sequential:
    """Return a layer: convolution [- BatchNorm] [- maxpool2] - ReLU, then the modules `after`.

    The papers pool after ReLU. Pooling first gives the same outputs and gradients, bit for bit, and
    saves three quarters of ReLU's work.
    """
    conv = nn.Conv2d(inputs, outputs, kernel, padding=padding, bias=bias)
    norm = {"bn": nn.BatchNorm2d(outputs)} if bn else {}
    halved = {"pool": nn.MaxPool2d(2)} if pool else {}
    return chain(conv=conv, **norm, **halved, relu=nn.ReLU(inplace=True), **(after or {}))


def fc_layer(inputs: int, outputs: int) -> nn.Sequential:
    """Return a hidden fully connected layer: linear - ReLU."""
    return chain(fc=nn.Linear(inputs, outputs), relu=nn.ReLU(inplace=True))


def classifier(inputs: int, classes: int) -> nn.Sequential:
    """Return the last layer, which computes logits [N, classes]."""
    return chain(fc=nn.Linear(inputs, classes))


def flatten() -> Modules:
    """Return the module that flattens [N, ...] to [N, features]."""
    return {"flatten": nn.Flatten()}


def average() -> Modules:
    """Return global average pooling: [N, C, H, W] to [N, C]."""
    return {"average": nn.AdaptiveAvgPool2d(1), **flatten()}


class Mean(nn.Module):
    """The mean over the steps of [N, T, size]."""

    def forward(self, x: Tensor) -> Tensor:
        """Return [N, size]."""
        return x.mean(1)


def two_conv5(height: int, width: int) -> tuple[int, int]:
    """Return the padding of two (conv5x5, maxpool2) layers, and the number of pixels after them.

    The papers use no padding, which needs images of at least 16 pixels a side. Below that nothing
    would be left of the image, so the padding is 2, with which a convolution keeps the size.
    """
    padding = 0 if min(height, width) >= 16 else 2
    for _ in range(2):
        height, width = ((side + 2 * padding - 4) // 2 for side in (height, width))
    return padding, height * width
