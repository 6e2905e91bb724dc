"""List the tables and how much of each has run, or the rows of some tables."""

from collections.abc import Iterable
from textwrap import wrap

from experiments.papers.table import SCALES, Table
from experiments.run.dependent import settled
from experiments.run.store import Store
from fedapps.cli.tables import Column, show
from fedapps.compare.grid import read_seeds
from fedapps.core.words import number
from fedapps.report.units import LINE_WIDTH

OFFERED = [scale for scale in SCALES if scale != "smoke"]  # `smoke` is for the tests


def overview(store: Store, known: Iterable[Table]) -> None:
    """Print a line for each table: how many of its runs are done at each scale."""
    rows = [
        [table.name, *(_share(store, table, scale) for scale in OFFERED), table.title]
        for table in known
    ]
    width = max(len(name) for name, *_ in rows)
    columns = [Column("table", width), *(Column(scale, 8) for scale in OFFERED), Column("what")]
    show(columns, rows)
    print("\nfinished runs of all runs, by scale; list TABLE shows one table row by row")


def rows_of(store: Store, table: Table, scale: str, only: str = "*") -> None:
    """Print the rows of a table at a scale: the seeds that are done, and the settings."""
    cells, chosen = table.cells(scale, only), read_seeds(table.scales[scale].seeds)
    with_settings = {cell.name: cell for cell in settled(store, table, scale, only)}
    rows, done = [], 0
    for cell in cells:
        now = with_settings.get(cell.name)  # None: its trials have not chosen its settings yet
        found = [seed for seed in chosen if now and store.find(now, seed)]
        done += len(found)
        rows.append([cell.name, ",".join(map(str, found)) or "-", cell.row.config])
    print(
        *(line for text in (table.title, table.source) for line in wrap(text, LINE_WIDTH)), sep="\n"
    )
    runs = number(len(cells) * len(chosen), "run")
    print(f"scale {scale}: {done} of {runs} done; seeds {','.join(map(str, chosen))}\n")
    width = min(max(len(name) for name, *_ in rows), 40)
    show([Column("row", width), Column("done", max(4, 2 * len(chosen))), Column("settings")], rows)


def _share(store: Store, table: Table, scale: str) -> str:
    if scale not in table.scales:
        return "-"
    chosen = read_seeds(table.scales[scale].seeds)
    done = sum(
        store.find(cell, seed) is not None
        for cell in settled(store, table, scale)
        for seed in chosen
    )
    return f"{done}/{len(table.cells(scale)) * len(chosen)}"
