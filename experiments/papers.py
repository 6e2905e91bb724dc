"""The papers' tables: what their cells run, at which scale, and what was published.

A table is a TOML file in `experiments/tables`. A row changes the base run-config, and a column
changes it further, so that a cell is a row in a column; a table without columns has one cell a row.

    title, source, note     what it is, where it stands in the paper, what to know
    base                    a run-config in experiments/configs
    columns                 column name = run-config (optional)
    [scales.cpu]            config: laid over all else; seeds: those that `run` takes by default;
                            rows, columns: patterns of those that belong to this scale (all);
                            trials: how many of a search are tried (8)
    [[rows]]                name, config, reads (how a figure is read: `readings.py`),
                            published (a number, or column = number; percent),
                            also (further readings of the same runs: reads, published),
                            columns (patterns of those it has a cell in), note,
                            search (key = list of values: chosen on validation parts)
    [[claims]]              says (of the paper; `ours: ` begins a question of ours), better (a row),
                            than (rows that it should be better than), reads (what is compared;
                            the rows' own readings): `claims.py`
    yardstick, alone        rows that all others are compared with, client by client
    follows, thresholds     a column of rounds.csv to draw over rounds; percent to reach
"""

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from fedapps.core import config
from fedapps.core.errors import RunError
from fedapps.core.schema import Scalar
from fedapps.core.words import did_you_mean, span

HERE = Path(__file__).parent
SCALES = ("smoke", "cpu", "paper")
Published = float | dict[str, float] | None


class Reading(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A figure that is read of a row's runs, and what was published for it (percent)."""

    reads: str
    published: Published = None

    def published_in(self, column: str) -> float | None:
        """Return the published figure of a column."""
        if isinstance(self.published, dict):
            return self.published.get(column)
        return self.published


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line of a table: what it changes in the base run-config, and how it is read."""

    name: str
    config: str = ""
    reads: str = "accuracy_personalized"
    published: Published = None
    also: tuple[Reading, ...] = ()
    columns: str = "*"  # patterns of the columns that it has a cell in
    search: dict[str, list[Any]] = {}  # values of keys to choose from (`tuning.py`)
    note: str = ""

    @property
    def readings(self) -> tuple[Reading, ...]:
        """All that is read of its runs, the main one first."""
        return (Reading(self.reads, self.published), *self.also)

    def reading(self, reads: str) -> Reading:
        """Return one by its name, with what was published for it; the main one if it has none."""
        known = {reading.reads: reading for reading in self.readings}
        return known.get(reads or self.reads, Reading(reads))


class Claim(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Something that a paper says, or that we ask: a row is better than others."""

    says: str
    better: str
    than: tuple[str, ...]
    reads: str = ""


class Scale(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How large a table is run, and which part of it."""

    config: str = ""
    seeds: str = "0"
    rows: str = "*"
    columns: str = "*"
    trials: int = 8  # of a row that has a search


@dataclass(frozen=True)
class Cell:
    """A row in a column of a table, at a scale: a run-config but for the seed."""

    table: "Table"
    row: Row
    column: str
    scale: str
    extra: str = ""  # settings that were chosen, laid over all others
    suffix: str = ""  # of a trial's name

    @property
    def name(self) -> str:
        """`row`, or `row@column`; a trial's ends in `~` and a number."""
        return (f"{self.row.name}@{self.column}" if self.column else self.row.name) + self.suffix

    def config(self, seed: int) -> dict[str, Scalar]:
        """Return the flat run-config; raises `RunError`."""
        table = self.table
        changes = [table.columns.get(self.column, ""), self.row.config]
        changes += [table.scales[self.scale].config, self.extra, f"seed={seed}"]
        return config.parse([str(table.base_file), *filter(None, changes)])


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table's TOML file."""

    title: str
    base: str
    source: str
    rows: tuple[Row, ...]
    note: str = ""
    columns: dict[str, str] = {}
    scales: dict[str, Scale] = {}
    follows: str = ""
    thresholds: tuple[int, ...] = ()
    claims: tuple[Claim, ...] = ()
    yardstick: str = ""
    alone: str = ""


@dataclass(frozen=True)
class Table:
    """A paper's table; the module's docstring explains its fields."""

    name: str
    title: str
    base: str
    source: str = ""
    note: str = ""
    rows: tuple[Row, ...] = ()
    columns: Mapping[str, str] = field(default_factory=dict)
    scales: Mapping[str, Scale] = field(default_factory=dict)
    follows: str = ""  # a column of rounds.csv of which every round is shown
    thresholds: Sequence[int] = ()  # percent: the first round that reaches it is reported
    claims: Sequence[Claim] = ()
    yardstick: str = ""
    alone: str = ""

    @property
    def about(self) -> str:
        """Where it stands in the paper, and what to know."""
        return f"{self.source}. {self.note}".strip()

    @property
    def base_file(self) -> Path:
        """The run-config that all rows start from."""
        return HERE / "configs" / f"{self.base}.toml"

    def cells(self, scale: str, only: str = "") -> list[Cell]:
        """Return the cells of a scale, of rows (or `row@column`) that match a pattern of `only`.

        Raises `RunError` if a pattern matches none.
        """
        if scale not in self.scales:
            known = ", ".join(self.scales) or "none"
            raise RunError(f"{self.name}: no scale {scale}; there is {known}")
        part = self.scales[scale]
        cells = [
            Cell(self, row, column, scale)
            for row in self.rows
            for column in self.columns or [""]
            if _matches(row.name, part.rows)
            and _matches(column, part.columns)
            and _matches(column, row.columns)
        ]
        if not only:
            return cells
        for pattern in only.split(","):
            if not any(_named(cell, pattern) for cell in cells):
                names = dict.fromkeys(cell.row.name for cell in cells)
                hint = did_you_mean(pattern, names)
                there = f"at scale {scale} {self.name} has {', '.join(names)}"
                raise RunError(f"row {pattern}: {there}{hint}")
        return [c for c in cells if any(_named(c, pattern) for pattern in only.split(","))]

    @cached_property
    def order(self) -> dict[str, int]:
        """The place of each row."""
        return {row.name: place for place, row in enumerate(self.rows)}


def tables() -> dict[str, Table]:
    """Read all tables; raises `RunError` for one that is not as the module's docstring says."""
    found = {}
    for path in sorted((HERE / "tables").glob("*.toml")):
        try:
            read: _File = msgspec.convert(_parsed(path), _File)
        except msgspec.ValidationError as error:
            raise RunError(f"{path.name}: {error}") from error
        names = [row.name for row in read.rows]
        if len(set(names)) != len(names):
            raise RunError(f"{path.name}: two rows have the same name")
        for name in (name for claim in read.claims for name in (claim.better, *claim.than)):
            if name not in names:
                raise RunError(f"{path.name}: a claim names row {name}{did_you_mean(name, names)}")
        fields: dict[str, Any] = msgspec.structs.asdict(read)
        found[path.stem] = Table(name=path.stem, **fields)
    return found


def pick(names: Iterable[str]) -> list[Table]:
    """Return tables by name, all for `all`; raises `RunError` for an unknown one."""
    known = tables()
    wanted = [*names]
    if wanted == ["all"]:
        return [*known.values()]
    for name in wanted:
        if name not in known:
            raise RunError(f"table {name}: must be one of all, {', '.join(known)}")
    return [known[name] for name in wanted]


def seeds(text: str) -> list[int]:
    """Read seeds, as 0-4 or 0,2; raises `RunError`."""
    try:
        return [*dict.fromkeys(seed for word in text.split(",") for seed in span(word))]
    except ValueError:
        raise RunError(f"--seeds {text}: must be numbers, as 0-4 or 0,2") from None


def _parsed(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise RunError(f"{path.name}: {error}") from error


def _matches(name: str, patterns: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns.split(","))


def _named(cell: Cell, pattern: str) -> bool:
    return fnmatchcase(cell.row.name, pattern) or fnmatchcase(cell.name, pattern)
