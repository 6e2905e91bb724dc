"""Notes on data sets that are probably a mistake, although a model can be trained on them."""

from collections.abc import Iterator

import numpy as np

from fedapps.core.words import some
from fedapps.data.dataset import Dataset
from fedapps.data.npz import LOOKED_AT, Array

SCALED = 16.0  # floats above this are not standardized pixels, but values of bytes
MOST_CLASSES = 10  # so many whole numbers are probably classes


def notes(dataset: Dataset, split: str, partitioner: str = "", task: str = "") -> list[str]:
    """Return a line for each thing that looks wrong with this `split`; reads a few pixels.

    A `task` that was chosen says what targets are, so nothing is told of what they look like.
    """
    rows = dataset.rows if dataset.inputs.image else None
    arrays = rows.arrays if rows else ()
    pixels = (note for array in arrays for note in of_pixels(array))
    unknown = _of_unknown(dataset) if split == "official" else ()
    groups = _of_groups(dataset, split, partitioner)
    chosen = task not in ("", "auto")
    of_rows = [] if chosen else [*_of_one_hot(dataset)]
    floats = () if of_rows or task == "regression" else _of_floats(dataset)
    amounts = () if chosen else _of_amounts(dataset)
    return [*[*pixels][:1], *unknown, *_of_labels(dataset), *amounts, *of_rows, *floats, *groups]


def _of_groups(dataset: Dataset, split: str, partitioner: str) -> Iterator[str]:
    """Tell of data that say who a sample is from, if the run does not make use of it."""
    if dataset.groups is None:
        return
    if partitioner not in ("", "natural"):
        yield (
            f"{dataset.name}: says who each sample is from, but samples are shared out by"
            f' partitioner = "{partitioner}"; "natural" makes each of'
            f" {len(np.unique(dataset.groups))} a client"
        )
    elif split != "official" and dataset.num_train < len(dataset.groups):
        yield (
            f'{dataset.name}: has a test part, which split = "{split}" mixes with the training'
            ' part; "official" keeps them apart'
        )


def of_pixels(array: Array) -> Iterator[str]:
    """Tell of pixels that mean and deviation 0.5 would not normalize; reads the first megabytes."""
    values = array.first(LOOKED_AT)
    values = values[np.isfinite(values)]
    if not len(values):
        return
    low, high = float(values.min()), float(values.max())
    if array.dtype == np.uint8 and 0 < high <= 1:
        yield (
            f"{array.path}: {array.key}: uint8 pixels are 0 and 1, and will be divided by 255; "
            "multiply them by 255, or store floats"
        )
    if array.dtype != np.uint8 and (low < 0 or high > 1):
        yield (
            f"{array.path}: {array.key}: float pixels from {low:g} to {high:g} are used as they "
            f"are, but models expect 0..1{_cure(low, high)}"
        )


def _cure(low: float, high: float) -> str:
    if -1 <= low < 0 < high <= 1:
        return "; if they are -1..1, add 1 and divide by 2"
    if high <= SCALED:
        return ""
    if high <= 255:
        return "; divide them by 255, or store uint8"
    return "; divide them by the largest value that a pixel can have, such as 65535"


def _of_unknown(dataset: Dataset) -> Iterator[str]:
    trained, tested = np.split(dataset.labels, [dataset.num_train])
    if len(trained) and (new := np.setdiff1d(tested, trained).tolist()):
        row = int(np.flatnonzero(np.isin(tested, new))[0])
        called = [dataset.names[label] if dataset.names else str(label) for label in new]
        yield (
            f"{dataset.name}: labels {some(called)} occur in the test set only"
            f" (first in its row {row}): nobody learns them"
        )


def _of_one_hot(dataset: Dataset) -> Iterator[str]:
    """Tell of targets [N, k] that look like classes, each as a row with a single 1."""
    values = dataset.target_values
    if values.ndim == 2 and values.shape[1] > 1 and len(values):
        ones = values == 1
        if (ones.sum(1) == 1).all() and (ones | (values == 0)).all():
            other = "have them in one column" if dataset.columns else "save targets.argmax(1)"
            how = "labels" if dataset.targets.is_whole else "numbers"
            yield (
                f"{dataset.name}: targets are learned as {how}, but each row has exactly one 1:"
                f" if these are classes, {other}"
            )


def _of_floats(dataset: Dataset) -> Iterator[str]:
    """Tell of floats that look like classes or labels."""
    values = dataset.target_values
    if dataset.targets.is_whole or not len(values):
        return
    low, high = float(values.min()), float(values.max())
    if low >= 0 and high < MOST_CLASSES and (values == np.floor(values)).all():
        other = "truth values, save booleans" if values.ndim > 1 else "classes, save integers"
        if dataset.columns and values.ndim == 1:  # in a table, they need not be saved anew
            other = 'classes, set task="classification"'
        yield (
            f"{dataset.name}: targets are floats from {low:g} to {high:g} without decimals, which"
            f" are learned as numbers; if they are {other}"
        )


def _of_labels(dataset: Dataset) -> Iterator[str]:
    there = np.unique(dataset.labels).tolist()
    if dataset.has_labels and there and len(there) < dataset.classes:
        count, needed = dataset.classes, len(there)
        yield (
            f"{dataset.name}: only labels {some([*map(str, there)])} of 0..{count - 1} occur, so"
            f" the model has {count} outputs where {needed} would do; number them"
            f' 0..{needed - 1}, or set task="regression" if they are numbers, such as ages'
        )


def _of_amounts(dataset: Dataset) -> Iterator[str]:
    """Tell of whole numbers in a table that are many for classes, unless some do not occur."""
    count = len(np.unique(dataset.labels))
    unnamed = dataset.has_labels and dataset.columns and not dataset.names
    if unnamed and count == dataset.classes > MOST_CLASSES:
        yield (
            f"{dataset.name}: the target's {count} whole numbers, 0..{count - 1}, are learned as"
            ' classes; set task="regression" if they are amounts, such as days'
        )
