"""LeNet5, and variants with fewer or more hidden layers.

FedCMD's appendix lists only one pooling; we chose one after each convolution.
"""

from functools import partial
from itertools import pairwise

from torch import nn

from fedapps.models.blocks import (
    Shape,
    chain,
    classifier,
    conv_layer,
    fc_layer,
    flatten,
    of_images,
    two_conv5,
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


MODELS = {
    "lenet5": of_images(partial(lenet5, hidden=(120, 84))),
    "lenet5-1": of_images(partial(lenet5, hidden=(120,))),
    "lenet5-3": of_images(partial(lenet5, hidden=(120, 84, 64))),
}
