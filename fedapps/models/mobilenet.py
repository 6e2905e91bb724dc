"""MobileNet."""

from itertools import pairwise

from torch import nn

from fedapps.models.blocks import (
    Modules,
    Shape,
    average,
    chain,
    classifier,
    conv_layer,
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


MODELS = {"mobilenet": of_images(mobilenet)}
