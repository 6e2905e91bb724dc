"""ResNet-18."""

from itertools import pairwise

from torch import Tensor, nn

from fedapps.models.blocks import (
    Modules,
    Shape,
    average,
    chain,
    classifier,
    conv_layer,
    of_images,
)


def resnet18(shape: Shape, classes: int) -> nn.Sequential:
    """ResNet-18 with the stem for small images: conv3x3, stride 1, no pooling.

    Source: He et al. 2016, Table 1. The layers are conv1, block1..block8, fc.
    """
    widths = (64, 64, 64, 128, 128, 256, 256, 512, 512)
    blocks = {
        f"block{i}": _residual(a, b, 1 if a == b else 2, average() if i == 8 else {})
        for i, (a, b) in enumerate(pairwise(widths), 1)
    }
    conv1 = conv_layer(shape[0], 64, 3, padding=1, bn=True, bias=False)
    return chain(conv1=conv1, **blocks, fc=classifier(512, classes))


def _residual(inputs: int, outputs: int, stride: int, after: Modules) -> nn.Sequential:
    """Return a layer: the basic residual block, two conv3x3 with BatchNorm beside a shortcut."""
    main = chain(
        conv1=nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
        bn1=nn.BatchNorm2d(outputs),
        relu=nn.ReLU(inplace=True),
        conv2=nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
        bn2=nn.BatchNorm2d(outputs),
    )
    shortcut: nn.Module = nn.Identity()
    if stride != 1 or inputs != outputs:
        conv = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
        shortcut = chain(conv=conv, bn=nn.BatchNorm2d(outputs))
    return chain(sum=Add(main, shortcut), relu=nn.ReLU(inplace=True), **after)


class Add(nn.Module):
    """main(x) + shortcut(x)."""

    def __init__(self, main: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.main = main
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        total: Tensor = self.main(x) + self.shortcut(x)
        return total


MODELS = {"resnet18": of_images(resnet18)}
