"""Reads the tables of a run directory as data frames."""

import io
from pathlib import Path
from typing import Any

import pandas as pd

from fedapps.core.errors import RunError
from fedapps.report import directory
from fedapps.report.rows import NEWCOMERS, OF_TRAINING

TEXTS = {"client", "kind", "detail", "name"}  # columns that are never empty, but can say NA


def read(path: Path, content: bytes | None = None, without: str = "", **how: Any) -> pd.DataFrame:
    """Read a table, or its `content`; `how` are arguments of pandas.read_csv.

    Raises `RunError` if it is damaged, or not there; `without` says why a run can be without it.
    """
    if without and not path.exists():
        raise RunError(f"{path.parent}: has no {path.name}: {without}")
    try:
        head, table = (path if content is None else io.BytesIO(content) for _ in range(2))
        missing = {name: ["", "nan"] for name in {*pd.read_csv(head, nrows=0)} - TEXTS}
        return pd.read_csv(table, keep_default_na=False, na_values=missing, **how)
    except (OSError, ValueError) as error:  # ValueError: not CSV, or not UTF-8
        reason = getattr(error, "strerror", None) or error
        raise RunError(f"{path}: cannot be read ({reason})") from error


def last(path: Path, column: str) -> pd.DataFrame:
    """Read the rows of a table's last round with values in a column, and only those with one.

    The table can be long, so it is read from its end. Raises `RunError` if it is damaged.
    """
    found = read(path, nrows=0)
    for lines in directory.backwards(path):
        found = read(path, b"\n".join(lines)).dropna(subset=[column])
        if len(found):
            break
    return found


def of_round(path: Path, round_: int) -> pd.DataFrame:
    """Read the rows of a round; none if the table has none, or if there is no table.

    It is read from its end. Raises `RunError` if it is damaged.
    """
    if path.exists():
        for head, *lines in directory.backwards(path):
            if lines[0].partition(b",")[0] == b"%d" % round_:
                return read(path, b"\n".join([head, *lines]))
    return pd.DataFrame()


def counted(rounds: pd.DataFrame) -> pd.DataFrame:
    """Return rounds.csv with the costs that count: what newcomers train is no training."""
    found = rounds.copy()
    found.loc[found["phase"] == NEWCOMERS, [*OF_TRAINING]] = 0
    return found
