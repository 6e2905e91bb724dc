"""A metric: how well predictions fit, as one number for a client, and how it is shown."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

# What a task counts over samples, as arrays by name. The counts of two clients add up to those of
# both together.
Counts = Mapping[str, np.ndarray]
PERCENT = "%"
LOW = 10  # the percentile of clients that the columns decile_* show


def ratio(of: str, over: str, counts: Counts) -> tuple[float, float]:
    """Return the sum of one count over samples, and that of another, which is its weight."""
    return counts[of].sum(), counts[over].sum()


def macro_f1(found: str, true: str, counts: Counts) -> tuple[float, float]:
    """Return the sum of F1 scores, and of how many classes or labels occur or are predicted.

    `found` counts those that are true and predicted, `true` those that are true. It is 1 if none
    occurs and none is predicted.
    """
    both = counts[true] + counts["predicted"]
    if not (there := both > 0).any():
        return 1, 1
    return (2 * counts[found][there] / both[there]).sum(), there.sum()


@dataclass(frozen=True)
class Metric:
    """A figure of a client's predictions: a sum over the client's samples, and its weight.

    `parts` makes both of a client's counts. The value of a client is sum / weight, and that of
    several clients together is the sum of their sums divided by the sum of their weights; if a
    metric is `by_class`, it is that of their counts, added up.
    `of_mean` turns this mean into what is shown (for example, exp). All that is said about a metric
    is said here: its name in tables, its label, its unit (`%`: the value is a fraction) and whether
    a larger value is better. `bounds` are the values that it can have.
    """

    name: str  # the columns of rounds.csv are <name>_initial, <name>_personalized, ...
    label: str
    short: str  # in narrow places: the line of a round has that of the leading metric
    parts: Callable[[Counts], tuple[float, float]]
    unit: str = PERCENT
    more_is_better: bool = True
    of_mean: Callable[[float], float] = float  # as it is
    bounds: tuple[float, float] = (0.0, 1.0)
    by_class: bool = False  # a mean over classes, so parts of several clients do not add up

    @property
    def initial(self) -> str:
        """The column with the value before personalization."""
        return f"{self.name}_initial"

    @property
    def personalized(self) -> str:
        """The column with the value after personalization."""
        return f"{self.name}_personalized"

    def words(self, column: str) -> str:
        """Return the name of a column in words; that of the metric is left out: `without head`."""
        return column.removeprefix(f"{self.name}_").replace("_", " ")

    def means(self, columns: Iterable[str]) -> list[str]:
        """Return the columns of rounds.csv with means of the metric, but those by samples.

        The initial one is first. (In rounds.csv it is the last one of a metric that does not lead.)
        All columns that begin with its name are its own: `report.columns` refuses others.
        """
        own = (name for name in columns if name.startswith(f"{self.name}_"))
        found = [name for name in own if not name.endswith(("_std", "_weighted"))]
        return sorted(found, key=lambda name: name != self.initial)

    @property
    def factor(self) -> int:
        """What a value is multiplied with to have the unit that is shown."""
        return 100 if self.unit == PERCENT else 1

    @property
    def plural(self) -> str:
        """The label of several values: `accuracies`."""
        return f"{self.label[:-1]}ies" if self.label.endswith("y") else self.label

    @property
    def title(self) -> str:
        """The label with its unit, for an axis or the head of a table: `accuracy (%)`."""
        return f"{self.label} ({self.unit})" if self.unit else self.label

    def of(self, counts: Counts) -> float | None:
        """Return the value for these counts; None if it is not defined for them."""
        return self.together([counts])

    def together(self, clients: Sequence[Counts]) -> float | None:
        """Return the value over the samples of several clients together; None if undefined."""
        if self.by_class and clients:
            clients = [{key: np.sum([c[key] for c in clients], axis=0) for key in clients[0]}]
        parts = [self.parts(counts) for counts in clients] or [(0, 0)]
        total, weight = np.sum(parts, axis=0)
        return self.of_mean(float(total / weight)) if weight else None

    def is_better(self, value: float, other: float) -> bool:
        """Tell whether a value is strictly better than another one; NaN is never better."""
        if np.isnan(value) or np.isnan(other):
            return bool(np.isnan(other) and not np.isnan(value))
        return value > other if self.more_is_better else value < other

    def best(self, values: Sequence[float]) -> float:
        """Return the best of some values."""
        return max(values) if self.more_is_better else min(values)

    def worst(self, values: Sequence[float]) -> float:
        """Return the worst of some values."""
        return min(values) if self.more_is_better else max(values)

    def decile(self, values: Sequence[float]) -> float:
        """Return the value that nine tenths of the clients reach."""
        return float(np.percentile(values, LOW if self.more_is_better else 100 - LOW))

    def digits(self, value: float | None, sign: str = "", places: int = 2) -> str:
        """Write a value without its unit: a percentage or a fraction with so many decimals.

        Other values can be of any magnitude, so they have four digits: `0.1234`, `3e-05`. None is
        a dash.
        """
        if value is None:
            return "-"
        return f"{value:{sign}{f'.{places}f' if self.unit == PERCENT else '.4g'}}"

    def change(self, before: float | None, after: float | None) -> str:
        """Write the value before and after personalization, each with four decimals."""
        return f"{self.digits(before, places=4)} -> {self.digits(after, places=4)}"

    def shown(self, value: float) -> str:
        """Write a value with its unit: `87.3 %`, `0.1234`."""
        return f"{100 * value:.1f} %" if self.unit == PERCENT else f"{value:.4g}"
