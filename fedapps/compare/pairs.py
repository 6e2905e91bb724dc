"""The difference of two groups with common seeds, and whether it can be due to chance."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, combinations, product

import numpy as np
import pandas as pd
from scipy import stats

from fedapps.compare.groups import Group
from fedapps.core.data_settings import OF_PARTITIONERS
from fedapps.tasks import Metric

ALL_PAIRS = 4  # with more groups, each is compared only with the first
DATA = dict.fromkeys((
    "evaluate-on", "dataset", "split", "test-fraction", "validation-fraction", "partitioner",
    *chain.from_iterable(OF_PARTITIONERS.values()),
    "num-clients", "unseen-clients", "evaluate-clients",
))  # fmt: skip
FEWEST = 3  # smallest number of seeds for a test
ROUNDING = 1e-9  # of the largest value: differences that differ less count as equal


@dataclass(frozen=True)
class Pair:
    """The difference second minus first, seed by seed, in percentage points or the metric's unit.

    `interval` (95 %) and `p` are from a paired t-test. They are None with fewer than `FEWEST`
    seeds, or if all differences are equal.
    """

    first: str
    second: str
    seeds: tuple[int, ...]
    mean: float
    std: float | None  # ddof=1; None if there is only one seed
    interval: tuple[float, float] | None = None
    p: float | None = None


def pairs(groups: Sequence[Group], metric: Metric) -> list[Pair]:
    """Return the differences of groups with common seeds, the same samples and the same length."""
    few = len(groups) <= ALL_PAIRS
    compared = combinations(groups, 2) if few else product(groups[:1], groups[1:])
    return [*filter(None, (_pair(first, second, metric) for first, second in compared))]


def same_length(first: Group, second: Group) -> bool:
    """Tell whether two groups were trained for the same number of rounds."""
    if first.finished and second.finished:  # a method may add a phase of its own, or end early
        return first.settings["num-rounds"] == second.settings["num-rounds"]
    return set(first.rounds) == set(second.rounds)


def data_of(group: Group) -> dict[str, object]:
    """Return the settings that decide which samples are scored."""
    found: dict[str, object] = {k: group.settings[k] for k in DATA if k in group.settings}
    if group.settings["evaluate-on"] != "validation":
        del found["validation-fraction"]
    return found


def _pair(first: Group, second: Group, metric: Metric) -> Pair | None:
    if data_of(first) != data_of(second) or not same_length(first, second):
        return None
    digests = {run.digest("data") for run in (*first.runs, *second.runs)}
    if len(digests - {""}) > 1:  # of a data set of the same name
        return None
    scores = [metric.factor * group.figures[metric.personalized] for group in (first, second)]
    both = pd.concat(scores, axis=1, join="inner").dropna()
    alike = [first.evaluated[seed] == second.evaluated[seed] for seed in both.index]
    both = both[alike]  # without seeds whose means are over different clients
    if both.empty:
        return None
    paired = both.sort_index().to_numpy().T
    before, after = paired
    values, seeds = after - before, tuple(int(seed) for seed in sorted(both.index))
    names, mean = (first.name, second.name), float(values.mean())
    std = float(values.std(ddof=1)) if len(values) > 1 else None
    least = ROUNDING * float(np.abs(paired).max())
    if len(values) < FEWEST or np.allclose(values, mean, rtol=0, atol=least):
        return Pair(*names, seeds, mean, std)
    result = stats.ttest_rel(after, before)
    low, high = result.confidence_interval(0.95)
    return Pair(*names, seeds, mean, std, (float(low), float(high)), float(result.pvalue))
