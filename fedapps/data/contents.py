"""What own data contain: images with labels, or inputs and targets of any shape."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from fedapps.core.errors import RunError
from fedapps.core.words import composed, number
from fedapps.data.dataset import Dataset, Shape
from fedapps.data.npz import KEYS, OTHERS, Array, Rows, in_text, not_finite
from fedapps.data.precision import as_float32
from fedapps.data.spec import FILLS, FLOAT, WHOLE, Spec, image_spec, usual

MAX_CLASSES = 65_536  # a larger label is a mistake that would cost a huge last layer


def dataset_of(
    path: Path, arrays: Mapping[str, Array], found: Iterable[str], missing: str
) -> Dataset:
    """Return what arrays by key contain; `found` are the keys for messages. Inputs are not read.

    The highest label or token gives the number of classes or tokens. `val_*` is joined to the
    training set. Without parts (`inputs`, `targets`), all samples are training samples. If
    `missing` is one of `FILLS`, NaN in inputs stands for a missing value. Raises `RunError` for
    arrays that are not there or do not fit.
    """
    there = {key.rpartition("_")[2] for key in arrays}
    others = "inputs" in there or ("targets" in there and "images" not in there)
    kinds = ("inputs", "targets") if others else ("images", "labels")
    plain = bool({*kinds} & arrays.keys()) and not {*KEYS, *OTHERS} & arrays.keys()
    val = f"val_{kinds[0]}" in arrays
    parts = ("",) if plain else ("train_", "val_", "test_") if val else ("train_", "test_")
    for key in (part + kind for part in parts for kind in kinds):
        if key not in arrays:
            needed = ", ".join(kinds if plain else OTHERS if others else KEYS)
            if there <= {"groups"}:
                needed += f"; or {', '.join(OTHERS)}; or inputs, targets"
            raise RunError(
                f"{path}: key {key} is missing; found {', '.join(found) or 'none'}; needed {needed}"
            )
    inputs, targets = (tuple(arrays[part + kind] for part in parts) for kind in kinds)
    spec = (_anything if others else _images)(inputs, targets)
    values, target_spec = _targets(targets)
    training = inputs if plain else inputs[:-1]
    return Dataset(
        path.stem,
        spec,
        target_spec,
        values,
        sum(part.shape[0] for part in training),
        usual(spec) if spec.image or spec.is_whole else None,
        Rows(inputs, others and missing in FILLS),
        groups=_groups(path, arrays, parts, len(values)),
        truths=targets[0].dtype.kind == "b",
        missing=missing if others else "refuse",
    )


def _groups(
    path: Path, arrays: Mapping[str, Array], parts: tuple[str, ...], size: int
) -> np.ndarray | None:
    """Return who each sample is from, [N], if the file says so."""
    keys = ["groups"] if "groups" in arrays else [f"{part}groups" for part in parts]
    there = [key for key in keys if key in arrays]
    if not there:
        return None
    if lost := [key for key in keys if key not in arrays]:
        raise RunError(f"{path}: key {lost[0]} is missing; there is {there[0]}")
    values = np.concatenate([in_text(arrays[key]) for key in keys])
    if values.shape != (size,) or values.dtype.kind not in "iuUS":
        raise RunError(
            f"{path}: {keys[0]} has shape {list(values.shape)} and dtype {values.dtype}; must be"
            f" texts or integers, one for each of {number(size, 'sample')}"
        )
    if values.dtype.kind != "U":
        return values
    names, of = np.unique(values, return_inverse=True)
    return np.array([*map(composed, names.tolist())], str)[of]


def _images(images: tuple[Array, ...], labels: tuple[Array, ...]) -> Spec:
    for image, label in zip(images, labels, strict=True):
        check_images(image, images[0])
        _check_labels(label, image)
    return image_spec(shape_of(images[0]))


def _anything(inputs: tuple[Array, ...], targets: tuple[Array, ...]) -> Spec:
    for array in (*inputs, *targets):
        if min(array.shape, default=0) < 1:
            rule = "must be [N, ...], every side at least 1"
            raise RunError(f"{array.path}: {array.key} has shape {list(array.shape)}; {rule}")
    spec = input_spec(inputs)
    for part, target in zip(inputs, targets, strict=True):
        _check_like(part, inputs[0], "inputs")
        _check_like(target, targets[0], "targets")
        _check_size(target, "target", part, "sample")
    return spec


def input_spec(inputs: tuple[Array, ...]) -> Spec:
    """Return what a sample of these arrays is; raises `RunError` for what no model can take.

    Floats can have any shape. Whole numbers are the tokens of a text, [N, T].
    """
    first = inputs[0]
    where = f"{first.path}: {first.key}"
    if min(first.shape, default=0) < 1 or len(first.shape) < 2:
        raise RunError(
            f"{where} has shape {list(first.shape)}; must be [N, ...], every side at least 1: one"
            " number a sample is [N, 1]"
        )
    if first.dtype.kind == "f":
        return Spec(first.shape[1:], FLOAT)
    if first.dtype.kind not in "iu" or len(first.shape) != 2:
        raise RunError(
            f"{where} has dtype {first.dtype} and shape {list(first.shape)}; must be floats, or"
            " integers [N, T], which are tokens"
        )
    return Spec(first.shape[1:], WHOLE, _choices(inputs))


def _targets(targets: tuple[Array, ...]) -> tuple[np.ndarray, Spec]:
    """Read targets and say what they are: floats, truth values, or whole numbers such as labels."""
    first, shape = targets[0], targets[0].shape[1:]
    if shape == (1,):
        shape = ()
    if first.dtype.kind == "f":
        stored = np.concatenate([target.whole for target in targets])
        values = as_float32(stored)
        broken = np.flatnonzero(~np.isfinite(values.reshape(len(values), -1)).all(axis=1))
        if len(broken):
            array, row = Rows(targets).places(broken[0])
            raise not_finite(targets[array], int(row), stored[broken[0]])
        return values.reshape(len(values), *shape), Spec(shape, FLOAT)
    if first.dtype.kind not in "iub":
        raise RunError(f"{first.path}: {first.key} has dtype {first.dtype}; must be numbers")
    choices = 2 if first.dtype.kind == "b" else _choices(targets)
    values = np.concatenate([target.whole for target in targets]).astype(np.int64)
    return values.reshape(len(values), *shape), Spec(shape, WHOLE, choices)


def _check_like(array: Array, first: Array, what: str) -> None:
    """Refuse an array whose samples are not like those of the `first` one."""
    if array.shape[1:] != first.shape[1:] or array.dtype.kind != first.dtype.kind:
        raise RunError(
            f"{array.path}: {array.key} holds {what} {list(array.shape[1:])} of {array.dtype};"
            f" must be {list(first.shape[1:])} of {first.dtype} as in {first.key}"
        )


def _choices(arrays: tuple[Array, ...]) -> int:
    """Return how many whole numbers there are from 0 to the highest; raises `RunError`."""
    return max(_checked_highest(array) for array in arrays) + 1


def _checked_highest(array: Array) -> int:
    low, high = int(array.whole.min()), int(array.whole.max())
    inputs = array.key.endswith("inputs")
    what, other = ("token", "a table") if inputs else ("label", "numbers to predict")
    if low < 0 or high >= MAX_CLASSES:
        cure = "" if array.key.endswith("labels") else f"; {other} must be saved as floats"
        if array.key.endswith("targets"):
            cure += ', or be in a table with task="regression"'
            cure += ', and classes in one with task="classification"' * (low < 0)
        raise RunError(
            f"{array.path}: {array.key} holds {what} {low if low < 0 else high};"
            f" must be 0..{MAX_CLASSES - 1}{cure}"
        )
    return high


def _check_labels(labels: Array, images: Array) -> None:
    where = f"{labels.path}: {labels.key}"
    if labels.dtype.kind not in "iu":
        raise RunError(f"{where} has dtype {labels.dtype}; must be integers")
    if len(labels.shape) not in (1, 2) or labels.shape[1:] not in ((), (1,)):
        raise RunError(f"{where} has shape {list(labels.shape)}; must be [N] or [N, 1]")
    _check_size(labels, "label", images, "image")


def _check_size(targets: Array, target: str, inputs: Array, sample: str) -> None:
    """Refuse targets that are not as many as the samples; two words say what they are."""
    if targets.shape[0] != inputs.shape[0]:
        raise RunError(
            f"{targets.path}: {targets.key} holds {number(targets.shape[0], target)} for"
            f" {number(inputs.shape[0], sample)} of {inputs.key}; the numbers must be equal"
        )


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
    first = images.arrays[0]
    if first.dtype == np.uint8:
        return
    for pixels in images.checked():
        if pixels.min() < 0 or pixels.max() > 1:
            raise RunError(
                f"{first.path}: float pixels from {pixels.min():g} to {pixels.max():g};"
                " must be 0..1, or uint8"
            )


def check_finite(dataset: Dataset) -> None:
    """Refuse floats that are not finite before a run begins, instead of when they are needed."""
    if dataset.rows is not None and dataset.rows.arrays[0].dtype.kind == "f":
        for _ in dataset.rows.checked():
            pass


def shape_of(images: Array) -> Shape:
    """Return (C, H, W) of images [N, H, W] or [N, H, W, C]."""
    height, width, *channels = images.shape[1:]
    return (channels[0] if channels else 1, height, width)
