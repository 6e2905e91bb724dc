"""Write results/<scale>.csv: one line per run, with all its figures."""

from pathlib import Path

from experiments.run.collect import COSTS
from experiments.run.store import Run, Store
from fedapps.core.files import write_whole
from fedapps.report.cells import csv_text

ABOUT = ("table", "row", "column", "scale", "seed", "strategy", "rounds", "config")
SPENT = ("seconds", "seconds_per_round", *COSTS)


def write_csv(store: Store) -> list[Path]:
    """Write one file for each scale, with all its runs; return the files."""
    written = []
    runs = store.runs()
    for scale in dict.fromkeys(run.scale for run in runs):
        those = [run for run in runs if run.scale == scale]
        figures = dict.fromkeys(name for run in those for name in sorted(run.figures))
        path = store.folder / f"{scale}.csv"
        columns = (*ABOUT, *figures, *SPENT)
        rows = ([values.get(name) for name in columns] for values in map(line, those))
        write_whole(path, csv_text([columns, *rows]).encode())
        written.append(path)
    return written


def line(run: Run) -> dict[str, object]:
    """Return the line of a run, by column."""
    row, _, column = run.cell.partition("@")
    about = (run.table, row, column, run.scale, run.seed, run.config["strategy"])
    values: dict[str, object] = dict(
        zip(ABOUT, (*about, run.config["num-rounds"], run.digest), strict=True)
    )
    spent = {"seconds": run.seconds, "seconds_per_round": run.seconds_per_round} | run.costs
    return values | run.figures | spent
