"""The files of a run directory: made, appended to, written whole."""

import csv
import io
import re
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import safetensors.numpy

from fedapps.core.errors import RunError
from fedapps.core.settings import Settings

Rows = Iterable[Iterable[object]]

# At the start of a cell, or behind what separates cells where a comma is decimal.
_FORMULA = re.compile(r"(^|;)(\s*[=+\-@＝＋－＠])")  # noqa: RUF001


def make(runs_dir: Path, run_name: str, settings: Settings) -> Path:
    """Make the directory of a new run, of a name of its own if `run_name` is empty.

    Raises `RunError` if a named run exists or the folder cannot be made.
    """
    if Path(run_name).is_absolute() or ".." in Path(run_name).parts:
        raise RunError(f'run-name = "{run_name}": must be a name below runs-dir')
    for folder in _candidates(runs_dir, run_name, settings):
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError as error:
            if not folder.exists():  # it is a file on the way that exists
                raise RunError(f"cannot make {folder}: {error.strerror}") from error
        except OSError as error:
            raise RunError(f"cannot make {folder}: {error.strerror or error}") from error
    raise RunError(f'run-name = "{run_name}": {folder} exists; take another name or ""')


def append(path: Path, rows: Rows) -> None:
    """Append rows to a table; raises `RunError` if it cannot be written."""
    try:
        # An error's text can name a file whose name is not UTF-8.
        with path.open("a", encoding="utf-8", errors="backslashreplace", newline="") as file:
            file.write(csv_text(rows))
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror or error}") from error


def csv_text(rows: Rows) -> str:
    """Return rows as CSV; floats are read back as they were, and no text is a formula."""
    text = io.StringIO()
    lines = ([harmless(c) if isinstance(c, str) else c for c in row] for row in rows)
    csv.writer(text, lineterminator="\n").writerows(lines)  # csv writes floats with repr
    return text.getvalue()


def harmless(cell: str) -> str:
    """Return a text that no spreadsheet runs, with an apostrophe before what begins a formula.

    Clients have a say in the details of events, as with the text of an error.
    """
    line = re.sub(r"[\t\r\n]+", " ", cell)  # which may separate cells and rows
    return _FORMULA.sub(r"\1'\2", line)


def model_bytes(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Pack arrays as safetensors; the same arrays give the same bytes."""
    # Metadata would be written in random order, and strides would be ignored.
    return safetensors.numpy.save({k: np.asarray(arrays[k], order="C") for k in sorted(arrays)})


def _candidates(runs_dir: Path, run_name: str, settings: Settings) -> Iterable[Path]:
    if run_name:
        yield runs_dir / run_name
        return
    data = re.sub(r"[^\w.-]+", "-", Path(settings.dataset).stem)
    name = f"{settings.strategy}-{data}-s{settings.seed}-{time.strftime('%Y%m%d-%H%M%S')}"
    yield runs_dir / name
    for number in range(2, 1000):
        yield runs_dir / f"{name}-{number}"
