"""Opens a data set by its name, or by the path of the user's own file."""

from functools import partial
from pathlib import Path

import numpy as np

from fedapps.core.errors import RunError
from fedapps.core.files import in_turn, write_whole, writing
from fedapps.core.paths import absolute, expanded
from fedapps.core.words import nearest, number
from fedapps.data.dataset import Dataset
from fedapps.data.images import open_npz
from fedapps.data.npz import KEYS
from fedapps.data.own import of_user
from fedapps.data.sources import NAMES, SOURCES
from fedapps.data.sources.source import Arrays


def load(name: str, root: str) -> Dataset:
    """Open a data set by name, or the user's own `.npz` by its absolute path (`~` allowed).

    If a data set is missing in the folder `root` (`~` allowed), it is downloaded to there, or made
    from its unpacked archive. Raises `RunError` for an unknown name, if there is nothing to make
    the data set from, and for a file with wrong contents.
    """
    if name.endswith(".npz"):
        return of_user(absolute(name, "dataset"))
    if name not in SOURCES and _is_path(name):
        what = "is a folder" if expanded(name, "dataset").is_dir() else "is not an .npz file"
        raise RunError(
            f'dataset = "{name}": {what}; own data is an .npz file with {", ".join(KEYS)}'
            ' (folders of pictures: only on devices, dataset = "device")'
        )
    if name not in SOURCES:
        close = nearest(name.lower(), NAMES, least=0.0)
        raise RunError(
            f'dataset = "{name}": unknown, nearest is {close}; allowed: {", ".join(NAMES)},'
            " or the absolute path of an .npz file"
        )
    path = absolute(root, "data-root") / f"{name}.npz"
    if not path.exists():
        _make(name, path)
    return _named(name, path)


def _is_path(name: str) -> bool:
    return "/" in name or name.startswith("~") or Path(name).suffix != ""


def _named(name: str, path: Path) -> Dataset:
    source = SOURCES[name]
    images, labels, num_train = open_npz(path)
    if images.shape[0] != len(source.mean):
        raise RunError(
            f"{path}: images have {number(images.shape[0], 'channel')};"
            f" {name} has {len(source.mean)}"
        )
    highest = int(labels.max())
    classes = source.classes or highest + 1
    if highest >= classes:
        raise RunError(f"{path}: label {highest} found; {name} has labels 0..{classes - 1}")
    return Dataset(name, classes, images.shape, labels, num_train, source.mean, source.std, images)


def _make(name: str, path: Path) -> None:
    """Write the .npz of a known data set; other processes see either no file or the whole one.

    Of several processes that need it at once, one makes it: torchvision downloads to a fixed name.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with in_turn(path.parent):
        if not path.exists():
            write_whole(path, partial(_save, SOURCES[name].make(path.parent)))


def _save(arrays: Arrays, path: Path) -> None:
    with path.open("wb") as file:  # given a name, NumPy demands its own suffix
        np.savez(file, **arrays)  # type: ignore[arg-type]
