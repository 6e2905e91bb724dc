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
        and model, then from the same table, then from the same data and model. A run counts at
        most twice its median round: more is a pause, no work.
        """
        wanted = numeric(cell.config(seed))
        runs = [run for run in self.store.runs() if run.scale == cell.scale and run.figures]
        alike = [run for run in runs if (run.table, run.cell) == (cell.table.name, cell.name)]
        for agree in (
            lambda run: _agree(run, wanted, "strategy", "dataset", "model", "local-epochs"),
            lambda run: run.table == cell.table.name,
            lambda run: _agree(run, wanted, "dataset", "model"),
        ):
            alike = alike or [run for run in runs if agree(run)]
        if not alike:
            return None
        per_round = [
            min(run.seconds / int(run.config["num-rounds"]), 2 * run.seconds_per_round)
            for run in alike
        ]
        return statistics.median(per_round) * int(wanted["num-rounds"])


def _agree(run: Run, wanted: Config, *keys: str) -> bool:
    return all(run.config.get(key) == wanted.get(key) for key in keys)
