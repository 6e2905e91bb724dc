"""The progress line of each finished round, with an estimate of the time left."""

import statistics
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from fedapps.report.rows import NEWCOMERS, RoundRow
from fedapps.report.units import LINE_WIDTH, clock, human_bytes
from fedapps.tasks import Metric


@dataclass
class TimeLeft:
    """Estimates the time left from the median of recent rounds, separately for evaluated ones."""

    num_rounds: int
    evaluate_every: int
    recent: dict[bool, deque[float]] = field(
        default_factory=lambda: {False: deque(maxlen=9), True: deque(maxlen=9)}
    )

    def add(self, row: RoundRow) -> None:
        """Add the time of a finished round."""
        self.recent[row.means.personalized is not None].append(row.seconds)

    def after(self, done: int) -> float:
        """Return the expected seconds of all rounds after round `done`."""
        ahead = max(self.num_rounds - done, 0)
        evaluated = min(self._evaluations(self.num_rounds) - self._evaluations(done), ahead)
        return evaluated * self._typical(True) + (ahead - evaluated) * self._typical(False)

    def _evaluations(self, done: int) -> int:
        """Count the evaluations in rounds 1..done; the last round is always evaluated."""
        if done < self.num_rounds:
            return done // self.evaluate_every if self.evaluate_every else 0
        return self._evaluations(self.num_rounds - 1) + 1

    def _typical(self, evaluated: bool) -> float:
        return statistics.median(self.recent[evaluated] or self.recent[not evaluated] or [0.0])


def progress_line(row: RoundRow, num_rounds: int, left: float, metric: Metric) -> str:
    """Return the line of a round, in at most 100 columns; `left` is the time left in seconds."""
    last, value = max(num_rounds, row.round), row.train_loss
    loss = "" if value is None else f"{value:.3f}" if value < 10 else f"{value:.3g}"
    parts = [
        f"round {row.round:>{len(str(last))}}/{last}",
        row.phase if row.phase != "train" else "",
        f"loss {loss:<5}" if loss else " " * 10,
        _scores(row, metric),
        f"up {human_bytes(row.bytes_up):>7}",
        f"down {human_bytes(row.bytes_down):>7}",
        f"{row.seconds:5.1f} s",
        f"left {clock(left)}" if last > row.round else "",
        f"{row.failures} failed" if row.failures else "",
    ]
    line = _join(parts)
    if len(line) > LINE_WIDTH:  # leave out the seconds, which are in rounds.csv
        line = _join(parts[:6] + parts[7:])
    if len(line) > LINE_WIDTH:
        line = " ".join(line.split())[:LINE_WIDTH]
    return line


def _join(parts: Iterable[str]) -> str:
    return "  ".join(part for part in parts if part).rstrip()


def _scores(row: RoundRow, metric: Metric) -> str:
    initial, personalized = row.means.initial, row.means.personalized
    before = "" if initial is None else f"{metric.short} {metric.digits(initial, places=3)}"
    after = "" if personalized is None else f" -> {metric.digits(personalized, places=3)}"
    others = "others: " if before and row.phase == NEWCOMERS else ""  # the loss is the newcomers'
    return f"{others + before + after:18}"
