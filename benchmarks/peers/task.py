"""What peers train on: the model `cnn` of this project in plain PyTorch, data, and stamped lines.

It imports nothing of this project, because peers have environments of their own.
"""

from datetime import datetime
from functools import lru_cache

import numpy as np
import torch
from torch import nn

COHORT, CLIENTS, BATCH, LR = 10, 100, 10, 0.01


def build() -> nn.Module:
    """Return the model, for images of 3 x 32 x 32 and ten classes, in the memory format of ours."""
    torch.manual_seed(0)
    convolutions = [
        layer
        for inputs, outputs in ((3, 32), (32, 64))
        for layer in (nn.Conv2d(inputs, outputs, 5), nn.MaxPool2d(2), nn.ReLU())
    ]
    linear = (nn.Flatten(), nn.Linear(64 * 5 * 5, 512), nn.ReLU(), nn.Linear(512, 10))
    return nn.Sequential(*convolutions, *linear).to(memory_format=torch.channels_last)


@lru_cache  # once in each process
def shares(path: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the images (uint8, [50, 32, 32, 3]) and labels (int64) of each client."""
    with np.load(path) as data:
        images, labels = data["train_images"], data["train_labels"]
    parts = zip(np.split(images, CLIENTS), np.split(labels, CLIENTS), strict=True)
    return [(x, y.astype(np.int64)) for x, y in parts]


def tensor(images: np.ndarray) -> torch.Tensor:
    """Return images, [..., 32, 32, 3], as floats around 0 with the channels first."""
    return (torch.from_numpy(images).float() / 255 - 0.5).div(0.25).movedim(-1, -3)


def stamp(round_: int) -> None:
    """Print that a round is over, and when."""
    print(f"{datetime.now()} round {round_}", flush=True)


def did(model: nn.Module, steps: float) -> None:
    """Print what work there was: the number of weights, and of SGD steps in a round."""
    weights = sum(parameter.numel() for parameter in model.parameters())
    print(f"did weights={weights} steps={round(steps)}", flush=True)
