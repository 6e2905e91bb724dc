"""The deep models: MobileNet, ResNet-18, and VGG-16 in three widths.

VGG is for 32x32 images (FedFC): the classifier is 512-4096-4096-classes on a 1x1 feature map. Where
the FedFC paper is silent, we chose configuration D, without BatchNorm and dropout, and Kaiming
initialization. The models whose names end with `-bn` have BatchNorm.
"""

from functools import partial
from itertools import accumulate, pairwise

from torch import Tensor, nn

from fedapps.models.blocks import (
    ModelSpec,
    Modules,
    Shape,
    average,
    chain,
    classifier,
    conv_layer,
    fc_layer,
    of_images,
)


def mobilenet(shape: Shape, classes: int) -> nn.Sequential:
    """FedBABU's MobileNet: v1, width 1, with stride 1 in the first layer for small images.

    Source: Howard et al. 2017, Table 1. The layers are conv1, block1..block13, fc.
    """
    widths = (32, 64, 128, 128, 256, 256, *[512] * 6, 1024, 1024)
    halving = {2, 4, 6, 12}
    blocks = {
        f"block{i}": _separable(*pair, 2 if i in halving else 1, average() if i == 13 else {})
        for i, pair in enumerate(pairwise(widths), 1)
    }
    conv1 = conv_layer(shape[0], 32, 3, padding=1, bn=True, bias=False)
    return chain(conv1=conv1, **blocks, fc=classifier(1024, classes))


def _separable(inputs: int, outputs: int, stride: int, after: Modules) -> nn.Sequential:
    """Return a layer: depthwise conv3x3 and pointwise conv1x1, each with BatchNorm and ReLU."""
    return chain(
        conv1=nn.Conv2d(inputs, inputs, 3, stride, padding=1, groups=inputs, bias=False),
        bn1=nn.BatchNorm2d(inputs),
        relu1=nn.ReLU(inplace=True),
        conv2=nn.Conv2d(inputs, outputs, 1, bias=False),
        bn2=nn.BatchNorm2d(outputs),
        relu2=nn.ReLU(inplace=True),
        **after,
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
        return self.main(x) + self.shortcut(x)


def vgg(
    shape: Shape, classes: int, *, widths: tuple[int, ...], hidden: int, bn: bool
) -> nn.Sequential:
    """VGG configuration D (Simonyan, Zisserman 2015, Table 1), in FedFC on 32x32 images.

    There are 13 conv3x3 with ReLU, in five groups of the given widths, with maxpool2 at the end of
    each group. Then fc1, fc2, fc3 follow on a 1x1 map (averaged if images are larger than 32
    pixels). There is no dropout. The weights have Kaiming initialization. The layers are
    conv1..conv13, fc1..fc3; the groups end at layers 2, 4, 7, 10, 13.
    """
    depths = (2, 2, 3, 3, 3)
    ends = set(accumulate(depths))
    channels = [shape[0]]
    for width, depth in zip(widths, depths, strict=True):
        channels += [width] * depth
    layers: Modules = {}
    for i, pair in enumerate(pairwise(channels), 1):
        after = average() if i == 13 else {}
        layers[f"conv{i}"] = conv_layer(
            *pair, 3, after, padding=1, bn=bn, bias=not bn, pool=i in ends
        )
    fcs = {"fc1": fc_layer(widths[-1], hidden), "fc2": fc_layer(hidden, hidden)}
    return chain(**layers, **fcs, fc3=classifier(hidden, classes)).apply(_kaiming)


def _kaiming(module: nn.Module) -> None:
    """Set Kaiming-normal weights (fan-in) and zero biases.

    With PyTorch's default initialization, VGG without BatchNorm stays at chance at FedFC's learning
    rate; with fan-out it begins to learn much later.
    """
    if isinstance(module, nn.Conv2d | nn.Linear):
        nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def _spec(widths: tuple[int, ...], hidden: int, bn: bool = False) -> ModelSpec:
    return of_images(partial(vgg, widths=widths, hidden=hidden, bn=bn), smallest=32)


_D = (64, 128, 256, 512, 512)


MODELS = {
    "mobilenet": of_images(mobilenet),
    "resnet18": of_images(resnet18),
    "vgg16": _spec(_D, 4096),
    "vgg16-bn": _spec(_D, 4096, bn=True),
    "vgg-small": _spec((16, 32, 64, 128, 128), 512),
    "vgg-tiny": _spec((8, 16, 32, 64, 64), 256),
    "vgg-tiny-bn": _spec((8, 16, 32, 64, 64), 256, bn=True),
}
