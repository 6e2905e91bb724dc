"""What a model predicts, in words: a line for each sample, a table, or arrays."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fedapps.core.files import write_npz, write_whole
from fedapps.device.personalized import ModelMetadata
from fedapps.report.cells import csv_text


def lines(
    about: ModelMetadata, predictions: np.ndarray, chances: np.ndarray | None
) -> Iterator[str]:
    """Yield a line for each sample: its number, and what is predicted, in words.

    A class comes with its probability. Of several labels those that apply are named.
    """
    form = ".3f" if about.names else "g"
    for row, found in enumerate(_cells(about, predictions, chances)):
        words = [cell if isinstance(cell, str) else f"{cell:{form}}" for cell in found]
        yield " ".join([str(row), *(words or ["-"])])


def _cells(
    about: ModelMetadata, predictions: np.ndarray, chances: np.ndarray | None
) -> Iterator[list[str | float]]:
    """Yield what is predicted for each sample: a class and its probability, labels, or numbers."""
    for row, found in enumerate(predictions):
        if about.task.has_classes and chances is not None:
            yield [about.names[found], float(chances[row].max())]
        elif about.names:
            yield [name for name, is_there in zip(about.names, found, strict=True) if is_there]
        else:
            yield found.ravel().tolist()


def save(
    path: Path, about: ModelMetadata, predictions: np.ndarray, chances: np.ndarray | None
) -> None:
    """Write what `personalized.predict` returns to a table (.csv) or to arrays (.npz).

    A table has the columns `sample` (its number), `prediction` and, for classes, `probability`;
    several numbers are in `prediction_0`, `prediction_1`, ... An .npz has the predictions as
    `labels` if they are classes, otherwise as `predictions`, and all probabilities and class names.
    """
    if path.suffix == ".csv":
        rows = [*_cells(about, predictions, chances)]
        if about.names and not about.task.has_classes:
            rows = [["; ".join(map(str, row))] for row in rows]
        heads = ["prediction", "probability"][: 1 + about.task.has_classes]
        if not about.names and predictions[:1].size > 1:
            heads = [f"prediction_{number}" for number in range(predictions[0].size)]
        body = csv_text([number, *row] for number, row in enumerate(rows))
        write_whole(path, (csv_text([["sample", *heads]]) + body).encode())
        return
    arrays = {"labels" if about.task.has_classes else "predictions": predictions}
    if chances is not None:
        arrays |= {"probabilities": chances, "class_names": np.array(about.names)}
    write_npz(path, arrays)
