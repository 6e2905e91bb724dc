"""The progress line of each finished round, with an estimate of the time left."""

import statistics
from collections import defaultdict, deque
from collections.abc import Iterable

from fedapps.core.scored_rounds import INITIAL, PERSONALIZED, UNSCORED, kinds
from fedapps.core.settings import Settings
from fedapps.report.rows import NEWCOMERS, RoundRow
from fedapps.report.units import LINE_WIDTH, clock, human_bytes
from fedapps.tasks import Metric


class TimeLeft:
    """Estimates the time left from medians of recent rounds, by how they are evaluated."""

    def __init__(self, settings: Settings) -> None:
        self.kinds = kinds(settings)
        self.recent: dict[int, deque[float]] = defaultdict(lambda: deque(maxlen=9))

    def add(self, row: RoundRow) -> None:
        """Add the time of a finished round."""
        scored = INITIAL if row.means.initial is not None else UNSCORED
        kind = scored if row.means.personalized is None else PERSONALIZED
        self.recent[kind].append(row.seconds)

    def after(self, done: int) -> float:
        """Return the expected seconds of all rounds after round `done`."""
        return sum(
            self.kinds.count(kind, done) * self._typical(kind)
            for kind in (UNSCORED, INITIAL, PERSONALIZED)
        )

    def _typical(self, kind: int) -> float:
        """Return the usual seconds of a round, by those of the nearest kind that has come."""
        known = [(abs(kind - other), statistics.median(of)) for other, of in self.recent.items()]
        return min(known, default=(0, 0.0))[1]


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
