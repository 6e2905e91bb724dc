"""The progress of a sweep: a line for each run that ends, and progress bars on a terminal."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from rich import console as rich
from rich import progress as bars

from fedapps.compare.grid import Point
from fedapps.core import log
from fedapps.core.words import number
from fedapps.report import directory
from fedapps.report.about import task_of
from fedapps.report.console import Console
from fedapps.report.units import clock

MINUTE = 60.0  # seconds between lines if there is no terminal


@dataclass
class Progress:
    """Shows how far the runs of `todo` in `folder` are."""

    folder: Path
    todo: Sequence[Point]
    started: float = field(default_factory=time.monotonic)

    def __enter__(self) -> Self:
        self.console = Console(highlight=False, markup=False, soft_wrap=True)
        self.bars = bars_on(self.console, transient=True)
        self.ended: dict[str, int] = {}  # the rounds of each run that has ended
        self.before = {point.name: self._rounds(point) for point in self.todo}
        self.told = self.started
        self.shown: dict[str, bars.TaskID] = {}
        self.bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.bars.stop()

    def begin(self, total: int) -> None:
        """Print how many runs there are, and how many of them are done already."""
        self.total, done = total, total - len(self.todo)
        before = f", {done} of them done before" if done else ""
        self._print(f"{number(total, 'run')} in {self.folder}{before}")
        self.all = self.bars.add_task("all", total=total, completed=done, left="")

    def end(self, point: Point, error: str) -> None:
        """Print that a run has ended, with its score or its error."""
        self.ended[point.name] = self._rounds(point)
        if point.name in self.shown:
            self.bars.remove_task(self.shown.pop(point.name))
        done = self.total - len(self.todo) + len(self.ended)
        how = f"failed: {error}" if error else _score(self.folder / point.name)
        self.bars.update(self.all, completed=done)
        self._print(f"{done}/{self.total} {point.label}: {how}{self._left()}")

    def look(self) -> None:
        """Show how far the runs are: with bars on a terminal, otherwise with a line per minute."""
        if not self.console.is_terminal:
            self._tell()
            return
        for point in self.todo:
            rounds = self._rounds(point)
            if point.name not in self.ended and rounds > self.before[point.name]:
                if point.name not in self.shown:
                    total = int(point.flat["num-rounds"])
                    self.shown[point.name] = self.bars.add_task(point.label, total=total, left="")
                self.bars.update(self.shown[point.name], completed=rounds)
        self.bars.update(self.all, left=self._left().lstrip(", "))

    def _tell(self) -> None:
        if time.monotonic() - self.told < MINUTE:
            return
        self.told = time.monotonic()
        on = [point for point in self.todo if point.name not in self.ended]
        far = [(point, self._rounds(point)) for point in on]
        rounds = [
            f"{point.label} in round {min(now + 1, int(point.flat['num-rounds']))}"
            for point, now in far
            if now > self.before[point.name]
        ]
        if rounds:
            done = self.total - len(on)
            self._print(f"{done}/{self.total} done, {', '.join(rounds)}{self._left()}")

    def _print(self, line: str) -> None:
        with log.expendable():
            self.console.print(line)

    def _left(self) -> str:
        """Estimate the time left, as if all rounds took equally long; "" if it is not known."""
        left = done = 0
        for point in self.todo:
            rounds = self._rounds(point)
            done += rounds - self.before[point.name]
            if point.name not in self.ended:
                left += max(int(point.flat["num-rounds"]) - rounds, 0)
        if not (left and done > 0):
            return ""
        return f", left {clock((time.monotonic() - self.started) * left / done)}"

    def _rounds(self, point: Point) -> int:
        if point.name in self.ended:
            return self.ended[point.name]
        return directory.row_count(self.folder / point.name / "rounds.csv")


def bars_on(screen: rich.Console, transient: bool = False) -> bars.Progress:
    """Return bars with a name, a count and the field `left` each, if the screen is a terminal."""
    columns = (bars.TextColumn("{task.description}"), bars.BarColumn(20), bars.MofNCompleteColumn())
    left, off = bars.TextColumn("{task.fields[left]}"), not screen.is_terminal
    return bars.Progress(*columns, left, console=screen, disable=off, transient=transient)


def _score(folder: Path) -> str:
    lead = task_of(folder).lead
    path = folder / "rounds.csv"
    rows = directory.lines(path) if path.exists() else []
    scored = [float(text) for row in rows if (text := row[lead.personalized])]
    if not scored:
        return "not scored"
    return f"personalized {lead.digits(lead.factor * scored[-1])} {lead.unit or lead.short}"
