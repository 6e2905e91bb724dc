"""Make finished rows again, each from the config in its file, and compare all that comes out."""

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from dataclasses import dataclass
from pathlib import Path

from experiments.papers.table import Table, matches
from experiments.run.collect import measured
from experiments.run.store import Run, Store
from experiments.run.tuning import TRIAL
from fedapps.compare.workers import Worker, crew
from fedapps.core import config
from fedapps.core.errors import RunError
from fedapps.core.schema import Scalar

MOST = 3  # differences that are named
PARTS = ("figures", "costs", "rounds", "clients", "events")  # of a run, all compared


@dataclass(frozen=True)
class Comparison:
    """A finished row and what its file's config gave now; `error` says why it gave nothing."""

    run: Run
    found: Mapping[str, Mapping[str, object]]
    seconds: float = 0.0
    error: str = ""

    @property
    def differences(self) -> list[str]:
        """What is different, by name; what the file does not hold is not compared."""
        pairs = [
            (name, value, self.found.get(part, {}).get(name))
            for part in PARTS
            for name, value in getattr(self.run, part).items()
        ]
        return [
            name if isinstance(old, list) else f"{name} ({old} before, {new} now)"
            for name, old, new in pairs
            if old != new
        ]

    @property
    def same(self) -> bool:
        """Tell whether all that the file holds came out again, to the last digit."""
        return not self.error and not self.differences

    def told(self) -> str:
        """Say in a few words what came out."""
        if self.error:
            return f"failed: {self.error}"
        if self.same:
            return "the same"
        held = sum(len(getattr(self.run, part)) for part in PARTS)
        return f"{len(self.differences)} of {held} differ: {', '.join(self.differences[:MOST])}"


def quickest(
    store: Store, table: Table, scale: str, only: str, seeds: Collection[int]
) -> Run | None:
    """Return the finished run of a table's rows that took least; None if there is none.

    Runs of code that did not record its versions come last, as do those with a note: a model that
    has been scored again has no curve.
    """
    found = [
        run
        for run in store.runs()
        if (run.table, run.scale) == (table.name, scale)
        and run.figures
        and TRIAL not in run.cell
        and (not seeds or run.seed in seeds)
        and (matches(run.cell, only) or matches(run.cell.partition("@")[0], only))
    ]
    return min(found, key=lambda run: (bool(run.note), not run.versions, run.seconds), default=None)


def again(runs: Sequence[Run], runs_dir: Path, data_root: str, jobs: int) -> Iterator[Comparison]:
    """Make runs again in `jobs` processes; yield each as it ends."""
    with crew(jobs) as submit:
        for done in as_completed([submit(_made, run, runs_dir, data_root, jobs) for run in runs]):
            yield done.result()


def _made(worker: Worker, run: Run, runs_dir: Path, data_root: str, jobs: int) -> Comparison:
    name = f"again-{run.table}-{run.cell}-s{run.seed}-{time.strftime('%Y%m%d-%H%M%S')}"
    places: dict[str, Scalar] = {"runs-dir": str(runs_dir), "data-root": data_root}
    flat = config.defaults() | run.config | places | {"run-name": name}
    start = time.monotonic()
    try:
        folder = worker.run(flat, runs_dir / f"{name}.log", plots=False, at_once=jobs)
        found = measured(folder, flat, own=run.figures)
    except RunError as error:
        return Comparison(run, {}, time.monotonic() - start, str(error))
    return Comparison(run, found, time.monotonic() - start)
