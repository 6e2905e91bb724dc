"""VGG-16 in three widths.

It is for 32x32 images (FedFC): the classifier is 512-4096-4096-classes on a 1x1 feature map. Where
the FedFC paper is silent, we chose configuration D, without BatchNorm and dropout, and Kaiming
initialization. The models whose names end with `-bn` have BatchNorm.
"""

from functools import partial
from itertools import accumulate, pairwise

from torch import nn

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
    "vgg16": _spec(_D, 4096),
    "vgg16-bn": _spec(_D, 4096, bn=True),
    "vgg-small": _spec((16, 32, 64, 128, 128), 512),
    "vgg-tiny": _spec((8, 16, 32, 64, 64), 256),
    "vgg-tiny-bn": _spec((8, 16, 32, 64, 64), 256, bn=True),
}
