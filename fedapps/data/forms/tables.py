"""Tables: a row of a .csv or .parquet is a sample, or with `window` one step of a series."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from fedapps.core.errors import RunError, one_line
from fedapps.core.words import did_you_mean, number, some
from fedapps.data import precision
from fedapps.data.forms import columns
from fedapps.data.forms.form import File, Form, Found, by_part, class_numbers
from fedapps.data.forms.windows import cut, gone
from fedapps.data.spec import CURE, FILLS

_RAGGED = re.compile(r"Expected (\d+) fields in line (\d+), saw (\d+)")
_NUMBER = re.compile(r"^\s*(-?\d+)\s*$")
UNKNOWN = ["?"]  # as the archives of the UCI write it; pandas knows NA, NaN, null and empty cells


@dataclass(frozen=True)
class Rows:
    """The rows of all files together; of each the number of its file, and its place there."""

    frame: pd.DataFrame
    files: Sequence[File]
    file: np.ndarray  # int64 [N]
    place: np.ndarray  # int64 [N]

    def where(self, row: int) -> str:
        """Say where a row is, for messages."""
        path, place = self.files[self.file[row]].path, self.place[row]
        return f"{path}: line {place + 2}" if path.suffix == ".csv" else f"{path}: row {place}"

    def of_file(self, values: Sequence[str]) -> np.ndarray:
        """Return for each row what `values` say of its file, texts [N]."""
        return np.array(values, dtype=object)[self.file]

    def take(self, keep: np.ndarray) -> "Rows":
        """Return the rows that a mask keeps."""
        return Rows(self.frame[keep], self.files, self.file[keep], self.place[keep])


LAST = "the last one, as target-column is not set"


def read(files: Sequence[File], form: Form) -> Found:
    """Read tables that belong together: they have the same columns.

    If the files have a `label` each, a sample is a file, or a window of one. Otherwise the target
    is `target-column`, or the last one. Raises `RunError` in one line, with the line of the file.
    """
    named = (form.client_column, *form.targets)
    frames = [frame_of(file.path, named, form.client_column) for file in files]
    return of_frames(frames, files, form)


def of_frames(frames: Sequence[pd.DataFrame], files: Sequence[File], form: Form) -> Found:
    """Read tables that are in memory; `files` say where each is from."""
    rows = _rows(frames, files)
    labelled = any(file.label for file in files)
    targets = [] if labelled else form.targets_in(rows.frame) or _others(rows.frame, form)[-1:]
    if form.client_column in targets:
        raise RunError(
            f'client-column = "{form.client_column}": is the target, too (target-column)'
        )
    everybody = _groups(rows, form)
    rows, told = _with_targets(rows, targets, form)
    for name in filter(None, [form.client_column]):
        _demand(rows, name, "client-column")
    chosen = _inputs(rows, targets, form)
    inputs, more = _features(rows, chosen, form)
    told += more
    inputs, rows, more = _complete(inputs, rows, chosen, form)
    told += more
    groups = _groups(rows, form)
    values, class_names = _targets(rows, targets, form)
    if values.dtype.kind == "f":
        told += precision.told(files[0].path, _named(targets), values, True)
    samples = np.arange(len(inputs))[:, None]
    if form.window or labelled:
        samples, more = cut(rows.file, files, values, groups, form)
        told, inputs = [*told, *more], inputs[samples]
    if not form.columns:
        told.append(f'the inputs are columns = "{columns.written(chosen)}"')
    last = samples[:, -1]
    told += gone(everybody, groups[last])
    arrays = by_part(
        rows.of_file([file.part for file in files])[last].astype(str),
        groups[last].astype(str),
        inputs=inputs,
        targets=values[last],
    )
    if targets and not form.targets:
        told.append(f"the target is column {targets[0]}: {LAST}")
    return Found(arrays, class_names, columns.written(chosen), tuple(told))


def _inputs(rows: Rows, targets: Sequence[str], form: Form) -> list[columns.Column]:
    """Return the columns of the inputs: those that the run names, or all others."""
    names = [name for name in _others(rows.frame, form) if name not in targets]
    chosen = (
        columns.parsed(form.columns)
        if form.columns
        else columns.found_in(rows.frame, names, rows.where)
    )
    if both := {*targets} & {column.name for column in chosen}:
        raise RunError(
            f"{rows.files[0].path}: column {min(both)} is an input (columns), and cannot be the"
            " target, too; name another target-column"
        )
    if not chosen:
        raise RunError(f"{rows.where(0)}: no column is left for the inputs")
    return chosen


def _features(
    rows: Rows, chosen: Sequence[columns.Column], form: Form
) -> tuple[np.ndarray, list[str]]:
    """Return the features of these columns, float32 [N, F], and what to tell of them."""
    exact = columns.encoded(rows.frame, chosen, rows.where)
    named = _named([column.name for column in chosen for _ in column.texts or ("",)])
    return exact.astype(np.float32), [
        *columns.notes(rows.frame, chosen, not form.columns),
        *precision.told(rows.files[0].path, named, exact, False),
    ]


def _named(names: Sequence[str]) -> list[str]:
    return [f"column {name}" for name in names]


def _groups(rows: Rows, form: Form) -> np.ndarray:
    """Return the client of each row, as its file or the column of clients says; texts."""
    named = rows.frame.get(form.client_column)
    if named is None:
        return rows.of_file([file.group for file in rows.files])
    return named.dropna().astype(str).to_numpy(object)


def unlabelled(path: Path, rule: str, shape: tuple[int, ...]) -> np.ndarray:
    """Read a table without targets: float32 [N, F]; or its windows, [N, *shape], end to end."""
    chosen = columns.parsed(rule)
    rows = _rows([frame_of(path, [column.name for column in chosen])], [File(path)])
    values = columns.encoded(rows.frame, chosen, rows.where).astype(np.float32)
    if len(shape) < 2:
        return values
    if len(values) < shape[0]:
        raise RunError(f"{path}: has {number(len(values), 'row')}; a window has {shape[0]}")
    whole = len(values) // shape[0] * shape[0]
    return values[:whole].reshape(-1, shape[0], values.shape[1])


def frame_of(path: Path, named: Sequence[str] = (), clients: str = "") -> pd.DataFrame:
    """Read one file; raises `RunError` if it is broken or empty.

    An index of a .parquet is a column if it has one of the names that the run has `named`. The
    column `clients` of a .csv is read as texts, so that 001 stays what it is.
    """
    try:
        if path.suffix == ".csv":
            head = pd.read_csv(path, header=None, nrows=1, dtype=str, skipinitialspace=True)
            names = head.iloc[0]
            if names.duplicated().any():
                raise RunError(f"{path}: column {names[names.duplicated()].iloc[0]} is there twice")
            if len(names) == 1 and set(";\t") & set(str(names[0])):
                raise RunError(f"{path}: has no comma in line 1; separate columns by commas")
            pd.read_csv(path, header=None, nrows=2)  # refuses more cells than names, an index
            texts = {name: str for name in names.dropna() if name.strip() == clients}
            frame = pd.read_csv(path, na_values=UNKNOWN, skipinitialspace=True, dtype=texts)
            for name in texts:  # a number is the same with blanks around it
                frame[name] = frame[name].str.replace(_NUMBER, r"\1", regex=True)
        elif path.suffix == ".parquet":
            frame = pd.read_parquet(path)
            frame = frame.reset_index([name for name in frame.index.names if name in named])
        else:
            values = np.load(path, allow_pickle=False)
            frame = pd.DataFrame(values.reshape(len(values), -1)).rename(columns=str)
    except ImportError as error:
        raise RunError(f"{path}: needs pyarrow; pip install 'fedapps[parquet]'") from error
    except UnicodeDecodeError as error:
        raise RunError(f"{path}: is not UTF-8; save it as UTF-8") from error
    except pd.errors.EmptyDataError as error:
        raise RunError(f"{path}: is empty; must have a line of column names, and rows") from error
    except (OSError, ValueError, TypeError, EOFError) as error:
        if ragged := _RAGGED.search(str(error)):
            needed, line, there = ragged.groups()
            raise RunError(f"{path}: line {line} has {there} cells, not {needed}") from error
        raise RunError(f"{path}: cannot be read ({one_line(str(error))})") from error
    if not len(frame):
        raise RunError(f"{path}: has no rows")
    return frame.rename(columns=lambda name: str(name).strip())


def _rows(frames: Sequence[pd.DataFrame], files: Sequence[File]) -> Rows:
    for file, frame in zip(files, frames, strict=True):
        if lost := set(frames[0]).symmetric_difference(frame):
            raise RunError(
                f"{file.path}: column {min(map(str, lost))} is not in all files;"
                f" {files[0].path.name} has"
                f" {some([*frames[0]])}"
            )
    sizes = [len(frame) for frame in frames]
    place = np.concatenate([np.arange(size) for size in sizes])
    whole = pd.concat(frames, ignore_index=True)
    return Rows(whole, files, np.repeat(np.arange(len(files)), sizes), place)


def _others(frame: pd.DataFrame, form: Form) -> list[str]:
    return [str(name) for name in frame.columns if name != form.client_column]


def _with_targets(rows: Rows, targets: Sequence[str], form: Form) -> tuple[Rows, list[str]]:
    """Demand the target columns; unless `missing` refuses, leave out rows without a target."""
    told = []
    if form.missing != "refuse" and {*targets} <= {*rows.frame}:
        there = rows.frame[[*targets]].notna().all(axis=1).to_numpy()
        if there.any() and not there.all():
            told = [f"{(~there).sum()} of {number(len(there), 'row')} have no target, left out"]
            rows = rows.take(there)
    unset = not form.targets and bool(targets)
    for name in targets:
        _demand(rows, name, LAST if unset else "target-column")
    return rows, told


def _demand(rows: Rows, name: str, key: str) -> None:
    """Refuse tables without a column that the run names, or in which one of its cells is empty."""
    if name not in rows.frame:
        known = [*map(str, rows.frame.columns)]
        raise RunError(
            f"{rows.files[0].path}: no column {name} ({key}){did_you_mean(name, known)}; there are"
            f" {some(known)}"
        )
    if (empty := rows.frame[name].isna().to_numpy()).any():
        cure = "fill it" if key == "client-column" else 'missing = "drop" leaves such rows out'
        raise RunError(f"{rows.where(int(empty.argmax()))}: column {name} is empty ({key}); {cure}")


def _complete(
    inputs: np.ndarray, rows: Rows, chosen: Sequence[columns.Column], form: Form
) -> tuple[np.ndarray, Rows, list[str]]:
    """Treat missing values as `missing` says: refuse, drop the row, or leave NaN for `FILLS`."""
    broken = np.isnan(inputs).any(axis=1)
    if not broken.any():
        return inputs, rows, []
    empty = rows.frame[[column.name for column in chosen]].isna()
    count = f"{broken.sum()} of {number(len(inputs), 'row')}"
    if form.missing in FILLS:
        cells = number(int(empty.to_numpy().sum()), "value")
        return (
            inputs,
            rows,
            [f'{count} have missing values; missing = "{form.missing}" fills {cells}'],
        )
    first = int(broken.argmax())
    if form.missing == "refuse":
        name = chosen[int(empty.iloc[first].argmax())].name
        raise RunError(
            f"{rows.where(first)}: column {name} is empty; {CURE},"
            ' missing = "drop" leaves such rows out'
        )
    if broken.all():
        raise RunError(
            f"{rows.where(0)}: every row has a missing value, so none is left; most are missing in"
            f" column {empty.sum().idxmax()}"
        )
    return inputs[~broken], rows.take(~broken), [f"{count} have missing values and are left out"]


def _targets(rows: Rows, names: Sequence[str], form: Form) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return the targets and the names of their classes or labels."""
    if not names:
        labels = rows.of_file([file.label for file in rows.files])
        return class_numbers(labels, form.names, rows.where)
    frame = rows.frame[[*names]]
    texts = [name for name in names if not pd.api.types.is_numeric_dtype(frame[name])]
    if form.numbers and not texts:
        values = frame.to_numpy(np.float64)
        return values[:, 0] if len(names) == 1 else values, ()
    if len(names) == 1:
        if texts:
            return class_numbers(_texts(rows, names[0]), form.names, rows.where)
        return frame[names[0]].to_numpy(), ()
    if texts:
        raise RunError(
            f"{rows.where(0)}: column {texts[0]} holds texts; of several targets, all must be"
            " numbers"
        )
    values = frame.to_numpy()
    if np.isin(values, (0, 1)).all():
        return values.astype(bool), tuple(names)
    return values.astype(np.float64), ()


def _texts(rows: Rows, name: str) -> np.ndarray:
    return rows.frame[name].astype(str).to_numpy(object)
