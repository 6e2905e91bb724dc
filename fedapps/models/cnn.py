"""FedSeq's CNN."""

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


MODELS = {"cnn": of_images(cnn)}
