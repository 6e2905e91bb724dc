"""Compare methods with a reference (the yardstick), client by client, over paired seeds.

Accuracies and differences are means over clients, with Student's 95 % interval over the seeds
(`significance.py`). Ranks and shares compare the methods for each client of each seed.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from scipy import stats

from experiments.outcomes.cells import Figure, Outcome, named_seeds
from experiments.outcomes.claims import UNCLEAR
from experiments.outcomes.significance import LEVEL, holm, holm_text
from fedapps.core.words import number

BETTER, WORSE = "better", "worse"  # verdicts, beside `claims.UNCLEAR`
Accuracies = Sequence[np.ndarray]  # an array over clients for each seed


@dataclass(frozen=True)
class Line:
    """A method in the comparison. Accuracies and shares are in percent, differences in points.

    `corrected` is the p-value of the difference, corrected for the number of methods.
    """

    name: str
    accuracy: Figure
    decile: float
    gap: Figure  # the difference from the yardstick
    corrected: float | None
    rank: float  # mean over clients, 1 is best
    below_alone: float | None  # share of clients that are worse than when they train alone
    below_yardstick: float
    megabytes: float
    gigamacs: float

    @property
    def verdict(self) -> str:
        """`BETTER` or `WORSE` if the interval excludes zero, else `UNCLEAR`."""
        return {1: BETTER, -1: WORSE}.get(self.gap.sign or 0, UNCLEAR)

    def texts(self) -> list[str]:
        """Return the cells under `Comparison.heads`."""
        mean = self.accuracy.mean
        return [
            self.name,
            self.accuracy.text(digits=1),
            f"{self.decile:.1f}",
            self.gap.text("+", digits=1),
            self.verdict,
            holm_text(self.corrected),
            f"{self.rank:.1f}",
            "-" if self.below_alone is None else f"{self.below_alone:.0f} %",
            f"{self.below_yardstick:.0f} %",
            f"{self.megabytes:.1f}",
            f"{mean / self.megabytes:.2f}" if self.megabytes else "-",
            f"{self.gigamacs:.1f}",
            f"{mean / self.gigamacs:.2f}" if self.gigamacs else "-",
        ]


@dataclass(frozen=True)
class Comparison:
    """Methods, best first, compared over `seeds` with the row `yardstick` and training `alone`.

    `same_ranks` is the p-value of Friedman's test that all methods have equal ranks, over their
    means by seed; None with fewer than three methods or two seeds.
    """

    yardstick: str
    alone: str
    seeds: Sequence[int]
    lines: list[Line]
    same_ranks: float | None

    @property
    def heads(self) -> list[str]:
        """The heads of the columns; points per MB and per GMAC are points of accuracy."""
        return [
            "method",
            "accuracy",
            "bottom decile",
            f"difference from {self.yardstick}",
            "verdict",
            "p (Holm)",
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
                cells[3:6] = ["", "", ""]
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
        tested = [line for line in self.lines if line.corrected is not None]
        if tested:
            left = [line.verdict for line in others if (line.corrected or 0.0) <= LEVEL]
            alone = any(line.name == self.alone for line in tested)
            also = f" (that of {self.alone} is one of them)" if alone else ""
            half = median(line.gap.half or 0.0 for line in tested)
            text += (
                f" After Holm's correction for {number(len(tested), 'comparison')}{also}: "
                f"{left.count(BETTER)} better, {left.count(WORSE)} worse. In half of them, only a "
                f"difference of {half:.1f} points or more would have been clear."
            )
        costs = [
            f"{line.name} is better by {line.gap.mean:.1f} points, with "
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
        """Name the methods that lack some of the compared seeds, and what diverged; "" if none."""
        compared = set(self.seeds)
        told: dict[str, list[str]] = {}
        for outcome in outcomes:
            name, has = outcome.cell.row.name, {run.seed for run in outcome.runs}
            gone = set(outcome.diverged)
            if lost := compared & gone:
                what = "Not compared, because training diverged"
                told.setdefault(what, []).append(f"{name} (with {named_seeds(lost)})")
            if compared - has - gone:
                what = "Not compared, because some seeds have not run"
                told.setdefault(what, []).append(f"{name} (has {named_seeds(has)})")
            if others := gone - compared:
                what = "Training diverged with seeds that are not compared"
                told.setdefault(what, []).append(f"{name} ({named_seeds(others)})")
        return " ".join(f"{what}: {', '.join(names)}." for what, names in told.items())


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
    less = {name: _less(values, base) for name, values in accuracies.items()}
    gaps = {name: _figure(values) for name, values in less.items()}
    compared = [name for name in names if name != yardstick]
    corrected = dict(zip(compared, holm([gaps[name] for name in compared]), strict=True))
    table = np.array([np.concatenate(accuracies[name]) for name in names])
    ranks = dict(zip(names, stats.rankdata(-table, axis=0).mean(axis=1), strict=True))
    lines = []
    for name, values in accuracies.items():
        costs = [runs[name][seed].costs for seed in seeds]
        sent = np.mean([cost["bytes_up"] + cost["bytes_down"] for cost in costs])
        lines.append(
            Line(
                name=name,
                accuracy=_figure(values),
                decile=100 * float(np.mean([np.percentile(v, 10) for v in values])),
                gap=gaps[name],
                corrected=corrected.get(name),
                rank=float(ranks[name]),
                below_alone=None if single is None else _below(_less(values, single)),
                below_yardstick=_below(less[name]),
                megabytes=float(sent) / 1e6,
                gigamacs=float(np.mean([cost["train_macs"] for cost in costs])) / 1e9,
            )
        )
    best_first = sorted(lines, key=lambda line: -line.accuracy.mean)
    return Comparison(yardstick, alone, seeds, best_first, _same_ranks(accuracies.values()))


def _figure(values: Accuracies) -> Figure:
    """Return the mean over clients for each seed, in percent."""
    return Figure(tuple(100 * float(v.mean()) for v in values), None)


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
