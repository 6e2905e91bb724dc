"""Estimate how long a run will take from the runs that are done."""

import statistics
from collections.abc import Iterable

from experiments.papers.table import Cell
from experiments.run.store import Config, Run, numeric


class Estimate:
    """Estimates from some runs; those whose training diverged do not count."""

    def __init__(self, runs: Iterable[Run]) -> None:
        self.runs: dict[str, list[Run]] = {}  # by scale
        self.of_cell: dict[tuple[str, str, str], list[Run]] = {}  # by scale, table and cell
        for run in runs:
            if run.figures:
                self.runs.setdefault(run.scale, []).append(run)
                self.of_cell.setdefault((run.scale, run.table, run.cell), []).append(run)

    def seconds(self, cell: Cell, seed: int) -> float | None:
        """Return the seconds that a run will take; None if no similar run is known at this scale.

        The first of these that exist are used: runs of the same cell with another seed; of the same
        method, data set and model; of the same table; of the same data set and model. Twice the
        local epochs take twice the time. A round counts for at most twice the run's median round,
        because a longer time means that the run was paused.
        """
        wanted = numeric(cell.config(seed))
        runs = self.runs.get(cell.scale, [])
        alike = self.of_cell.get((cell.scale, cell.table.name, cell.name), [])
        for agree in (
            lambda run: _agree(run, wanted, "strategy", "dataset", "model"),
            lambda run: run.table == cell.table.name,
            lambda run: _agree(run, wanted, "dataset", "model"),
        ):
            alike = alike or [run for run in runs if agree(run)]
        if not alike:
            return None
        per_epoch = [
            min(run.seconds / int(run.config["num-rounds"]), 2 * run.seconds_per_round)
            / _epochs(run.config)
            for run in alike
        ]
        return statistics.median(per_epoch) * _epochs(wanted) * int(wanted["num-rounds"])


def _epochs(config: Config) -> float:
    return float(config.get("local-epochs") or 1)


def _agree(run: Run, wanted: Config, *keys: str) -> bool:
    return all(run.config.get(key) == wanted.get(key) for key in keys)
