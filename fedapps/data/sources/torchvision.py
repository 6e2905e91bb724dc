"""The data sets that torchvision downloads.

Two choices are ours, because the papers do not state them: SVHN is without `extra`, and EMNIST is
`byclass` (62 classes).
"""

import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedapps.data.sources.source import Arrays, Source, downloading, named_arrays


def _download(
    root: Path, *, name: str, cls: str, train: Mapping[str, Any], test: Mapping[str, Any]
) -> Arrays:
    """Download a data set with torchvision's class `cls`, which knows addresses and checksums.

    `train` and `test` are the class's options for the two sets. If what is in the folder cannot be
    read, it is downloaded again: MNIST and its kind take a file that was cut off for the whole.
    """

    def made(folder: Path) -> list[Any]:
        kind = getattr(torchvision.datasets, cls)
        return [kind(root=folder, download=True, **options) for options in (train, test)]

    with downloading(name, root):
        import torchvision

        was_there = (root / cls / "raw").is_dir()
        try:
            sets = made(root)
        except Exception:
            if not was_there:
                raise
            with tempfile.TemporaryDirectory(dir=root) as folder:
                sets = made(Path(folder))
    (train_images, train_labels), (test_images, test_labels) = map(_images_and_labels, sets)
    return named_arrays(train_images, train_labels, test_images, test_labels)


def _images_and_labels(data: Any) -> tuple[np.ndarray, np.ndarray]:
    images = np.asarray(data.data)
    if images.ndim == 4 and images.shape[1] == 3:  # SVHN is [N, C, H, W]
        images = images.transpose(0, 2, 3, 1)
    return images, np.asarray(data.labels if hasattr(data, "labels") else data.targets)


def _source(
    name: str,
    cls: str,
    classes: int,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    sets: tuple[Mapping[str, Any], Mapping[str, Any]] = ({"train": True}, {"train": False}),
) -> Source:
    """Return a source; `sets` are the options of torchvision's class for both of its sets."""
    make = partial(_download, name=name, cls=cls, train=sets[0], test=sets[1])
    return Source(name, classes, mean, std, make)


BY_CLASS = {"train": True, "split": "byclass"}, {"train": False, "split": "byclass"}
SPLITS = {"split": "train"}, {"split": "test"}
MNIST = _source("mnist", "MNIST", 10, (0.1307,), (0.3081,))
FMNIST = _source("fmnist", "FashionMNIST", 10, (0.2860,), (0.3530,))
EMNIST = _source("emnist", "EMNIST", 62, (0.1736,), (0.3317,), BY_CLASS)
CIFAR10 = _source("cifar10", "CIFAR10", 10, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
CIFAR100 = _source("cifar100", "CIFAR100", 100, (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))
SVHN = _source("svhn", "SVHN", 10, (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970), SPLITS)
