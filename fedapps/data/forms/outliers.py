"""Values so far from all others that these count as nearly equal, once they are normalized.

One broken row does this to everybody, since mean and deviation are those of all clients; and so
does a client whose values are in another unit. Heavy tails do not: there is no gap before them.
Nor does -999 for what is missing beside numbers from 0 to 100, but it is no number either.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache

import numpy as np

from fedapps.core.words import some
from fedapps.data.forms.form import Where

SAMPLE = 1000  # rows that tell whether a column is worth looking at as a whole
MANY = 100_000  # rows that are enough to compare clients
FAR = 100  # times as far from the median as all others; or as wide as the range of most clients
MOST = 0.1  # of the others that differ from the median; if more are far, they are no slips
TAIL = 10  # times as large as the way from the usual to the farthest other must such a step be
HARM = 10  # times as large as the others' differences is the deviation: these are nearly equal
LEAST = 10  # values that a client needs to have a range, which is that of the middle 90 %
OFTEN = 3  # times among `SAMPLE` rows is a value there that may be a mark for what is missing
VARIED = 10  # different values make a column no few codes, of which 99 can be one
CODES = 2  # from a mark, there can be others: 97, 98 and 99 say why a value is missing
APART = 1  # times the range of all others is a value from them that is no number, but a mark
CLIENTS = 3  # are needed to say which of them is the odd one
# what types of integers, netCDF, CMIP and GDAL have for nothing, without their signs
FILLS = {"32767", "32768", "65535", "2.14748e+09", "4.29497e+09", "9.22337e+18"}
FILLS |= {"1e+20", "9.96921e+36", "3.40282e+38"}
_EQUAL = "which then count as nearly equal"


def told(
    where: Where,
    names: Sequence[str],
    rows: np.ndarray,
    targets: bool,
    owners: Callable[[], np.ndarray] | None = None,
    beginning: bool = False,
) -> list[str]:
    """Return at most three lines about columns [N, columns] with these names.

    `where` says where a row is. `owners` returns the clients [N], if they are known. With
    `beginning`, there are more rows than these.
    """
    if not len(rows):
        return []

    @cache
    def clients() -> tuple[np.ndarray, np.ndarray]:
        assert owners
        return np.unique(owners().astype(str), return_inverse=True)

    slips, units, marks = (dict[int, tuple[float, str]]() for _ in range(3))
    with np.errstate(over="ignore", invalid="ignore"):  # numbers too large are refused elsewhere
        for place in _suspicious(rows):
            column = rows[:, place].astype(np.float64)
            if slip := _far(column):
                bad, far, count = slip
                share = f"{len(far)} of {'the first ' * beginning}{count} values"
                at, text = f"{where(int(far[0]))}: {names[place]}", f"{column[far[0]]:g}"
                slips[place] = bad, f"{at}: {share}, {_slip(text, len(far), targets)}"
            elif owners and (unit := _wide(column, *clients())):
                units[place] = unit[0], f"{names[place]}: {unit[1]}"
        for place, value in _repeated(rows):
            column = rows[:, place].astype(np.float64)
            if place not in slips and (gap := _apart(column, value)):
                at = f"{where(int(np.argmax(column == value)))}: {names[place]}"
                share = f"{(column == value).sum()} of {'the first ' * beginning}"
                text = f"{share}{np.isfinite(column).sum()} values are {value:.9g}"
                marks[place] = gap, f"{at}: {text}, {_mark(targets)}"
    return [_worst(found, names) for found in (slips, units, marks) if found]


def _suspicious(rows: np.ndarray) -> Iterator[int]:
    """Yield the columns in which a value is `FAR` from the median of some; cheap for all others."""
    low, high = np.fmin.reduce(rows, axis=0), np.fmax.reduce(rows, axis=0)  # NaN does not count
    few = rows[:: max(1, len(rows) // SAMPLE)]
    for place in np.flatnonzero(high > low).tolist():
        values = few[:, place].astype(np.float64)
        middle, away = _away(values[np.isfinite(values)])
        usual = np.median(others) if len(others := away[away > 0]) else 0.0
        if max(high[place] - middle, middle - low[place]) > FAR * usual:
            yield place


def _away(values: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the median of values, and how far each is from it."""
    middle = float(np.median(values)) if len(values) else 0.0
    return middle, np.abs(values - middle)


def _far(column: np.ndarray) -> tuple[float, np.ndarray, int] | None:
    """Return how bad a column is, the rows of its far values, the farthest first; and its size."""
    rows = np.flatnonzero(np.isfinite(column))
    _, away = _away(column[rows])
    others = away[away > 0]
    first = len(others) - 1 - int(len(others) * MOST / (1 + MOST))
    if not len(others) or away.max() <= FAR * np.partition(others, first)[first]:
        return None
    others = np.sort(others)
    below, above, usual = others[first:-1], others[first + 1 :], np.median(others)
    # a heavy tail has large steps, too, but after others: before them, it is far from what is usual
    gaps = np.flatnonzero((above > FAR * below) & (above * usual > TAIL * below**2))
    if not len(gaps) or column[rows].std() <= HARM * (edge := below[gaps[0]]):
        return None
    order = np.argsort(-away, kind="stable")[: (away > edge).sum()]
    return float(column[rows].std() / edge), rows[order], len(rows)


def _slip(text: str, count: int, targets: bool) -> str:
    """Say of `count` values what they do, and what to do with them; `text` is the farthest."""
    if count == 1:
        are, them, cure = f"{text}, is", "it", "leave its row out"
    else:
        are, them, cure = f"such as {text}, are", "them", "leave their rows out"
    if not targets:
        cure = _missing(them)
    return f"{are} far from all others, {_EQUAL}; correct {them}, or {cure}"


def _missing(them: str) -> str:
    """Return how a user makes values missing."""
    return f'make {them} missing (an empty cell, NaN) with missing="mean"'


def _repeated(rows: np.ndarray) -> Iterator[tuple[int, float]]:
    """Yield columns, with their least or largest value, if some rows say that it is a mark."""
    few = rows[:: max(1, len(rows) // SAMPLE)]
    if len(few) <= VARIED:
        return
    finite = np.where(np.isfinite(few), few, np.nan)
    low, high = np.fmin.reduce(finite, axis=0), np.fmax.reduce(finite, axis=0)
    for place in np.flatnonzero(high > low).tolist():
        for value in (float(low[place]), float(high[place])):
            column = finite[:, place]
            often = _can_mark(value) and (column == value).sum() >= OFTEN
            varied = often and (~np.isnan(np.unique(column))).sum() > VARIED
            if varied and _apart(column, value):
                yield place, value


def _can_mark(value: float) -> bool:
    """Tell whether a value is made of nines, such as 999 or -99.9, a fill, or negative hundreds.

    Any other can be the end of a scale, or a 0 that was transformed with the rest.
    """
    digits = f"{abs(value):{'.0f' if value.is_integer() else 'g'}}"
    nines = {*digits.replace(".", "")} == {"9"} and (value.is_integer() or abs(value) > 99)
    return nines or f"{abs(value):g}" in FILLS or (value < 0 and not value % 100)


def _apart(column: np.ndarray, value: float) -> float:
    """Return how far a value that can be a mark is from all others, in their ranges.

    It is 0 if it is too near, or hundreds beside other negative numbers. Whole numbers next to a
    mark of two digits or more are marks, too, such as 97 and 98 next to 99.
    """
    away = np.abs(column - value)
    beside = column[away <= CODES]
    whole = abs(value) > 9 and bool((beside == np.floor(beside)).all())
    others = column[np.isfinite(column) & (away > CODES * whole)]
    low, high = float(others.min()), float(others.max())
    gap = max(low - value, value - high) / (high - low) if high > low else 0.0
    alone = low >= 0 or value % 100 or f"{abs(value):g}" in FILLS
    return gap if gap >= APART and alone else 0.0


def _mark(targets: bool) -> str:
    """Say what a value that stands apart probably is, and what to do with it."""
    cure = "leave their rows out" if targets else _missing("them")
    return f"far from all others; if it stands for missing values, {cure}"


def _wide(column: np.ndarray, names: np.ndarray, of: np.ndarray) -> tuple[float, str] | None:
    """Return how bad a column is, and what to say of clients whose values differ so much more."""
    rows = np.flatnonzero(np.isfinite(column))
    rows = rows[:: max(1, len(rows) // MANY)]
    column, of = column[rows], of[rows]
    sizes = np.bincount(of, minlength=len(names))
    ends, values = np.cumsum(sizes), column[np.lexsort((column, of))]
    enough = np.flatnonzero(sizes >= LEAST)
    first, least = (ends - sizes)[enough], (0.05 * (sizes[enough] - 1) + 1).astype(np.int64)
    ranges = values[ends[enough] - 1 - least] - values[first + least]
    if len(enough) < CLIENTS or not (usual := float(np.median(ranges))):
        return None
    odd = enough[ranges > FAR * usual]
    if not len(odd) or column.std() <= HARM * usual:
        return None
    text = (
        f"the values of {some(names[odd].tolist())} have a range {ranges.max() / usual:.0f} times"
        f" as wide as those of most others, {_EQUAL}; if they are in another unit, convert them"
    )
    return column.std() / usual, text


def _worst(found: dict[int, tuple[float, str]], names: Sequence[str]) -> str:
    """Return the line of the worst column, which names the others."""
    worst = max(found, key=lambda place: found[place][0])
    likewise = some([names[place] for place in found if place != worst])
    return found[worst][1] + f"; likewise {likewise}" * bool(likewise)
