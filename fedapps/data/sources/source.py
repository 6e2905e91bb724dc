"""What is known about a named data set, and what the ways to get one have in common."""

import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedapps.core.errors import RunError
from fedapps.data.npz import KEYS

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Source:
    """A data set that is known by name.

    `classes` is None if the labels in the data give the number of classes. `mean` and `std` are
    those of the training set's pixels in 0..1, for each channel, as commonly used. They are
    constants, so nothing about one client's data enters another client's input. `make` maps the
    folder of data sets to the arrays of the .npz (`KEYS`, possibly `val_*`), which it downloads or
    reads there.
    """

    name: str
    classes: int | None
    mean: tuple[float, ...]
    std: tuple[float, ...]
    make: Callable[[Path], Arrays]


def named_arrays(*values: np.ndarray) -> Arrays:
    """Give training images, training labels, test images and test labels their names."""
    return dict(zip(KEYS, map(np.ascontiguousarray, values), strict=True))


@contextmanager
def downloading(name: str, root: Path) -> Iterator[None]:
    """Turn a failed download into a `RunError` of one line.

    The libraries raise URLError, RuntimeError, BadZipFile and others. Any error here is a failed
    download, and the advice is always the same.
    """
    try:
        yield
    except Exception as error:
        reason = textwrap.shorten(f"{type(error).__name__}: {error}", 200)
        raise RunError(
            f'dataset = "{name}": download failed ({reason}); check the network, or put'
            f" {name}.npz with {', '.join(KEYS)} into {root}"
        ) from error


def archive(name: str, folder: Path, source: str) -> Path:
    """Return the folder of an unpacked archive; raises `RunError` that says where to get it."""
    if not (folder / "train").is_dir():
        raise RunError(
            f'dataset = "{name}": {folder / "train"} is missing; unpack {source} to {folder},'
            f" or put {name}.npz with {', '.join(KEYS)} into {folder.parent}"
        )
    return folder
