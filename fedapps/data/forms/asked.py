"""Tables to predict: rows without targets, or windows of such rows."""

import numpy as np

from fedapps.core.errors import RunError
from fedapps.core.words import number
from fedapps.data.forms import columns
from fedapps.data.forms.form import File
from fedapps.data.forms.frames import Rows, frames_of
from fedapps.data.spec import FILLS


def read(
    file: File, rule: str, shape: tuple[int, ...], gaps: bool, client_column: str = ""
) -> tuple[np.ndarray, list[str]]:
    """Return the samples of a table, float32 [N, F], or its windows [N, *shape], and what to tell.

    Windows follow one another from the first row on. With `gaps`, NaN stands for a missing value.
    Raises `RunError` if the table has the client column of the run, and a window has rows of
    several clients or of nobody.
    """
    chosen = columns.parsed(rule)
    kept = {column.name: column.texts for column in chosen if column.texts}
    names = [column.name for column in chosen]
    frames = frames_of([file.path], [client_column, *kept], [client_column, *names], kept, names)
    rows, told = Rows.of(frames, [file], kept), list[str]()
    if len(shape) > 1:
        rows, told = _whole_windows(rows, shape[0], client_column)
    values = columns.encoded(rows, chosen, gaps).astype(np.float32)
    empty = rows.frame[names].isna().to_numpy()
    if empty.any() and not gaps:
        (row, column), whole = np.argwhere(empty)[0], "window" if len(shape) > 1 else "row"
        raise RunError(
            f"{rows.where(int(row))}: column {names[column]} is empty; the model fills no"
            f" values, as its run did not (missing={' or '.join(FILLS)}); leave the {whole} out"
        )
    if empty.any():
        told.append(f"{empty.sum()} of {number(empty.size, 'value')} are missing, and filled")
    return values.reshape(-1, *shape[:-1], values.shape[1]), told


def _whole_windows(rows: Rows, size: int, client_column: str) -> tuple[Rows, list[str]]:
    """Return the rows that fill windows, end to end, and what to tell of the others."""
    there, path = len(rows.frame), rows.files[0].path
    if there < size:
        raise RunError(f"{path}: has {number(there, 'row')}; a window has {size}")
    left = there % size
    rows = rows.take(np.arange(there - left))
    if (owners := rows.owners(client_column)) is not None:
        rows.demand(client_column, "client-column", "fill it, or leave the column out")
        _check_windows(rows, owners.to_numpy().reshape(-1, size), client_column)
    told = f"the last {left} of {there} rows fill no window of {size} rows, and are left out"
    return rows, [told] * bool(left)


def _check_windows(rows: Rows, owners: np.ndarray, client_column: str) -> None:
    """Refuse a window that has rows of several clients, which are the `owners`, [windows, size]."""
    size = owners.shape[1]
    if (mixed := (owners != owners[:, :1]).any(axis=1)).any():
        sample = int(mixed.argmax())
        first, second = list(dict.fromkeys(owners[sample]))[:2]
        raise RunError(
            f"{rows.where(sample * size)}: the window of sample {sample} begins with {first} and"
            f" goes on with {second} (client-column = {client_column}); sort the rows by"
            f" {client_column}, and give each a multiple of {size} rows"
        )
