"""The features of a table: which columns they are, and how texts become numbers.

A rule is one text, such as `age,sex=f|m`, so that it travels with a model and to devices: a number
is one feature, and a column of texts has one feature for each of its values, 1 or 0.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from fedapps.core.errors import RunError
from fedapps.core.words import composed, did_you_mean, shortened, some
from fedapps.data.forms.form import Where
from fedapps.data.forms.frames import Rows, each_text_once, holds_texts, refuse_lists, stripped
from fedapps.data.spec import LARGEST, RANGE

MOST_TEXTS = 100  # a column with more different texts holds names or numbers, not categories
LEAST_IDS = 20  # in so many rows, other numbers repeat
MOST_TOLD = 3  # of so many columns that cannot be inputs, a message says why
MOST_LETTERS = 60  # of a value in a message
_COMMA = re.compile(r"\s*[-+]?\d+,\d+\s*")  # a number with a decimal comma
_THOUSANDS = re.compile(r"\s*[-+]?\d{1,3}(,\d{3})+\s*")
_CLIENTS = "if it tells the clients, name it in client-column"
_VALUES = "name its values in columns (a .toml holds many)"
_LATER = "to allow others later, train with missing=mean, or name them in columns"
_DATE = re.compile(r"\d{1,4}([-/.])\d{1,2}\1\d{1,4}|-?\d+ days")
_SENTENCES = "sentences? to learn from these, set text-length, and columns to this column alone"
_DATES = "dates? turn them into numbers, such as days, or leave them out"


@dataclass(frozen=True)
class Column:
    """A column of a table; `texts` are its values if it holds texts."""

    name: str
    texts: tuple[str, ...] = ()


def parsed(text: str) -> list[Column]:
    """Read a rule; raises `RunError` if a name is missing or occurs twice."""
    words = [word.strip().partition("=") for word in composed(text).split(",")]
    found = [
        Column(name.strip(), tuple(map(str.strip, texts.split("|"))) if texts else ())
        for name, _, texts in words
    ]
    names = [column.name for column in found]
    if "" in names or len(set(names)) < len(names):
        raise RunError(f'columns = "{text}": must be different names, such as age,sex=f|m')
    return found


def written(columns: Sequence[Column]) -> str:
    """Return the rule as a text."""
    return ",".join(c.name + ("=" + "|".join(c.texts) if c.texts else "") for c in columns)


def found_in(frame: pd.DataFrame, names: Sequence[str], where: Where) -> list[Column]:
    """Return the rule that the values suggest; raises `RunError` if they suggest none.

    It says of all columns why they cannot be inputs, and gives the rule of the others. `where` says
    where each row is, for messages.
    """
    found, wrong = list[Column](), dict[str, str]()
    for name in names:
        try:
            found.append(Column(name, _texts(frame[name], name, where)))
        except RunError as error:
            wrong[name] = str(error)
    if wrong:
        raise _unusable(wrong, found, where)
    return found


def _unusable(wrong: Mapping[str, str], found: Sequence[Column], where: Where) -> RunError:
    """Return the error of columns by name, with the rule of those that were `found` beside them."""
    first, *others = [*wrong.values()][:MOST_TOLD]
    told = [first, *(text.removeprefix(f"{where(0)}: ") for text in others)]
    if rest := [*wrong][MOST_TOLD:]:
        told.append(f"likewise {some(rest)}")
    if found:
        told.append(_without(found, "it" if len(wrong) == 1 else "them"))
    return RunError("; ".join(told))


def _without(rest: Sequence[Column], what: str) -> str:
    return f'columns="{written(rest)}" leaves {what} out'


@each_text_once
def numbers(values: pd.Series) -> np.ndarray:
    """Return a column as float64 [N]; NaN stands for what is missing, or is no number.

    Dates and durations are none: pandas would count them in a unit that each file has for itself.
    """
    plain = values.astype(object) if holds_texts(values) else values
    found = pd.to_numeric(plain, errors="coerce")
    return found.to_numpy(np.float64, na_value=np.nan)


def are_numbers(values: pd.Series) -> bool:
    """Tell whether texts are numbers to predict with slips among them, and not classes.

    Most of them are numbers, also with a decimal comma, which is a slip; and these are not whole,
    or as many as no classes are.
    """
    found, texts = numbers(values.dropna()), stripped(values.dropna())
    there = found[~np.isnan(found)]
    commas = sum(map(bool, map(_COMMA.fullmatch, texts)))
    plain = not commas and bool((there % 1 == 0).all()) and len(set(texts)) <= MOST_TEXTS
    return len(texts) / 2 < len(there) + commas and len(there) < len(texts) and not plain


def no_number(values: pd.Series, name: str, where: Where, codes: str = "") -> RunError:
    """Return the error of the first text that is no number; `codes` is a rule that takes texts."""
    row = int((values.notna().to_numpy() & np.isnan(numbers(values))).argmax())
    text = shortened(str(values.iloc[row]), MOST_LETTERS)
    missing = "if it stands for a missing value, leave the cell empty, or write NA, NaN or ?"
    cure = (_otherwise(text) or missing) + f', or for codes columns="{codes}"' * bool(codes)
    return RunError(f'{where(row)}: column {name} holds "{text}", not a number; {cure}')


def _codes(name: str, values: pd.Series) -> str:
    """Return the beginning of the rule that takes a column for texts."""
    named = sorted(set(stripped(values)))
    return f"{name}={'|'.join(named[:3])}{'|...' * (len(named) > 3)}"


def _codes_in(frame: pd.DataFrame, columns: Sequence[Column]) -> Iterator[str]:
    """Yield the same for all columns that are taken for numbers, and hold texts only; no dates."""
    for name in [column.name for column in columns if not column.texts]:
        values = frame[name].dropna()
        if len(values) and np.isnan(numbers(values)).all() and not _DATE.match(str(values.iloc[0])):
            yield _codes(name, values)


def _texts(values: pd.Series, name: str, where: Where) -> tuple[str, ...]:
    if set(name) & set(",="):
        raise RunError(
            f'{where(0)}: column "{name}" has a comma or =, which the rule of the inputs cannot'
            f" have; rename it, or {_CLIENTS}"
        )
    refuse_lists(values, where)
    there = values.dropna()
    found = ~np.isnan(numbers(there)) if holds_texts(values) else np.ones(len(there), bool)
    if found.all():
        return ()
    if found.sum() > len(there) / 2:
        raise no_number(values, name, where, _codes(name, there))
    texts = tuple(sorted(set(stripped(there))))
    if len(texts) > MOST_TEXTS:
        clients = f"{_CLIENTS}; if it is a category, {_VALUES}"
        cure = _otherwise(texts[0]) or (_SENTENCES if _are_sentences(texts) else clients)
        raise RunError(f"{where(0)}: column {name} holds {len(texts)} different texts; {cure}")
    if odd := [word for word in (name, *texts) if set(word) & set(",=|")]:
        row = int((stripped(values) == odd[0]).argmax())
        cure = f"rename it, or {_CLIENTS}"
        if _COMMA.fullmatch(odd[0]):
            cure = f"{_otherwise(odd[0])}, otherwise {cure}"
        if _are_sentences(texts):
            cure = _SENTENCES
        text = shortened(odd[0], MOST_LETTERS)
        raise RunError(f'{where(row)}: column {name}: "{text}" has a comma, = or |; {cure}')
    return texts


def _are_sentences(texts: Sequence[str]) -> bool:
    return sum(text.count(" ") > 1 for text in texts) > len(texts) / 2


def _otherwise(text: str) -> str:
    """Say how to write a number or date that is written in another way; "" if a text is none."""
    plain = text.replace(",", "")
    thousands = f", or {plain} if it marks thousands" * bool(_THOUSANDS.fullmatch(text))
    if _COMMA.fullmatch(text):
        return f"a decimal comma? write {text.replace(',', '.')}{thousands}"
    if thousands:
        return f"thousands? write {plain}"
    return _DATES if _DATE.match(text) else ""


def notes(frame: pd.DataFrame, chosen: Sequence[Column], found: bool) -> list[str]:
    """Tell of empty columns; and of ids and dates, if the columns were `found` in the data."""
    told = []
    for column in chosen:
        values = frame[column.name].dropna()
        number = pd.api.types.is_numeric_dtype(values) and len(values) >= LEAST_IDS
        if values.empty:
            what = "is empty in all rows"
        elif found and number and values.is_unique and (values % 1 == 0).all():
            what = "has another whole number in each row, as an id has"
        elif found and column.texts and all(map(_DATE.match, column.texts)):
            what = f"holds dates: each of its {len(column.texts)} texts is a category of its own"
        else:
            continue
        rest = [other for other in chosen if other != column]
        cure = f"; {_without(rest, 'it')}" if rest else ""
        told.append(f"column {column.name} {what}{cure}")
    return told


def encoded(rows: Rows, columns: Sequence[Column], gaps: bool) -> np.ndarray:
    """Return the features, float64 [N, F]; what is missing is NaN. Raises `RunError`.

    With `gaps`, values may be missing, which messages propose.
    """
    there = [*map(str, rows.frame.columns)]
    if lost := [column.name for column in columns if column.name not in there]:
        hint = did_you_mean(lost[0], there)
        raise RunError(f"{rows.files[0].path}: no column {lost[0]}{hint}; there are {some(there)}")
    widths = [len(column.texts) or 1 for column in columns]
    features = np.empty((len(rows.frame), sum(widths)))
    ends = np.cumsum(widths).tolist()
    for column, width, end in zip(columns, widths, ends, strict=True):
        features[:, end - width : end] = _features(rows, column, columns, gaps)
    return features


def _features(rows: Rows, column: Column, columns: Sequence[Column], gaps: bool) -> np.ndarray:
    values = rows.frame[column.name]
    there = values.notna().to_numpy()
    if column.texts:
        found = (stripped(values)[:, None] == np.array(column.texts, object)).astype(np.float64)
        wrong, allowed = there & ~found.any(axis=1), shortened("|".join(column.texts), 100)
        found[~there] = np.nan
    else:
        found = numbers(values)[:, None]
        wrong, allowed = there & ~np.isfinite(found[:, 0]), "a finite number"
    if wrong.any():
        row = int(wrong.argmax())
        text = shortened(str(values.iloc[row]), MOST_LETTERS)
        cure = "; or leave the cell empty" if gaps else f"; {_LATER}" * bool(column.texts)
        if not column.texts and (way := _otherwise(text)):
            cure = f"; {way}"
        elif not column.texts and np.isnan(found[there]).all():  # texts are taken for numbers
            cure = f"; {_cure_of_texts(values, rows.frame, columns)}"
        raise RunError(
            f'{rows.where(row)}: column {column.name} holds "{text}"; must be {allowed}{cure}'
        )
    if not column.texts:
        demand_size(rows, [column.name], found)
    return found


def _cure_of_texts(values: pd.Series, frame: pd.DataFrame, columns: Sequence[Column]) -> str:
    """Say what to do with a column that holds texts only, and is taken for numbers."""
    texts = [*stripped(values.dropna())]
    if _are_sentences(texts):
        return _SENTENCES
    read = "set text-length to read them as sentences, or " * (len(columns) == 1)
    return f"of texts, {read}name the values in columns: {','.join(_codes_in(frame, columns))}"


def demand_size(rows: Rows, names: Sequence[str], values: np.ndarray) -> None:
    """Refuse numbers in these columns, [N] or [N, names], that no float32 is close to."""
    values = values.reshape(len(values), -1)
    if len(large := np.argwhere(np.abs(values) > LARGEST)):
        row, column = large[0].tolist()
        told = f"holds {values[row, column]:g}; must be {RANGE}"
        raise RunError(f"{rows.where(row)}: column {names[column]} {told}")
