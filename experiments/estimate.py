"""How long a run will take, from those that have run."""

import statistics

from experiments.papers import Cell
from experiments.store import Config, Run, Store, numeric


class Estimate:
    """Knows the runs of a store as they are when it is asked."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def seconds(self, cell: Cell, seed: int) -> float | None:
        """Return the seconds of a run; None if nothing at this scale has run.

        Best known from the same cell with another seed, then from the same method on the same data
        and model, then from anything at this scale; for each round one takes.
        """
        wanted = numeric(cell.config(seed))
        runs = [run for run in self.store.runs() if run.scale == cell.scale and run.figures]
        alike = [run for run in runs if (run.table, run.cell) == (cell.table.name, cell.name)]
        for keys in (("strategy", "dataset", "model", "local-epochs"), ("dataset", "model")):
            alike = alike or [run for run in runs if _agree(run, wanted, keys)]
        alike = alike or runs
        if not alike:
            return None
        per_round = statistics.median(run.seconds / int(run.config["num-rounds"]) for run in alike)
        return per_round * int(wanted["num-rounds"])


def _agree(run: Run, wanted: Config, keys: tuple[str, ...]) -> bool:
    return all(run.config.get(key) == wanted.get(key) for key in keys)
