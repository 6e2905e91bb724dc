"""Read the files of a run directory for its page; the run can be old or unfinished."""

import json
import math
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedapps.core.options import flat
from fedapps.report.about import task_of
from fedapps.report.columns import Columns, columns_of
from fedapps.report.directory import NAMES, rows_of
from fedapps.report.rows import is_counted
from fedapps.tasks import CLASSIFICATION, Metric, Task
from fedapps.wire import contacts
from fedapps.wire.contacts import Contacts

Row = dict[str, str]
FAILURE = "failure"  # kind of the events of failing clients


@dataclass(frozen=True)
class RunFiles:
    """The files of a run directory; table rows are texts by column, and a missing file is empty.

    `clients` and `classes` are those of the last evaluation; `samples` has the number of training
    samples per client and class.
    """

    folder: Path
    config: dict[str, Any]
    rounds: list[Row]
    clients: list[Row]
    names: dict[str, str]  # what the data call each client, by its number
    classes: list[Row]
    samples: list[Row]
    events: list[Row]
    summary: dict[str, Any]
    about: dict[str, Any]  # run.json
    task: Task = CLASSIFICATION
    contacts: Contacts | None = None  # devices.json

    @classmethod
    def read(cls, folder: Path, clients: bool = True) -> "RunFiles":
        """Read a run directory; the tables of clients can be long, and be left out."""
        return cls(
            folder,
            _config(folder / "config.toml"),
            _table(folder / "rounds.csv"),
            _last_evaluation(folder / "clients.csv") if clients else [],
            {row.get("client", ""): row.get("name", "") for row in _table(folder / NAMES)},
            _table(folder / "classes.csv"),
            _table(folder / "samples.csv") if clients else [],
            _table(folder / "events.csv"),
            _object(folder / "summary.json"),
            _object(folder / "run.json"),
            task_of(folder),
            contacts.read(folder),
        )

    @property
    def columns(self) -> Columns:
        """The columns of the tables."""
        return columns_of(self.task)

    @property
    def lead(self) -> Metric:
        """The metric by which the run is compared with others."""
        return self.task.lead

    @property
    def of_training(self) -> list[Row]:
        """The rows of rounds without those of a phase that follows the last one."""
        rounds = {row.get("round", ""): row for row in reversed(self.rounds)}
        return [row for row in self.rounds if rounds[row.get("round", "")] is row]

    def total(self, column: str) -> float:
        """Return the sum of a cost over the rows of rounds; that of training has no newcomers."""
        counted = (row for row in self.rounds if is_counted(column, row.get("phase", "")))
        return sum(number(row, column) or 0.0 for row in counted)

    def called(self, client: str) -> str:
        """Return a client's number, with its name in brackets if the data have one."""
        return f"{client} ({self.names[client]})" if self.names.get(client) else client

    def evaluated(self, rows: list[Row]) -> list[Row]:
        """Return the rows that have a personalized score."""
        return [row for row in rows if number(row, self.lead.personalized) is not None]


def number(row: Row, column: str) -> float | None:
    """Return a cell as a finite number, or None if it is none."""
    try:
        value = float(row.get(column) or "")
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _table(path: Path) -> list[Row]:
    return rows_of(_lines(path))


def _last_evaluation(path: Path) -> list[Row]:
    """Parse only the lines of the last round: the whole table can be long."""
    head, *lines = _lines(path)
    if not lines:
        return []
    round_, first = lines[-1].partition(",")[0] + ",", len(lines) - 1
    while first > 0 and lines[first - 1].startswith(round_):
        first -= 1
    return rows_of([head, *lines[first:]])


def _lines(path: Path) -> list[str]:
    """Return the lines of a table; names have other signs that `str.splitlines` takes for ends."""
    return _text(path).removesuffix("\n").split("\n")


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", errors="replace").replace("\0", "")
    except OSError:
        return ""


def _config(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = flat(tomllib.loads(_text(path)))
    except (tomllib.TOMLDecodeError, ValueError):
        return {}
    return found


def _object(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(_text(path) or "{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
