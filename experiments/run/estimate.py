"""Estimate how long a run will take from the runs that are done."""

import statistics
from collections.abc import Iterable

from experiments.papers.table import Cell
from experiments.run.store import Config, Run, numeric


class Estimate:
    """Estimates from some runs; those whose training diverged do not count."""

    def __init__(self, runs: Iterable[Run]) -> None:
        self.alike: dict[tuple[object, ...], list[float]] = {}  # seconds of an epoch, by likeness
        for run in runs:
            if run.figures:
                for likeness in _likenesses(run.scale, run.table, run.cell, run.config):
                    self.alike.setdefault(likeness, []).append(_epoch_seconds(run))

    def seconds(self, cell: Cell, seed: int) -> float | None:
        """Return the seconds that a run will take; None if no similar run is known at this scale.

        The first of these that exist are used: runs of the same cell with another seed; of the same
        method, data set and model; of the same table; of the same data set and model. Twice the
        local epochs take twice the time.
        """
        wanted = numeric(cell.config(seed))
        for likeness in _likenesses(cell.scale, cell.table.name, cell.name, wanted):
            if known := self.alike.get(likeness):
                return statistics.median(known) * _epochs(wanted) * int(wanted["num-rounds"])
        return None


def _likenesses(scale: str, table: str, cell: str, config: Config) -> list[tuple[object, ...]]:
    """Return what runs can have in common, the closest first."""
    data, method = (config.get("dataset"), config.get("model")), config.get("strategy")
    return [(scale, "cell", table, cell), (scale, method, *data), (scale, table), (scale, *data)]


def at_work(run: Run) -> float:
    """Return a run's seconds without pauses: a round counts for at most twice the median round.

    The last one, after which clients fine-tune, counts whole; but not in runs of which only the
    sum is stored.
    """
    most = 2 * run.seconds_per_round * int(run.config["num-rounds"])
    return run.seconds_at_work or min(run.seconds, most)


def _epoch_seconds(run: Run) -> float:
    """Return the seconds of a local epoch of all clients of a round; a median of several counts."""
    seconds = run.seconds_at_work or run.seconds
    return seconds / int(run.config["num-rounds"]) / _epochs(run.config)


def _epochs(config: Config) -> float:
    return float(config.get("local-epochs") or 1)
