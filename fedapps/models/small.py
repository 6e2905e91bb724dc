"""The small models of the papers: FedSeq's CNN, LeNet5 and its variants, FedBABU's conv4.

FedCMD's appendix lists only one pooling of LeNet5; we chose one after each convolution.
"""

from functools import partial
from itertools import pairwise

from torch import nn

from fedapps.models.blocks import (
    Modules,
    Shape,
    chain,
    classifier,
    conv_layer,
    fc_layer,
    flatten,
    of_images,
    two_conv5,
)


def cnn(shape: Shape, classes: int) -> nn.Sequential:
    """FedSeq's CNN (setting of its experiments): conv 32, conv 64, fc 512, classifier `fc2`.

    Convolutions are 5x5 without padding, and each is followed by ReLU and maxpool2. For images with
    a side below 16 pixels, the padding is 2.
    """
    channels, height, width = shape
    padding, pixels = two_conv5(height, width)
    return chain(
        conv1=conv_layer(channels, 32, 5, padding=padding, pool=True),
        conv2=conv_layer(32, 64, 5, flatten(), padding=padding, pool=True),
        fc1=fc_layer(64 * pixels, 512),
        fc2=classifier(512, classes),
    )


def lenet5(shape: Shape, classes: int, *, hidden: tuple[int, ...]) -> nn.Sequential:
    """FedCMD's LeNet5 (appendix): conv 6, conv 16, the `hidden` fc layers, `classifier`.

    Convolutions are 5x5 with bias and without padding, and each is followed by BatchNorm, ReLU and
    maxpool2. For images with a side below 16 pixels, the padding is 2.
    """
    channels, height, width = shape
    padding, pixels = two_conv5(height, width)
    widths = (16 * pixels, *hidden)
    return chain(
        conv1=conv_layer(channels, 6, 5, padding=padding, bn=True, pool=True),
        conv2=conv_layer(6, 16, 5, flatten(), padding=padding, bn=True, pool=True),
        **{f"fc{i}": fc_layer(*pair) for i, pair in enumerate(pairwise(widths), 1)},
        classifier=classifier(widths[-1], classes),
    )


def conv4(shape: Shape, classes: int) -> nn.Sequential:
    """FedBABU's second model: 4 x (conv3x3 64 - BatchNorm - ReLU - maxpool2), classifier `fc`.

    A pooling is left out if a side of the feature map has only 1 pixel left (images below 16
    pixels).
    """
    channels, height, width = shape
    layers: Modules = {}
    for i in range(1, 5):
        pools = min(height, width) > 1
        inputs, after = channels if i == 1 else 64, flatten() if i == 4 else {}
        layers[f"conv{i}"] = conv_layer(
            inputs, 64, 3, after, padding=1, bn=True, bias=False, pool=pools
        )
        if pools:
            height, width = height // 2, width // 2
    return chain(**layers, fc=classifier(64 * height * width, classes))


MODELS = {
    "cnn": of_images(cnn),
    "lenet5": of_images(partial(lenet5, hidden=(120, 84))),
    "lenet5-1": of_images(partial(lenet5, hidden=(120,))),
    "lenet5-3": of_images(partial(lenet5, hidden=(120, 84, 64))),
    "conv4": of_images(conv4),
}
