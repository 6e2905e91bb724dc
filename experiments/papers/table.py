"""The papers' tables: what their cells run, at which scale, and what was published.

A table is a TOML file in `experiments/tables`. A cell is a row in a column: it runs the base
run-config, changed first by the column, then by the row, then by the scale. A table without
columns has one cell per row. Values in brackets are defaults.

    title, source, note     its title, its place in the paper, and what readers should know
    short                   the title in a few words, for pictures and links
    base                    the name of a run-config in experiments/configs
    like                    another table, of which it has all fields that it does not have itself;
                            a row of the same name changes that table's row, field by field
    columns                 column name = run-config (optional)
    [scales.cpu]            config: overrides all other settings; seeds: the seeds that `run` uses
                            by default; rows, columns: patterns of those that this scale has [all];
                            trials: how many settings of a search are tried [8]
    [each_row]              what all rows have that do not say otherwise; a row's own `search` adds
                            keys to that of each row, or replaces their values (optional)
    [[rows]]                name, config, reads (how the figure is read: `papers/readings.py`),
                            published (a number, or column = number, in percent),
                            also (further readings of the same runs: reads, published),
                            columns (patterns of the columns in which it has a cell), note,
                            search (key = list of values, chosen on validation samples),
                            worst (clients that another row chooses: `run/dependent.py`),
                            reached (threshold = published first round, or "never")
    [[claims]]              says (the paper's claim; a question of ours begins with `ours: `),
                            better (a row), than (rows that it should be better than),
                            reads (the reading to compare [that of each row]),
                            columns (patterns of the columns in which it is judged),
                            published (row = difference in points): `outcomes/claims.py`
    yardstick, alone        rows with which all others are compared, client by client
    yardstick_is            what the row `yardstick` is, in words [its name]
    follows, thresholds     a column of rounds.csv to plot over rounds; accuracies in percent
    over                    a key that columns set: rows are plotted over its numbers, too
    side_by_side            true: the table has a column for each of its columns, not a line
    own_trials              true: each row with a search draws its trials on its own [false]
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import msgspec

from experiments import HERE
from fedapps.core import config
from fedapps.core.errors import RunError
from fedapps.core.schema import Scalar

SCALES = ("smoke", "cpu", "paper")
Published = float | dict[str, float] | None


class Reading(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A figure to read from a row's runs, and the published one (in percent)."""

    reads: str
    published: Published = None

    def published_in(self, column: str) -> float | None:
        """Return the published figure of a column."""
        if isinstance(self.published, dict):
            return self.published.get(column)
        return self.published


class Worst(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The clients that another row serves worst, as the value of a key."""

    row: str
    share: float
    key: str


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line of a table: its changes to the base run-config, and its readings."""

    name: str
    config: str = ""
    reads: str = "accuracy_personalized"
    published: Published = None
    also: tuple[Reading, ...] = ()
    columns: str = "*"  # patterns of the columns in which it has a cell
    search: dict[str, list[Any]] = {}  # for each key, the values to choose from (`run/tuning.py`)
    worst: Worst | None = None
    reached: dict[str, int | Literal["never"]] = {}
    note: str = ""

    @property
    def readings(self) -> tuple[Reading, ...]:
        """All readings of its runs, the main one first."""
        return (Reading(self.reads, self.published), *self.also)

    def reading(self, reads: str) -> Reading:
        """Return the reading of a name, with its published figure; without a name, the main one."""
        known = {reading.reads: reading for reading in self.readings}
        return known.get(reads or self.reads, Reading(reads))


class Claim(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The statement of a paper, or our own question, that a row is better than others."""

    says: str
    better: str
    than: tuple[str, ...]
    reads: str = ""
    columns: str = "*"
    published: dict[str, float] = {}


class Scale(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A size at which a table runs, and the rows and columns that it has there."""

    config: str = ""
    seeds: str = "0"
    rows: str = "*"
    columns: str = "*"
    trials: int = 8  # of a row that has a search


@dataclass(frozen=True)
class Cell:
    """A row in a column of a table, at a scale: a run-config that lacks only the seed."""

    table: "Table"
    row: Row
    column: str
    scale: str
    extra: str = ""  # chosen settings, which override all others
    of_seed: Mapping[int, str] = field(default_factory=dict)  # further ones, from runs of a seed
    suffix: str = ""  # the end of a trial's name

    @property
    def name(self) -> str:
        """`row` or `row@column`; the name of a trial ends in `~` and a number."""
        return (f"{self.row.name}@{self.column}" if self.column else self.row.name) + self.suffix

    def config(self, seed: int) -> dict[str, Scalar]:
        """Return the flat run-config; raises `RunError` for an invalid one."""
        flat = self._parsed(self.of_seed[seed]) if seed in self.of_seed else self._of_any_seed
        return flat | {"seed": seed}

    @cached_property
    def _of_any_seed(self) -> dict[str, Scalar]:
        return self._parsed("")

    def _parsed(self, own: str) -> dict[str, Scalar]:
        column, scale = self.table.columns.get(self.column, ""), self.table.scales[self.scale]
        changes = [column, self.row.config, scale.config, self.extra, own]
        return config.parse([str(self.table.base_file), *filter(None, changes)])


@dataclass(frozen=True, eq=False)
class Job:
    """A cell and a seed."""

    cell: Cell
    seed: int

    @property
    def name(self) -> str:
        """The name to print."""
        return f"{self.cell.table.name} {self.cell.name} s{self.seed}"


@dataclass(frozen=True)
class Table:
    """A paper's table; the docstring of this module explains the fields."""

    name: str
    title: str
    base: str
    source: str = ""
    note: str = ""
    rows: tuple[Row, ...] = ()
    columns: Mapping[str, str] = field(default_factory=dict)
    scales: Mapping[str, Scale] = field(default_factory=dict)
    follows: str = ""  # a column of rounds.csv to show for every round
    thresholds: Sequence[int] = ()  # percent: the first round that reaches each is reported
    over: str = ""
    side_by_side: bool = False
    own_trials: bool = False
    claims: Sequence[Claim] = ()
    short: str = ""
    yardstick: str = ""
    yardstick_is: str = ""
    alone: str = ""

    @property
    def about(self) -> str:
        """Its place in the paper, and what readers should know."""
        return f"{self.source}. {self.note}".strip()

    @property
    def base_file(self) -> Path:
        """The run-config from which all rows start."""
        return HERE / "configs" / f"{self.base}.toml"

    def cells(self, scale: str, only: str = "*") -> list[Cell]:
        """Return the cells of a scale whose row (or `row@column`) matches a pattern of `only`."""
        if scale not in self.scales:
            known = ", ".join(self.scales) or "none"
            raise RunError(f"{self.name}: no scale {scale}; there is {known}")
        part = self.scales[scale]
        cells = [
            Cell(self, row, column, scale)
            for row in self.rows
            for column in self.columns or [""]
            if matches(row.name, part.rows)
            and matches(column, part.columns)
            and matches(column, row.columns)
        ]
        return [c for c in cells if matches(c.row.name, only) or matches(c.name, only)]


def matches(name: str, patterns: str) -> bool:
    """Tell whether a name matches one of some patterns, which commas separate."""
    return any(fnmatchcase(name, pattern.strip()) for pattern in patterns.split(","))
