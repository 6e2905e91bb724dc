"""How far a sweep is: a line for each run that ends, and on a terminal one for all that goes on."""

import csv
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedapps.compare.grid import Point
from fedapps.report.units import clock


@dataclass
class Progress:
    """Tells how far the runs of `todo` in `folder` are; `total` counts those done before, too."""

    folder: Path
    todo: Sequence[Point]
    total: int
    started: float = field(default_factory=time.monotonic)
    ended: dict[str, str] = field(default_factory=dict)  # why a run failed, "" if it did not

    def begin(self) -> None:
        """Say what there is to do."""
        before = self.total - len(self.todo)
        print(f"{self.total} runs in {self.folder}" + (f", {before} done before" if before else ""))

    def end(self, point: Point, error: str) -> None:
        """Say that a run has ended."""
        self.ended[point.name] = error
        done = self.total - len(self.todo) + len(self.ended)
        how = (
            f"failed: {error}" if error else f"{_accuracy(self.folder / point.name)}{self._left()}"
        )
        self._write(f"{done}/{self.total} {point.label}: {how}\n")

    def look(self) -> None:
        """On a terminal, say how far all is."""
        if sys.stdout.isatty():
            shares = [self._share(point) for point in self.todo if point.name not in self.ended]
            running = sum(share > 0 for share in shares)
            self._write(f"{running} running{self._left()}")

    def _write(self, text: str) -> None:
        erase = "\r\x1b[K" if sys.stdout.isatty() else ""
        print(erase + text, end="", flush=True)

    def _left(self) -> str:
        """Return how long the rest takes if it goes on as it did, nothing at the end."""
        done = len(self.ended) + sum(
            self._share(point) for point in self.todo if point.name not in self.ended
        )
        if not done or len(self.ended) == len(self.todo):
            return ""
        spent = time.monotonic() - self.started
        return f", left {clock(spent * (len(self.todo) - done) / done)}"

    def _share(self, point: Point) -> float:
        """Return how much of a run is done, by its rounds."""
        rows = _rows(self.folder / point.name)
        return min(len(rows) / int(point.flat["num-rounds"]), 1.0)


def _rows(folder: Path) -> list[dict[str, str]]:
    try:
        with (folder / "rounds.csv").open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))
    except OSError:
        return []


def _accuracy(folder: Path) -> str:
    scored = [row["accuracy_personalized"] for row in _rows(folder) if row["accuracy_personalized"]]
    return f"personalized {100 * float(scored[-1]):.2f} %" if scored else "not scored"
