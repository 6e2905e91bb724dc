"""FedBABU's second model."""

from torch import nn

from fedapps.models.blocks import (
    Modules,
    Shape,
    chain,
    classifier,
    conv_layer,
    flatten,
    of_images,
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


MODELS = {"conv4": of_images(conv4)}
