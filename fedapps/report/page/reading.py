"""Read the files of a run directory for its page; the run can be old or unfinished."""

import csv
import json
import math
import os
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedapps.core.options import flat
from fedapps.report.about import task_of
from fedapps.report.columns import Columns, columns_of
from fedapps.report.directory import NAMES, backwards, rows_of
from fedapps.report.rows import is_counted
from fedapps.tasks import CLASSIFICATION, Metric, Task
from fedapps.wire import contacts
from fedapps.wire.contacts import Contacts

Row = dict[str, str]
FAILURE = "failure"  # kind of the events of failing clients


@dataclass(frozen=True)
class RunFiles:
    """The files of a run directory; table rows are texts by column, and a missing file is empty.

    `clients` are those of the last evaluation that personalized, or else of the last one, and
    `classes` those of the last one; `samples` has the number of training samples per client and
    class.
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
    def read(
        cls, folder: Path, clients: bool = True, reader: "TableReader | None" = None
    ) -> "RunFiles":
        """Read a run directory; the tables of clients can be long, and be left out.

        `reader` remembers what it has read of the tables of rounds and events before.
        """
        reader, table, task = reader or TableReader(), TableReader(), task_of(folder)
        return cls(
            folder,
            _config(folder / "config.toml"),
            reader(folder / "rounds.csv"),
            _last_evaluation(folder / "clients.csv", task.lead.personalized) if clients else [],
            {row.get("client", ""): row.get("name", "") for row in table(folder / NAMES)},
            table(folder / "classes.csv"),
            table(folder / "samples.csv") if clients else [],
            reader(folder / "events.csv"),
            _object(folder / "summary.json"),
            _object(folder / "run.json"),
            task,
            contacts.read(folder),
        )

    @property
    def columns(self) -> Columns:
        """The columns of the tables."""
        return columns_of(self.task)

    @property
    def notes(self) -> list[str]:
        """What the run told of its data; none if an earlier version wrote it."""
        found = self.about.get("notes")
        return [str(note) for note in found] if isinstance(found, list) else []

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

    def evaluated(self, rows: list[Row], metric: Metric | None = None) -> list[Row]:
        """Return the rows that have a personalized value of a metric, by default of the lead."""
        column = (metric or self.lead).personalized
        return [row for row in rows if number(row, column) is not None]


def number(row: Row, column: str) -> float | None:
    """Return a cell as a finite number, or None if it is none."""
    try:
        value = float(row.get(column) or "")
    except ValueError:
        return None
    return value if math.isfinite(value) else None


class TableReader:
    """Reads tables that grow again and again; each time, it parses only the lines that are new.

    A table that has become shorter is read anew.
    """

    def __init__(self) -> None:
        self._known: dict[Path, tuple[int, str, list[Row]]] = {}

    def __call__(self, path: Path) -> list[Row]:
        """Return all rows of a table; none if it cannot be read."""
        end, head, rows = self._known.get(path, (0, "", []))
        try:
            with path.open("rb") as file:
                if file.seek(0, os.SEEK_END) < end:
                    end, head, rows = 0, "", []
                file.seek(end)
                data = file.read()
            size = data.rfind(b"\n") + 1
            *lines, begun = _plain(data).split("\n")  # `splitlines` would cut names, too
            if not head and lines:
                head = lines.pop(0)
            rows = rows + rows_of([head, *lines])
            self._known[path] = end + size, head, rows  # at once, because visits can overlap
            return rows + (rows_of([head, begun]) if head else [])
        except (OSError, csv.Error):
            return []


def _last_evaluation(path: Path, column: str) -> list[Row]:
    """Parse the lines of the last round with values in a column, or of the last if none has any.

    The whole table can be long.
    """
    newest: list[Row] = []
    try:
        for lines in backwards(path):
            rows = rows_of(map(_plain, lines))
            if any(number(row, column) is not None for row in rows):
                return rows
            newest = newest or rows
    except (OSError, csv.Error):
        pass
    return newest


def _text(path: Path) -> str:
    try:
        return _plain(path.read_bytes())
    except OSError:
        return ""


def _plain(data: bytes) -> str:
    return data.decode("utf-8", errors="replace").replace("\0", "")


def _config(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = flat(tomllib.loads(_text(path)))
    except ValueError:
        return {}
    return found


def _object(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(_text(path) or "{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
