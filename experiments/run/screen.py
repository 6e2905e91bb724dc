"""The progress that a runner shows on standard error."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self

from rich.console import Console
from rich.progress import TaskID

from experiments.papers.table import Job
from fedapps.compare.progress import bars_on
from fedapps.report import directory
from fedapps.report.units import clock


class Screen:
    """In a terminal, a progress bar for all runs and one for each; else a line per ended run."""

    def __init__(self, total: int, done: int) -> None:
        console = Console(stderr=True, highlight=False)
        self.live, self.progress = console.is_terminal, bars_on(console)
        self.all = self.progress.add_task("all", total=total, completed=done, left="")
        self.bars: dict[int, TaskID] = {}

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.progress.stop()

    def say(self, text: str) -> None:
        """Print a line above the bars."""
        if self.live:
            self.progress.console.print(text, markup=False)
        else:
            print(text, file=sys.stderr, flush=True)

    def started(self, number: int, job: Job) -> None:
        """Begin the bar of a run, which replaces that of the worker's last run."""
        total = int(job.cell.config(job.seed)["num-rounds"])
        if number in self.bars:
            self.progress.remove_task(self.bars[number])
        self.bars[number] = self.progress.add_task(job.name, total=total, left="")

    def advance(self) -> None:
        """Count a job as done."""
        self.progress.advance(self.all)

    def refresh(
        self, active: Mapping[int, tuple[Job, Path, float]], remaining: Callable[[], float | None]
    ) -> None:
        """Update the progress of the runs, and how long the rest will take."""
        if not self.live:
            return
        for number, (_, folder, _) in [*active.items()]:
            if number in self.bars:
                done = directory.row_count(folder / "rounds.csv")
                self.progress.update(self.bars[number], completed=done)
        left = remaining()
        self.progress.update(self.all, left="" if left is None else f"left {clock(left)}")
