"""Reads the tables of a run directory as data frames."""

from pathlib import Path
from typing import Any

import pandas as pd

from fedapps.core.errors import RunError
from fedapps.report.rows import NEWCOMERS, OF_TRAINING


def read(path: Path, **how: Any) -> pd.DataFrame:
    """Read a table; `how` are arguments of pandas.read_csv. Raises `RunError` if it is damaged."""
    try:
        return pd.read_csv(path, **how)
    except (OSError, ValueError) as error:  # ValueError: not CSV, or not UTF-8
        reason = getattr(error, "strerror", None) or error
        raise RunError(f"{path}: cannot be read ({reason})") from error


def counted(rounds: pd.DataFrame) -> pd.DataFrame:
    """Return rounds.csv with the costs that count: what newcomers train is no training."""
    found = rounds.copy()
    if "phase" in found:
        found.loc[found["phase"] == NEWCOMERS, [*OF_TRAINING]] = 0
    return found
