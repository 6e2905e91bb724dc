"""How long a run will take, from those that have run."""

import statistics

from experiments.papers import Cell
from experiments.store import Config, Run, Store, numeric


class Estimate:
    """Knows the runs of a store as they are when it is asked."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def seconds(self, cell: Cell, seed: int) -> float | None:
        """Return the seconds of a run; None if nothing like it has run at this scale.

        Best known from the same cell with another seed, then from the same method on the same data
        and model, then from the same table, then from the same data and model. Twice the local
        epochs take twice the time. A run counts at most twice its median round: more is a pause.
        """
        wanted = numeric(cell.config(seed))
        runs = [run for run in self.store.runs() if run.scale == cell.scale and run.figures]
        alike = [run for run in runs if (run.table, run.cell) == (cell.table.name, cell.name)]
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
