"""Arrays of images in an .npz file: how they are checked, and what their shape means."""

import numpy as np

from fedapps.core.errors import RunError
from fedapps.data.dataset import Shape
from fedapps.data.npz import Array
from fedapps.data.rows import Rows


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
    if shape_of(images) != shape_of(first) or images.dtype != first.dtype:
        raise RunError(
            f"{where} holds {images.dtype} images of [C, H, W] = {list(shape_of(images))}; must be"
            f" {first.dtype} images of {list(shape_of(first))} as in {first.key}"
        )


def check_pixels(images: Rows) -> None:
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


def shape_of(images: Array) -> Shape:
    """Return (C, H, W) of images [N, H, W] or [N, H, W, C]."""
    height, width, *channels = images.shape[1:]
    return (channels[0] if channels else 1, height, width)
