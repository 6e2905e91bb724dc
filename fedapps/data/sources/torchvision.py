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


def _by_train_flag(name: str, cls: str, **options: Any) -> partial[Arrays]:
    """Return `make` for those torchvision classes that take `train=True` or `train=False`."""
    train, test = {"train": True, **options}, {"train": False, **options}
    return partial(_download, name=name, cls=cls, train=train, test=test)


def _by_split(name: str, cls: str) -> partial[Arrays]:
    """Return `make` for those torchvision classes that take `split="train"` or `split="test"`."""
    return partial(_download, name=name, cls=cls, train={"split": "train"}, test={"split": "test"})


MNIST = Source("mnist", 10, (0.1307,), (0.3081,), _by_train_flag("mnist", "MNIST"))
FMNIST = Source("fmnist", 10, (0.2860,), (0.3530,), _by_train_flag("fmnist", "FashionMNIST"))
EMNIST = Source(
    "emnist", 62, (0.1736,), (0.3317,), _by_train_flag("emnist", "EMNIST", split="byclass")
)
CIFAR10 = Source(
    "cifar10",
    10,
    (0.4914, 0.4822, 0.4465),
    (0.2470, 0.2435, 0.2616),
    _by_train_flag("cifar10", "CIFAR10"),
)
CIFAR100 = Source(
    "cifar100",
    100,
    (0.5071, 0.4865, 0.4409),
    (0.2673, 0.2564, 0.2762),
    _by_train_flag("cifar100", "CIFAR100"),
)
SVHN = Source(
    "svhn", 10, (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970), _by_split("svhn", "SVHN")
)
