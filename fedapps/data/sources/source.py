"""What is known about a named data set, and what the ways to get one have in common."""

import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from fedapps.core.errors import RunError, needed
from fedapps.data.npz import KEYS
from fedapps.data.spec import Spec

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Source:
    """A data set that is known by name.

    `classes` is None if the labels in the data give the number of classes, or if there are none.
    `mean` and `std` are those of the training set's pixels in 0..1, for each channel, as commonly
    used. They are constants, so nothing about one client's data enters another client's input.
    `make` maps the folder of data sets to the arrays of the .npz (`KEYS`, possibly `val_*`), which
    it downloads or reads there.

    Of samples that are no images, `inputs` says what they are, `mean` and `std` are empty (the
    training samples of a run give them), and `make` gives the members that `parted` names. If an
    optional `package` carries the data, the extra that installs it has the data set's name.
    """

    name: str
    classes: int | None
    mean: tuple[float, ...]
    std: tuple[float, ...]
    make: Callable[[Path], Arrays]
    inputs: Spec | None = None  # None: images
    package: str = ""

    def read(self, root: Path) -> Arrays:
        """Return the arrays of the .npz; raises `RunError` if the package with them is missing."""
        if self.package and find_spec(self.package) is None:
            raise RunError(
                f'dataset = "{self.name}": needs {self.package}; '
                f"pip install 'fedapps[{self.name}]'"
            )
        with needed(f'dataset = "{self.name}"'):
            return self.make(root)


def named_arrays(*values: np.ndarray) -> Arrays:
    """Give training images, training labels, test images and test labels their names."""
    return dict(zip(KEYS, map(np.ascontiguousarray, values), strict=True))


def parted(
    inputs: np.ndarray, targets: np.ndarray, test: np.ndarray, groups: np.ndarray | None = None
) -> Arrays:
    """Give samples that are no images the names of their members.

    `test` (bool [N]) says which samples are for the test, and `groups` (str [N]) who each is from.
    """
    values = {"inputs": inputs, "targets": targets}
    values |= {} if groups is None else {"groups": groups}
    return {
        f"{part}_{kind}": np.ascontiguousarray(array[rows])
        for part, rows in (("train", ~test), ("test", test))
        for kind, array in values.items()
    }


@contextmanager
def downloading(name: str, root: Path) -> Iterator[None]:
    """Turn a failed download into a `RunError` of one line.

    The libraries raise URLError, RuntimeError, BadZipFile and others. Any error here is a failed
    download, and the advice is always the same.
    """
    try:
        yield
    except ModuleNotFoundError:
        raise  # `Source.read` says how to install it
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
