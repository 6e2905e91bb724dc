"""Models of torchvision as they are, for images of any number of channels; nothing is downloaded.

They have the stem for large images, where `resnet18` has one for small images. torchvision takes a
second to import, so only these models import it.
"""

from operator import attrgetter

from torch import nn

from fedapps.core.errors import needed
from fedapps.models.blocks import Shape, of_images

_SIZES = attrgetter("out_channels", "kernel_size", "stride", "padding")  # of a convolution


def resnet18(shape: Shape, classes: int) -> nn.Module:
    """ResNet-18 of torchvision. The layers are conv1, block1..block8, fc."""
    with needed('model = "torchvision-resnet18"'):
        from torchvision.models import resnet18
    model: nn.Module = resnet18(num_classes=classes)
    _for_channels(model, "conv1", shape[0])
    blocks = {f"block{i + 1}": (f"layer{i // 2 + 1}.{i % 2}",) for i in range(8)}
    return _cut(model, {"conv1": ("conv1", "bn1"), **blocks, "fc": ("fc",)})


def mobilenet_v3_small(shape: Shape, classes: int) -> nn.Module:
    """MobileNetV3-small of torchvision. The layers are conv1, block1..block11, conv2, fc1, fc2."""
    with needed('model = "torchvision-mobilenet-v3-small"'):
        from torchvision.models import mobilenet_v3_small
    model: nn.Module = mobilenet_v3_small(num_classes=classes)
    _for_channels(model.get_submodule("features.0"), "0", shape[0])
    names = ("conv1", *(f"block{i}" for i in range(1, 12)), "conv2")
    layers = {name: (f"features.{i}",) for i, name in enumerate(names)}
    return _cut(model, {**layers, "fc1": ("classifier.0",), "fc2": ("classifier.3",)})


def _for_channels(module: nn.Module, name: str, channels: int) -> None:
    """Replace the first convolution of a module by one for images of so many channels."""
    conv = module.get_submodule(name)
    assert isinstance(conv, nn.Conv2d)
    if channels != conv.in_channels:
        module.add_module(name, nn.Conv2d(channels, *_SIZES(conv), bias=False))


def _cut(model: nn.Module, layers: dict[str, tuple[str, ...]]) -> nn.Module:
    """Declare the layers of a model (`fedapps.models.grouping`)."""
    model.layers = layers  # type: ignore[assignment]
    return model


MODELS = {
    "torchvision-resnet18": of_images(resnet18),
    "torchvision-mobilenet-v3-small": of_images(mobilenet_v3_small),
}
