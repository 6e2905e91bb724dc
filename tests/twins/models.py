"""Two small models in plain PyTorch, which both sides of a comparison train."""

from collections import OrderedDict

from torch import nn


def plain(inputs, outputs):
    """Five layers without BatchNorm."""
    return _chain(
        conv1=[nn.Conv2d(inputs.shape[0], 3, 3, stride=2), nn.Tanh()],
        conv2=[nn.Conv2d(3, 4, 2), nn.Tanh(), nn.Flatten()],
        fc1=[nn.Linear(16, 9), nn.Tanh()],
        fc2=[nn.Linear(9, 8), nn.Tanh()],
        head=[nn.Linear(8, outputs.shape[-1])],
    )


def normed(inputs, outputs):
    """Four layers, two of them with BatchNorm; `fc1` cannot be trained on a single sample."""
    return _chain(
        conv1=[nn.Conv2d(inputs.shape[0], 4, 3, stride=2), nn.BatchNorm2d(4), nn.Tanh()],
        conv2=[nn.Conv2d(4, 4, 2), nn.Tanh(), nn.Flatten()],
        fc1=[nn.Linear(16, 8), nn.BatchNorm1d(8), nn.Tanh()],
        head=[nn.Linear(8, outputs.shape[-1])],
    )


def _chain(**layers):
    return nn.Sequential(OrderedDict((name, nn.Sequential(*all_)) for name, all_ in layers.items()))
