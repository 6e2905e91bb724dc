"""Files of tables: a column is of one kind in all files, and its texts are as they are written."""

import csv
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedapps.core.errors import RunError, one_line
from fedapps.core.words import composed, did_you_mean, some
from fedapps.data.forms.form import File, kind_of

_RAGGED = re.compile(r"Expected (\d+) fields in line (\d+), saw (\d+)")
_NUMBER = re.compile(r"^\s*(-?\d+)\s*$")
_VALUE = re.compile(r"\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*")
_AS_WRITTEN: Any = {"keep_default_na": False, "skipinitialspace": True}
MISSING = ("", "NA", "NaN", "nan", "?")  # NumPy writes nan, and the archives of the UCI write ?
DROP = 'missing="drop" leaves such rows out'
FILL = "fill it; NA, NaN, nan and ? are empty, too"  # of a column that cannot be left out
MANY, LONG = 5, 20  # numbers in even steps, or in order, that can be names: pixels, wavelengths
LOOKED_AT = 10_000  # rows that tell whether the texts of a column repeat

csv.field_size_limit(2**31 - 1)  # for the whole process: pandas takes longer cells than csv does

Names = Collection[str]
Kept = Mapping[str, Names]  # by column: texts that the run names, so none is missing


@dataclass(frozen=True)
class Rows:
    """The rows of all files together; of each the number of its file, and its place there."""

    frame: pd.DataFrame
    files: Sequence[File]
    file: np.ndarray  # int64 [N]
    place: np.ndarray  # int64 [N]

    @classmethod
    def of(cls, frames: Sequence[pd.DataFrame], files: Sequence[File], kept: Kept) -> "Rows":
        """Join the tables of `files`; raises `RunError` if their columns differ.

        Texts that stand for a missing value (`MISSING`) are missing, unless they are `kept`.
        """
        for file, frame in zip(files, frames, strict=True):
            if lost := set(frames[0]).symmetric_difference(frame):
                there = f"{files[0].path.name} has {some([*frames[0]])}"
                name = min(map(str, lost))
                raise RunError(f"{file.path}: column {name} is not in all files; {there}")
        sizes = [len(frame) for frame in frames]
        place = np.concatenate([np.arange(size) for size in sizes])
        whole = _with_gaps(pd.concat(_one_kind(frames), ignore_index=True), kept)
        return cls(whole, files, np.repeat(np.arange(len(files)), sizes), place)

    def where(self, row: int) -> str:
        """Say where a row is, for messages."""
        file, place = self.files[self.file[row]], int(self.place[row])
        in_lines = kind_of(file.path) == ".csv" and not file.copy
        return f"{file.path}: {_line(file.path, place) if in_lines else f'row {place}'}"

    def of_file(self, values: Sequence[str]) -> np.ndarray:
        """Return for each row what `values` say of its file, texts [N]."""
        return np.array(values, dtype=object)[self.file]

    def owners(self, name: str) -> pd.Series | None:
        """Return the client of each row as column `name` says, as texts; None without the column.

        A missing one stays missing, and blanks around it do not count.
        """
        values = self.frame.get(name)
        if values is None:
            return None
        texts = stripped(values) if holds_texts(values) else values.astype(str)
        return pd.Series(texts, values.index, dtype=object).where(values.notna())

    def take(self, keep: np.ndarray) -> "Rows":
        """Return the rows that a mask keeps, or those with these numbers (int64)."""
        return Rows(self.frame.iloc[keep], self.files, self.file[keep], self.place[keep])

    def demand(self, name: str, key: str, cure: str = DROP) -> None:
        """Refuse tables without a column that the run names, or in which one of its cells is empty.

        `key` says who names it, and `cure` what to do with an empty cell.
        """
        if name not in self.frame:
            known = [*map(str, self.frame.columns)]
            hint = f"{did_you_mean(name, known)}; there are {some(known)}"
            raise RunError(f"{self.files[0].path}: no column {name} ({key}){hint}")
        if (empty := self.frame[name].isna().to_numpy()).any():
            row = int(empty.argmax())
            raise RunError(f"{self.where(row)}: column {name} is empty ({key}); {cure}")
        refuse_lists(self.frame[name], self.where)


def refuse_lists(values: pd.Series, where: Callable[[int], str]) -> None:
    """Raise `RunError` if a cell is no single value: its text would be taken for a class."""
    cells = enumerate(values if values.dtype == object else ())
    if held := [(row, v) for row, v in cells if hasattr(v, "__len__") and not isinstance(v, str)]:
        kind = "bytes" if isinstance(held[0][1], bytes) else "a list or record"
        cure = "give each value a column of its own, or save arrays as .npz"
        raise RunError(f"{where(held[0][0])}: column {values.name} holds {kind}; {cure}")


def holds_texts(values: pd.Series) -> bool:
    """Tell whether a column holds neither numbers nor truth values."""
    return not (pd.api.types.is_numeric_dtype(values) or pd.api.types.is_bool_dtype(values))


def each_text_once(
    function: Callable[[pd.Series], np.ndarray],
) -> Callable[[pd.Series], np.ndarray]:
    """Let a function of a column, which returns a value a row, look once at texts that repeat.

    Only columns of texts alone: other values can be equal, but not the same, such as 1 and True.
    """

    @wraps(function)
    def found(values: pd.Series) -> np.ndarray:
        if not isinstance(values.dtype, pd.StringDtype):
            return function(values)
        first = values.iloc[:LOOKED_AT]
        if 2 * first.nunique() > len(first):  # to find those that repeat would take longer
            return function(values)
        places, texts = pd.factorize(values, use_na_sentinel=False)
        return function(pd.Series(texts))[places]

    return found


@each_text_once
def stripped(values: pd.Series) -> np.ndarray:
    """Return a column as `composed` texts [N] without the blanks around them."""
    return values.astype(str).str.strip().map(composed, na_action="ignore").to_numpy(object)


def _gaps(name: str, kept: Kept) -> list[str]:
    """Return the texts that stand for a missing value in a column."""
    return [text for text in MISSING if text not in kept.get(name, ())]


def _with_gaps(frame: pd.DataFrame, kept: Kept) -> pd.DataFrame:
    """Return a table in which nothing stands for a missing value in columns of texts."""
    for name in [name for name in frame if holds_texts(frame[name])]:
        gap = frame[name].astype(str).str.strip().isin(_gaps(str(name), kept))
        if gap.any():
            frame = frame.assign(**{str(name): frame[name].mask(gap)})
    return frame


def _one_kind(frames: Sequence[pd.DataFrame]) -> Sequence[pd.DataFrame]:
    """Make whole numbers of truth values in columns that hold numbers in another table."""
    for name in frames[0]:
        if not any(holds_texts(frame[name]) for frame in frames):
            truths = [pd.api.types.is_bool_dtype(frame[name]) for frame in frames]
            if any(truths) and not all(truths):
                frames = [
                    frame.astype({name: "Int64"}) if truth else frame
                    for frame, truth in zip(frames, truths, strict=True)
                ]
    return frames


def frames_of(
    paths: Sequence[Path], texts: Names, named: Names, kept: Kept, whole: Names = ()
) -> list[pd.DataFrame]:
    """Read files that belong together; the columns `texts` are texts, so that 001 stays 001.

    So is a column that holds texts in one of the files. An index of a .parquet is a column if the
    run has `named` it. Texts that are `kept` are not missing. A first line that has the names of
    the `whole` table is one, also if they are numbers. Raises `RunError` for a file that is broken
    or empty.
    """
    frames = [_frame(path, texts, named, kept, whole) for path in paths]
    mixed = {str(name) for frame in frames for name in frame if holds_texts(frame[name])}
    if any(name in mixed and not holds_texts(frame[name]) for frame in frames for name in frame):
        return [_frame(path, {*texts, *mixed}, named, kept, whole) for path in paths]
    return frames


def whole_with_gaps(frame: pd.DataFrame, schema: Any) -> pd.DataFrame:
    """Return a table of Arrow in which whole numbers and truth values stay such beside gaps.

    pandas makes floats of the former, which would be numbers to predict instead of classes, and
    objects of the latter, which would be texts.
    """
    from pyarrow import types

    whole = {field.name for field in schema if types.is_integer(field.type)}
    truths = {field.name for field in schema if types.is_boolean(field.type)}
    kinds = {name: "Int64" for name in whole & {*frame} if frame[name].dtype.kind == "f"}
    kinds |= {name: "boolean" for name in truths & {*frame} if frame[name].dtype.kind == "O"}
    return frame.astype(kinds)


def _frame(path: Path, texts: Names, named: Names, kept: Kept, whole: Names) -> pd.DataFrame:
    try:
        if kind_of(path) == ".csv":
            frame = _csv(path, texts, kept, whole)
        elif kind_of(path) == ".parquet":
            from pyarrow import parquet

            as_compared(parquet.read_schema(path).names, path)  # refuses twins
            frame = whole_with_gaps(pd.read_parquet(path), parquet.read_schema(path))
            frame = frame.reset_index([name for name in frame.index.names if name in named])
        else:
            values = np.load(path, allow_pickle=False)
            frame = pd.DataFrame(values.reshape(len(values), -1))
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
    return frame.set_axis(as_compared(frame.columns, path), axis=1)


def as_compared(columns: Iterable[Any], path: Path) -> pd.Index:
    """Return names of columns as they are compared; raises `RunError` for twins."""
    names = pd.Index(columns).map(lambda name: composed(str(name).strip()))
    if names.has_duplicates:
        raise RunError(f"{path}: column {names[names.duplicated()][0]} is there twice")
    return names


def _csv(path: Path, texts: Names, kept: Kept, whole: Names) -> pd.DataFrame:
    first, below = [*(cells for _, cells in islice(_rows(path), 2)), [], []][:2]
    names = [composed(cell.strip()) for cell in first]
    found = [cell.strip() for cell in first if _VALUE.fullmatch(cell)]
    if found and not (whole and {*whole} <= {*names}):
        under = [cell for name, cell in zip(first, below, strict=False) if _VALUE.fullmatch(name)]
        if not _are_names([*map(float, found)], [float(v) for v in under if _VALUE.fullmatch(v)]):
            rule = "put a line of names of columns above it, or, if these are the names, begin them"
            told = f"line 1 has numbers, {some(found)}; {rule} with a letter: x{found[0]}"
            raise RunError(f"{path}: {told}")
    as_compared([cell or np.nan for cell in first], path)  # refuses twins
    if len(names) == 1 and set(";\t") & set(names[0]):
        raise RunError(f"{path}: has no comma in line 1; separate columns by commas")
    if len(below) > len(first):
        pd.read_csv(path, header=None, nrows=2, **_AS_WRITTEN)  # refuses more cells than names
    plain = [cell for cell, name in zip(first, names, strict=True) if cell and name in texts]
    gaps: Any = {place: _gaps(name, kept) for place, name in enumerate(names)}
    frame = pd.read_csv(
        path,
        na_values=gaps,
        dtype=dict.fromkeys(plain, str),
        dtype_backend="numpy_nullable",  # whole numbers stay such beside missing values
        low_memory=False,  # otherwise, parts of a column can be of different kinds
        **_AS_WRITTEN,
    )
    for name in plain:  # a number is the same with blanks around it
        frame[name] = frame[name].str.replace(_NUMBER, r"\1", regex=True)
    return frame


def _are_names(numbers: Sequence[float], below: Sequence[float]) -> bool:
    """Tell whether the numbers of a first line are names, and not a row of values.

    They are if there are `MANY` in about even steps, or `LONG` in order, rising or falling; unless
    the numbers `below` them are in the same order, too.
    """
    if len(numbers) < MANY:
        return False
    if numbers[0] > numbers[-1]:
        numbers, below = numbers[::-1], below[::-1]
    steps = [other - one for one, other in pairwise(numbers)]
    even = all(max(pair) <= 1.5 * min(pair) for pair in pairwise(steps))
    alike = len({*below}) > 1 and [*below] == sorted(below)
    return min(steps) > 0 and len(numbers) >= (MANY if even else LONG) and not alike


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the line on which each row of a .csv begins, and its cells; the first has the names.

    As for pandas, a line is no row if it has only blanks; one with a cell in quotes, `""`, is one.
    """
    line, begins = "", 1
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(((line := text) for text in file), skipinitialspace=True)
        for cells in reader:
            if line.strip(" \t\r\n"):  # a row of several lines ends with a quote
                yield begins, cells
            begins = reader.line_num + 1


def _line(path: Path, place: int) -> str:
    """Name the line on which row `place` of a .csv begins; the last one can be half a line."""
    (line, _), *more = islice(_rows(path), place + 1, place + 3)
    return f"line {line}" + " (half written?)" * (not more and path.read_bytes()[-1:] != b"\n")
