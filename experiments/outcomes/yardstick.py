"""Compare methods with a reference (the yardstick), client by client, over paired seeds.

Seeds are paired: the split of the data, the selected clients and the initial model depend on the
seed alone. So the difference of two methods is taken for each client of each seed. Intervals are
95 % bootstrap intervals over seeds and, within each seed, over clients.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from scipy import stats

from experiments.outcomes.cells import Outcome
from experiments.outcomes.claims import UNCLEAR
from fedapps.core.draws import generator
from fedapps.core.words import number

RESAMPLES = 10_000
BETTER, WORSE = "better", "worse"  # verdicts, beside `claims.UNCLEAR`
Accuracies = Sequence[np.ndarray]  # an array over clients for each seed


@dataclass(frozen=True)
class Line:
    """A method in the comparison. Accuracies and shares are in percent, differences in points."""

    name: str
    mean: float
    low: float
    high: float
    decile: float
    difference: float  # from the yardstick
    difference_low: float
    difference_high: float
    rank: float  # mean over clients, 1 is best
    below_alone: float | None  # share of clients that are worse than when they train alone
    below_yardstick: float
    megabytes: float
    gigamacs: float

    @property
    def verdict(self) -> str:
        """`BETTER` or `WORSE` if the interval excludes zero, else `UNCLEAR`."""
        if self.difference_low > 0:
            return BETTER
        return WORSE if self.difference_high < 0 else UNCLEAR

    def texts(self) -> list[str]:
        """Return the cells under `Comparison.heads`."""
        return [
            self.name,
            f"{self.mean:.1f} ({self.low:.1f} to {self.high:.1f})",
            f"{self.decile:.1f}",
            f"{self.difference:+.1f} ({self.difference_low:+.1f} to {self.difference_high:+.1f})",
            self.verdict,
            f"{self.rank:.1f}",
            "-" if self.below_alone is None else f"{self.below_alone:.0f} %",
            f"{self.below_yardstick:.0f} %",
            f"{self.megabytes:.1f}",
            f"{self.mean / self.megabytes:.2f}" if self.megabytes else "-",
            f"{self.gigamacs:.1f}",
            f"{self.mean / self.gigamacs:.2f}" if self.gigamacs else "-",
        ]


@dataclass(frozen=True)
class Comparison:
    """Methods, best first, compared with the row `yardstick` and with training `alone`.

    `same_ranks` is the p-value of Friedman's test that all methods have equal ranks, over their
    means by seed; None with fewer than three methods or two seeds.
    """

    yardstick: str
    alone: str
    lines: list[Line]
    same_ranks: float | None

    @property
    def heads(self) -> list[str]:
        """The heads of the columns; points per MB and per GMAC are points of accuracy."""
        return [
            "method",
            "accuracy (95 %)",
            "bottom decile",
            f"difference from {self.yardstick} (95 %)",
            "verdict",
            "rank",
            f"worse than {self.alone}",
            f"worse than {self.yardstick}",
            "MB",
            "points per MB",
            "GMAC",
            "points per GMAC",
        ]

    def rows(self) -> Iterator[list[str]]:
        """Yield the cells under `heads`; the yardstick has no difference from itself."""
        for line in self.lines:
            cells = line.texts()
            if line.name == self.yardstick:
                cells[3:5] = ["", ""]
            yield cells

    def sentence(self) -> str:
        """Say how many methods are better than the yardstick, and at what cost."""
        base = {line.name: line for line in self.lines}[self.yardstick]
        others = [line for line in self.lines if line.name not in (self.yardstick, self.alone)]
        better = [line for line in others if line.verdict == BETTER]
        worse = [line for line in others if line.verdict == WORSE]
        text = (
            f"Better than {self.yardstick} (beyond the 95 % interval): "
            f"{len(better)} of {number(len(others), 'method')}. Worse: {len(worse)}. "
            f"Inconclusive: {len(others) - len(better) - len(worse)}."
        )
        costs = [
            f"{line.name} is better by {line.difference:.1f} points, with "
            f"{_ratio(line.megabytes, base.megabytes)} times the bytes and "
            f"{_ratio(line.gigamacs, base.gigamacs)} times the multiply-accumulates"
            for line in better
        ]
        if costs:
            text += f" {'; '.join(costs)}."
        if self.same_ranks is not None:
            text += f" Friedman's test of equal ranks over the seeds: p = {self.same_ranks:.2g}."
        return text

    def left_out(self, outcomes: Sequence[Outcome]) -> str:
        """Name the methods that lack some of the compared seeds; "" if there are none."""
        shown = {line.name for line in self.lines}
        seeds = {o.cell.row.name: ",".join(str(run.seed) for run in o.runs) for o in outcomes}
        lack = [f"{name} (has seeds {seeds[name]})" for name in seeds if name not in shown]
        return f"Not compared, because some seeds have not run: {', '.join(lack)}." if lack else ""


def compare(outcomes: Sequence[Outcome], yardstick: str, alone: str) -> Comparison | None:
    """Compare all methods that have the seeds that `yardstick` and `alone` share.

    As long as `alone` has not run, the seeds are those of `yardstick`, and nothing is compared with
    `alone`. Return None if the yardstick has not run, or if the two have no seed in common.
    """
    runs = {o.cell.row.name: {run.seed: run for run in o.runs} for o in outcomes if o.runs}
    reads = {o.cell.row.name: o.cell.row.reads for o in outcomes}
    first = runs.get(yardstick, {})
    seeds = sorted(first.keys() & runs.get(alone, first).keys())
    if not seeds:
        return None
    names = [name for name in runs if set(seeds) <= set(runs[name])]
    accuracies = {
        name: [np.array(runs[name][seed].clients[reads[name]]) for seed in seeds] for name in names
    }
    base, single = accuracies[yardstick], accuracies.get(alone)
    gaps = {name: _less(values, base) for name, values in accuracies.items()}
    table = np.array([np.concatenate(accuracies[name]) for name in names])
    ranks = dict(zip(names, stats.rankdata(-table, axis=0).mean(axis=1), strict=True))
    lines = []
    for name, values in accuracies.items():
        costs = [runs[name][seed].costs for seed in seeds]
        sent = np.mean([cost["bytes_up"] + cost["bytes_down"] for cost in costs])
        low, high = interval(values)
        gap_low, gap_high = interval(gaps[name])
        lines.append(
            Line(
                name=name,
                mean=100 * _mean(values),
                low=100 * low,
                high=100 * high,
                decile=100 * float(np.mean([np.percentile(v, 10) for v in values])),
                difference=100 * _mean(gaps[name]),
                difference_low=100 * gap_low,
                difference_high=100 * gap_high,
                rank=float(ranks[name]),
                below_alone=None if single is None else _below(_less(values, single)),
                below_yardstick=_below(gaps[name]),
                megabytes=float(sent) / 1e6,
                gigamacs=float(np.mean([cost["train_macs"] for cost in costs])) / 1e9,
            )
        )
    best_first = sorted(lines, key=lambda line: -line.mean)
    return Comparison(yardstick, alone, best_first, _same_ranks(accuracies.values()))


def interval(values: Accuracies) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of the mean over seeds of the mean over clients."""
    drawn, seeds = _draws(tuple(map(len, values)), RESAMPLES)
    # [seeds, resamples, places]: a seed that is drawn twice has its clients drawn anew each time
    means = np.array([(counts @ v) / len(v) for counts, v in zip(drawn, values, strict=True)])
    chosen = np.take_along_axis(means, seeds[None], axis=0)[0]
    low, high = np.percentile(chosen.mean(axis=1), [2.5, 97.5])
    return float(low), float(high)


@cache
def _draws(clients: tuple[int, ...], resamples: int) -> tuple[list[np.ndarray], np.ndarray]:
    """Draw the bootstrap samples for all intervals; `clients` is the number of clients by seed.

    Returns two things. For each seed, how often each client is drawn: uint8 [resamples, places,
    clients]. And which seed is drawn in each place: [resamples, places]. There are as many places
    as seeds.
    """
    draws, shape = generator(0, "bootstrap"), (resamples, len(clients))
    counts = []
    for count in clients:
        first = count * np.arange(np.prod(shape)).reshape(*shape, 1)
        drawn = draws.integers(0, count, (*shape, count)) + first
        many = np.bincount(drawn.ravel(), minlength=count * np.prod(shape))
        counts.append(many.reshape(*shape, count).astype(np.uint8))
    return counts, draws.integers(0, len(clients), shape)


def _same_ranks(methods: Collection[Accuracies]) -> float | None:
    """Return the p-value of Friedman's test over the methods' means by seed."""
    means = [[accuracies.mean() for accuracies in by_seed] for by_seed in methods]
    if len(means) < 3 or len(means[0]) < 2:
        return None
    return float(stats.friedmanchisquare(*means).pvalue)


def _ratio(value: float, base: float) -> str:
    return f"{value / base:.2f}" if base else "-"


def _less(values: Accuracies, base: Accuracies) -> Accuracies:
    return [a - b for a, b in zip(values, base, strict=True)]


def _below(gaps: Accuracies) -> float:
    """Return the share of clients with a negative gap, in percent."""
    return 100 * float((np.concatenate(gaps) < 0).mean())


def _mean(values: Accuracies) -> float:
    return float(np.mean([v.mean() for v in values]))
