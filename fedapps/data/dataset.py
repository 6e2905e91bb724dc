"""A data set: labels and shape are known at once; pixels are read for one client at a time."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

Shape = tuple[int, int, int]  # channels, height, width


class Pixels(Protocol):
    """Where the images of a data set come from."""

    def read(self, indices: np.ndarray) -> np.ndarray:
        """Return rows `indices` (int64 [n]) as uint8 or float32 [n, H, W, C]."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """A labeled set of images: first the samples of the official training set, then the test set.

    `shape` is (C, H, W), as a model gets the images. `labels` is int64 [N], with values in
    0..classes-1. The first `num_train` of the N samples are the official training set. `mean` and
    `std` hold C values each.
    """

    name: str
    classes: int
    shape: Shape
    labels: np.ndarray
    num_train: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    images: Pixels | None  # None: there are no pixels

    def tensors(self, indices: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the samples `indices`: images float32 [n, C, H, W], normalized; labels int64 [n].

        A sample's values do not depend on the other samples that are read with it. Raises
        `RunError` if the file has changed or is broken, or if a pixel is not finite.
        """
        indices = np.asarray(indices, dtype=np.int64)
        assert self.images is not None
        pixels = torch.from_numpy(self.images.read(indices)).permute(0, 3, 1, 2)
        images = pixels.to(torch.float32, memory_format=torch.contiguous_format)
        if pixels.dtype == torch.uint8:
            images.div_(255)
        images.sub_(_per_channel(self.mean)).div_(_per_channel(self.std))
        return images, torch.from_numpy(self.labels[indices])


def _per_channel(values: Sequence[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32).view(-1, 1, 1)


def declared(name: str, shape: Shape, classes: int) -> Dataset:
    """Return a data set without samples: what a server knows about data that stay on devices."""
    half = (0.5,) * shape[0]
    return Dataset(name, classes, shape, np.empty(0, np.int64), 0, half, half, None)
