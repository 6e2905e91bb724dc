"""The images and labels of an .npz file: checked when it is opened, read when they are needed."""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np

from fedapps.core.errors import RunError
from fedapps.core.words import number
from fedapps.data.dataset import Shape
from fedapps.data.npz import KEYS, Array, headers, members, reading

MAX_CLASSES = 65_536  # a larger label is a mistake that would cost a huge last layer


@dataclass(frozen=True)
class Images:
    """The images of one .npz file: first train, then val (if there is any), then test.

    Rows are read from the file each time that they are needed. So no process holds all pixels; the
    page cache of the machine holds them once for all processes.
    """

    arrays: tuple[Array, ...]

    @property
    def shape(self) -> Shape:
        """(C, H, W)."""
        return _shape(self.arrays[0])

    @cached_property
    def starts(self) -> np.ndarray:
        """The number of the first row of every array, and at the end the number of all rows."""
        return np.cumsum([0, *(array.shape[0] for array in self.arrays)])

    def read(self, indices: np.ndarray) -> np.ndarray:
        """Read rows `indices` (int64 [n]) as uint8 or float32 [n, H, W, C].

        Raises `RunError` for float values that are not finite.
        """
        if len(indices) and not 0 <= indices.min() <= indices.max() < self.starts[-1]:
            raise IndexError(f"{self.arrays[0].path}: samples are 0..{self.starts[-1] - 1}")
        channels, height, width = self.shape
        out = np.empty((len(indices), height, width, channels), self.arrays[0].dtype)
        array_of = np.searchsorted(self.starts, indices, side="right") - 1
        rows = indices - self.starts[array_of]
        self._fill(out, array_of, rows)
        if out.dtype == np.uint8:
            return out
        with np.errstate(over="ignore"):  # the check below reports it more clearly
            out = out.astype(np.float32, copy=False)
        broken = np.flatnonzero(~np.isfinite(out).all(axis=(1, 2, 3)))
        if len(broken):
            array, row = self.arrays[array_of[broken[0]]], rows[broken[0]]
            raise RunError(
                f"{array.path}: {array.key}[{row}] holds NaN or infinity; must be finite"
            )
        return out

    def _fill(self, out: np.ndarray, array_of: np.ndarray, rows: np.ndarray) -> None:
        """Read rows into `out`; consecutive rows of one array are read at once."""
        ends = np.flatnonzero((np.diff(rows) != 1) | (np.diff(array_of) != 0)) + 1
        path = self.arrays[0].path
        with reading(path), path.open("rb") as file:
            for first, last in pairwise([0, *ends.tolist(), len(rows)]):
                if first < last:
                    array = self.arrays[array_of[first]]
                    array.read(file, int(rows[first]), out[first:last])


def open_npz(path: Path) -> tuple[Images, np.ndarray, int]:
    """Open an .npz: return its images, labels (int64 [N]), and the size of the training set.

    Headers and labels are checked, pixels are not read. `val_*` is joined to the training set.
    Raises `RunError` for members that are missing or do not fit.
    """
    arrays = headers(path)
    parts = ("train", "val", "test") if "val_images" in arrays else ("train", "test")
    for key in (f"{part}_{kind}" for part in parts for kind in ("images", "labels")):
        if key not in arrays:
            raise RunError(
                f"{path}: key {key} is missing; found {', '.join(members(path)) or 'none'};"
                f" needed {', '.join(KEYS)}"
            )
    images = tuple(arrays[f"{part}_images"] for part in parts)
    labels = tuple(arrays[f"{part}_labels"] for part in parts)
    for image, label in zip(images, labels, strict=True):
        check_images(image, images[0])
        _check_labels(label, image)
    values = [_label_values(label) for label in labels]
    return Images(images), np.concatenate(values), sum(map(len, values[:-1]))


def check_images(images: Array, first: Array) -> None:
    """Refuse an array that does not hold images, or whose images do not match the `first` one."""
    where = f"{images.path}: {images.key}"
    if images.dtype != np.uint8 and images.dtype.kind != "f":
        raise RunError(f"{where} has dtype {images.dtype}; must be uint8 or float")
    if len(images.shape) not in (3, 4):
        raise RunError(f"{where} has shape {list(images.shape)}; must be [N, H, W] or [N, H, W, C]")
    if len(images.shape) == 4 and images.shape[1] in (1, 3) and images.shape[3] not in (1, 3):
        raise RunError(
            f"{where} has shape {list(images.shape)}, which looks like [N, C, H, W]; must be"
            f" [N, H, W] or [N, H, W, C]: save {images.key}.transpose(0, 2, 3, 1)"
        )
    if min(images.shape) < 1:
        raise RunError(f"{where} has shape {list(images.shape)}; every side must be at least 1")
    if _shape(images) != _shape(first) or images.dtype != first.dtype:
        raise RunError(
            f"{where} holds {images.dtype} images of [C, H, W] = {list(_shape(images))}; must be"
            f" {first.dtype} images of {list(_shape(first))} as in {first.key}"
        )


def check_pixels(images: Images) -> None:
    """Refuse float pixels outside 0..1, which mean and deviation 0.5 would not normalize."""
    first, count = images.arrays[0], int(images.starts[-1])
    if first.dtype == np.uint8:
        return
    for begin in range(0, count, 1024):
        pixels = images.read(np.arange(begin, min(begin + 1024, count)))
        if pixels.min() < 0 or pixels.max() > 1:
            raise RunError(
                f"{first.path}: float pixels from {pixels.min():g} to {pixels.max():g};"
                " must be 0..1, or uint8"
            )


def _check_labels(labels: Array, images: Array) -> None:
    where = f"{labels.path}: {labels.key}"
    if labels.dtype.kind not in "iu":
        raise RunError(f"{where} has dtype {labels.dtype}; must be integers")
    if len(labels.shape) not in (1, 2) or labels.shape[1:] not in ((), (1,)):
        raise RunError(f"{where} has shape {list(labels.shape)}; must be [N] or [N, 1]")
    if labels.shape[0] != images.shape[0]:
        raise RunError(
            f"{where} holds {number(labels.shape[0], 'label')} for"
            f" {number(images.shape[0], 'image')} of {images.key}; the numbers must be equal"
        )


def _label_values(labels: Array) -> np.ndarray:
    """Read labels as int64 [N]; raises `RunError` for values that cannot be labels of classes."""
    values = labels.whole.reshape(-1)
    low, high = int(values.min()), int(values.max())
    if low < 0 or high >= MAX_CLASSES:
        raise RunError(
            f"{labels.path}: {labels.key} holds label {low if low < 0 else high};"
            f" must be 0..{MAX_CLASSES - 1}"
        )
    return values.astype(np.int64)


def _shape(images: Array) -> Shape:
    """Return (C, H, W) of images [N, H, W] or [N, H, W, C]."""
    height, width, *channels = images.shape[1:]
    return (channels[0] if channels else 1, height, width)
