"""Choose the settings of a row on validation samples, for a fair comparison.

The `search` of a row lists values for some keys. Some combinations of these values (the `trials` of
a scale) run as trials `row~0`, `row~1`, ... They are drawn at random without replacement, and are
the same everywhere; more trials begin with the same ones. With `own_trials`, rows draw on their
own; otherwise all grids of one size leave out the same places. A trial uses the table's first seed.
It trains on 80 % of each client's training samples and is scored on the other 20 %, so it sees no
test sample. The row then runs with the settings of the trial that has the best mean of the row's
reading; a trial whose training diverges is the worst. Nobody reads another figure of a trial, so
none that takes time is computed, such as how newcomers do with few samples. The samplers of tuning
libraries also draw their first ten trials at random, so for so few trials we need none.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any

from msgspec import structs

from experiments.papers.table import Cell
from experiments.run.store import Store
from fedapps.compare.grid import read_seeds
from fedapps.core.changes import text_of
from fedapps.core.draws import generator

TRIAL = "~"  # between the name of a row and the number of its trial
VALIDATION = 'validation-fraction=0.2 evaluate-on="validation"'
WORST = -1.0  # the score of a trial whose training diverges
HEADS = ["method", "reading", "validation accuracy", "range over trials", "settings"]


def combinations(cell: Cell) -> list[dict[str, Any]]:
    """Return the combinations of the values of a cell's row to try."""
    row, table = cell.row, cell.table
    every = [dict(zip(row.search, values, strict=True)) for values in product(*row.search.values())]
    drawn = generator(0, f"tune {row.name}" if table.own_trials else "tune")
    order = drawn.permutation(len(every)).tolist()
    return [every[index] for index in order[: table.scales[cell.scale].trials]]


def trials(cell: Cell) -> list[Cell]:
    """Return the cells of the trials of a cell's row."""
    row = structs.replace(cell.row, also=())
    return [
        replace(cell, row=row, suffix=f"{TRIAL}{number}", extra=f"{text_of(values)} {VALIDATION}")
        for number, values in enumerate(combinations(cell))
    ]


def first_seed(cell: Cell) -> int:
    """Return the seed of the trials, which is the table's first one."""
    return read_seeds(cell.table.scales[cell.scale].seeds)[0]


def scores(store: Store, cell: Cell) -> dict[str, float | None]:
    """Return the settings of each trial and its score on the validation samples (a fraction).

    A score is None if the trial has not run, and `WORST` if its training diverges.
    """
    found: dict[str, float | None] = {}
    for trial, values in zip(trials(cell), combinations(cell), strict=True):
        run = store.find(trial, first_seed(cell))
        found[text_of(values)] = run.figures.get(cell.row.reads, WORST) if run else None
    return found


def chosen(store: Store, cell: Cell) -> str | None:
    """Return the best trial's settings as a run-config; None if not all trials have run."""
    known = scores(store, cell)
    done = {settings: score for settings, score in known.items() if score is not None}
    return max(done, key=done.__getitem__, default=None) if len(done) == len(known) else None


def untried(store: Store, cell: Cell) -> list[Cell]:
    """Return the trials that a cell still needs."""
    tried = trials(cell) if cell.row.search else []
    return [trial for trial in tried if store.find(trial, first_seed(cell)) is None]


def texts(store: Store, cells: Iterable[Cell]) -> Iterator[list[str]]:
    """Yield a line under `HEADS` for each of the settled cells whose row has a search."""
    for cell in cells:
        if cell.row.search:
            reached = [score for score in scores(store, cell).values() if score is not None]
            whole = sorted(100 * score for score in reached if score != WORST)
            diverged = (
                [f"{len(reached) - len(whole)} diverged"] if len(whole) < len(reached) else []
            )
            span = [f"{whole[0]:.1f} to {whole[-1]:.1f}"] if whole else []
            best = f"{whole[-1]:.1f}" if whole else "-"
            reads = cell.row.reads.removeprefix("accuracy_")
            yield [cell.row.name, reads, best, ", ".join(span + diverged), cell.extra]
