"""Data of a user or of a device: an .npz file, or a folder of pictures."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedapps.core.errors import RunError
from fedapps.data.dataset import Dataset, Shape, declared
from fedapps.data.images import Images, check_images, check_pixels, open_npz
from fedapps.data.npz import class_names, headers
from fedapps.data.pictures import Pictures, folders, picture_files, picture_of


def of_user(path: Path) -> Dataset:
    """Open the user's own .npz; the highest label gives the number of classes."""
    images, labels, num_train = open_npz(path)
    half = (0.5,) * images.shape[0]
    classes = int(labels.max()) + 1
    return Dataset(path.stem, classes, images.shape, labels, num_train, half, half, images)


def of_device(path: Path, shape: Shape, names: Sequence[str]) -> Dataset:
    """Open a device's own data, an .npz or a folder, and check that they fit the run.

    A folder contains `train/<class>/` and `test/<class>/` for every class, with .png, .jpg or .jpeg
    files. If a device has no samples of a class, the folder of that class is empty. An .npz can
    contain `class_names`. Raises `RunError` if the shape, a label or a class name does not fit the
    run.
    """
    if path.is_dir():
        return _class_folders(path, shape, names)
    images, labels, num_train = open_npz(path)
    if images.shape != shape:
        raise RunError(
            f"{path}: images of [C, H, W] = {list(images.shape)}; the run has {list(shape)}"
            " (input-shape)"
        )
    if (highest := int(labels.max())) >= len(names):
        raise RunError(
            f"{path}: label {highest} found; the run has 0..{len(names) - 1} (num-classes)"
        )
    check_pixels(images)
    own = class_names(path)
    if own and own != [*names]:
        raise RunError(
            f"{path}: class_names are {','.join(own)}; the run has {','.join(names)} (class-names)"
        )
    return dataclasses.replace(
        declared(path.stem, shape, len(names)), labels=labels, num_train=num_train, images=images
    )


def unlabelled(path: Path, shape: Shape, classes: int) -> Dataset:
    """Open images without labels: the key `images` of an .npz, or else `test_images`.

    Raises `RunError` if the shape is not that of the model.
    """
    arrays = headers(path)
    array = arrays.get("images") or arrays.get("test_images")
    if array is None:
        raise RunError(f"{path}: key images is missing; needed images or test_images")
    check_images(array, array)
    images = Images((array,))
    if images.shape != shape:
        raise RunError(
            f"{path}: images of [C, H, W] = {list(images.shape)}; the model takes {list(shape)}"
        )
    check_pixels(images)
    labels = np.zeros(array.shape[0], np.int64)
    return dataclasses.replace(declared(path.stem, shape, classes), labels=labels, images=images)


def _class_folders(folder: Path, shape: Shape, names: Sequence[str]) -> Dataset:
    """Read the pictures in `{train,test}/<class>/`; raises `RunError` if they do not fit."""
    files = [_labelled_files(folder / part, names) for part in ("train", "test")]
    images = [picture_of(file, shape) for part in files for file, _ in part]
    return dataclasses.replace(
        declared(folder.name, shape, len(names)),
        labels=np.array([label for part in files for _, label in part], np.int64),
        num_train=len(files[0]),
        images=Pictures(np.stack(images)),
    )


def _labelled_files(folder: Path, names: Sequence[str]) -> list[tuple[Path, int]]:
    """List the pictures in `<class>/` with their labels; raises `RunError` if there are none."""
    there = folders(folder)
    for name in sorted(set(there).symmetric_difference(names)):
        what = "is not a class of the run" if name in there else "is missing"
        raise RunError(
            f"{folder / name}: {what}; must be one folder, possibly empty, for each of "
            f"{', '.join(names)}"
        )
    files = [
        (file, label) for label, name in enumerate(names) for file in picture_files(folder / name)
    ]
    if not files:
        raise RunError(f"{folder}: no .png, .jpg or .jpeg files; needs at least one")
    return files
