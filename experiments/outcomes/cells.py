"""The results of each cell of a table: runs by seed, means, intervals, differences."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter

import numpy as np
from scipy import stats

from experiments.papers import readings
from experiments.papers.table import SCALES, Cell, Reading, Table
from experiments.run.dependent import settled
from experiments.run.store import Run, Store

ROUNDING = 1e-9  # points, or of the largest value: values that differ less count as equal
HEADS = ("row", "seeds", "reading", "ours", "published", "difference")  # of `Outcome.lines`


@dataclass(frozen=True)
class Figure:
    """A reading of a cell over its seeds, in percent (or seconds).

    `half` is half the width of the 95 % interval, Student's t over the seeds; None with one seed.
    """

    values: tuple[float, ...]
    published: float | None

    @property
    def mean(self) -> float:
        """Mean over the seeds."""
        return float(np.mean(self.values))

    @property
    def half(self) -> float | None:
        """Half the width of the interval; None with one seed."""
        count = len(self.values)
        if count < 2:
            return None
        return float(stats.t.ppf(0.975, count - 1) * stats.sem(self.values))

    @property
    def span(self) -> tuple[float, float]:
        """The interval; with one seed, both ends are the mean."""
        half = self.half or 0.0
        return self.mean - half, self.mean + half

    @property
    def all_equal(self) -> bool:
        """Whether no two seeds differ; the interval has no width then, and says nothing."""
        return bool(np.ptp(self.values) <= ROUNDING * max(1.0, np.abs(self.values).max()))

    @property
    def sign(self) -> int | None:
        """1 if the interval is above zero, -1 if below; None with one seed.

        It is 0 if the interval has zero, or if all values are equal.
        """
        if self.half is None:
            return None
        unclear = self.all_equal or abs(self.mean) <= self.half
        return 0 if unclear else int(np.sign(self.mean))

    @property
    def difference(self) -> float | None:
        """Our mean minus the published figure."""
        return None if self.published is None else self.mean - self.published

    def texts(self) -> list[str]:
        """Return the cells of a table about it: our mean, the published figure, the difference."""
        published = "" if self.published is None else f"{self.published:.2f}"
        difference = "" if self.difference is None else f"{self.difference:+.2f}"
        return [self.text(), published, difference]

    def text(self, sign: str = "", digits: int = 2) -> str:
        """The mean, with its interval if there is one; `sign="+"` also marks positive means."""
        mean = f"{self.mean:{sign}.{digits}f}"
        return mean if self.half is None else f"{mean} ± {self.half:.{digits}f}"


Groups = dict[str, dict[str, list[tuple[float, Figure]]]]  # by columns and row: x and figure


@dataclass(frozen=True)
class Outcome:
    """A cell and its runs, ordered by seed; `diverged` are the seeds whose training diverged."""

    cell: Cell
    runs: Sequence[Run]
    diverged: Sequence[int] = ()

    def by_seed(self, reading: Reading) -> dict[int, float]:
        """Return a reading in percent (or seconds), for each seed whose run has it."""
        key, factor = reading.reads, readings.factor(reading.reads)
        return {run.seed: factor * run.figures[key] for run in self.runs if key in run.figures}

    def figure(self, reading: Reading) -> Figure | None:
        """Return a reading over the seeds; None if no run has it."""
        values = tuple(self.by_seed(reading).values())
        return Figure(values, reading.published_in(self.cell.column)) if values else None

    def lines(self) -> Iterator[list[str]]:
        """Yield the cells under `HEADS`, a line per reading; only the first names row and seeds."""
        about = [self.cell.name, ",".join(str(run.seed) for run in self.runs)]
        for reading in self.cell.row.readings:
            if figure := self.figure(reading):
                yield [*about, words(reading.reads), *figure.texts()]
                about = ["", ""]
        if self.diverged:
            seeds = ",".join(map(str, self.diverged))
            yield [about[0], seeds, "training diverged", "", "", ""]

    def text(self, reading: Reading) -> str:
        """Return a reading over the seeds in a few words, such as `87.1 ± 2.3, 1 diverged`."""
        figure = self.figure(reading)
        shown = [figure.text(digits=1)] if figure else []
        if self.diverged:
            shown.append(f"{len(self.diverged)} diverged" if shown else "diverged")
        return ", ".join(shown)


def named_seeds(seeds: Collection[int]) -> str:
    """Return seeds in words, such as `seeds 0,2`."""
    return f"{'seed' if len(seeds) == 1 else 'seeds'} {','.join(map(str, sorted(seeds))) or 'none'}"


def words(reads: str) -> str:
    """Return the name of a reading in words."""
    return reads.replace("accuracy_", "").replace("_", " ")


def outcomes(store: Store, table: Table, scale: str) -> Iterator[Outcome]:
    """Yield the cells of a table at a scale whose settings are known, even cells without a run.

    A cell's runs are those of all seeds, even seeds with which only another table has run it.
    """
    chosen = sorted({run.seed for run in store.runs() if run.scale == scale})
    for cell in settled(store, table, scale):
        runs = [run for seed in chosen if (run := store.find(cell, seed))]
        stopped = [run.seed for run in runs if not run.figures]
        yield Outcome(cell, [run for run in runs if run.figures], stopped)


def over_key(table: Table, done: Sequence[Outcome]) -> Groups:
    """Return the figures of the rows over the numbers that the columns set for `table.over`.

    There is a group for the columns that differ in nothing else, named by what they have in common.
    """
    groups: Groups = {}
    for outcome in done if table.over else ():
        if figure := outcome.figure(outcome.cell.row.readings[0]):
            settings = table.columns[outcome.cell.column].split()
            common = " ".join(part for part in settings if not part.startswith(f"{table.over}="))
            value = float(outcome.cell.config(0)[table.over])
            rows = groups.setdefault(common, {})
            rows.setdefault(outcome.cell.row.name, []).append((value, figure))
    by_value = itemgetter(0)
    return {
        common: {name: sorted(line, key=by_value) for name, line in rows.items()}
        for common, rows in groups.items()
    }


def best_scale(store: Store, table: Table) -> str:
    """Return the largest scale at which a row of the table has run; `cpu` if none has."""
    there = {run.scale for run in store.runs()}
    for scale in reversed(SCALES):
        known = scale in table.scales and scale in there
        if known and any(o.runs for o in outcomes(store, table, scale)):
            return scale
    return "cpu" if "cpu" in table.scales else next(iter(table.scales))
