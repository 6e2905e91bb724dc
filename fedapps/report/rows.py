"""What the tables are made of: a finished round, a client's evaluation, means over clients."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import msgspec
import numpy as np

from fedapps.core.schema import Fraction, NonNegative
from fedapps.method.figures import Figure, given
from fedapps.report.columns import CLASS, HOLDING


@dataclass
class ClientEval:
    """One client's evaluation on its own test split, as far as one can tell without its data.

    The class counts are test samples of each class and how many of them were classified right;
    `figures` are those that this client gave.
    """

    client: int
    num_train: NonNegative
    num_test: NonNegative
    loss: float  # of a personalization that diverged: not finite; it stands for itself only
    accuracy_initial: Fraction
    accuracy_personalized: Fraction
    class_total: Sequence[NonNegative]
    class_initial: Sequence[NonNegative]
    class_personalized: Sequence[NonNegative]
    figures: dict[str, float] = field(default_factory=dict)

    @classmethod
    def read(
        cls, client: int, num_test: int, metrics: Mapping[str, Any], figures: Iterable[Figure]
    ) -> "ClientEval":
        """Make it of a client's metrics; raises ValueError for what is missing or out of range."""
        known = {f.name: metrics[f.name] for f in fields(cls) if f.name in metrics}
        about = {"client": client, "num_test": num_test, "figures": given(figures, metrics)}
        return msgspec.convert(known | about, cls)

    def flat(self) -> dict[str, Any]:
        """Return the values by their columns in clients.csv."""
        return vars(self) | self.figures


@dataclass(frozen=True, kw_only=True)
class Means:
    """One evaluation over its clients: accuracies are fractions, None where undefined.

    `_std` has ddof=0, `_weighted` is by test samples; `figures` has a value for each column.
    """

    accuracy_initial: float | None = None
    accuracy_personalized: float | None = None
    accuracy_personalized_std: float | None = None
    accuracy_initial_weighted: float | None = None
    accuracy_personalized_weighted: float | None = None
    figures: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(kw_only=True)
class RoundRow:
    """One line of rounds.csv; `means` are all None where the round was not evaluated.

    Bytes are those of the arrays of all selected clients; `bytes_eval` is what evaluation cost
    on top. `cost_paper` counts active parameters x batches. `epsilon` is what all rounds so far
    have spent at `dp.delta`, None without differential privacy.
    """

    round: int
    phase: str
    clients: int
    failures: int
    train_loss: float | None
    means: Means = Means()
    bytes_down: int
    bytes_up: int
    bytes_eval: int
    train_macs: int
    cost_paper: int
    seconds: float
    epsilon: float | None = None

    def flat(self) -> dict[str, Any]:
        """Return the values by their columns in rounds.csv; those of figures may be missing."""
        values = asdict(self)
        means = values.pop("means")
        figures = means.pop("figures")
        return values | means | figures


def means(results: Sequence[ClientEval], figures: Iterable[Figure]) -> Means:
    """Return the means over the clients of one evaluation."""
    personalized = [result.accuracy_personalized for result in results]
    initial = [result.accuracy_initial for result in results]
    sizes = [result.num_test for result in results]
    figure_means: dict[str, float | None] = {}
    for figure in figures:
        figure_means |= _figure_means(results, figure)
    return Means(
        accuracy_initial=_mean(initial),
        accuracy_personalized=_mean(personalized),
        accuracy_personalized_std=float(np.std(personalized)) if personalized else None,
        accuracy_initial_weighted=_mean(initial, sizes),
        accuracy_personalized_weighted=_mean(personalized, sizes),
        figures=figure_means,
    )


def class_table(results: Sequence[ClientEval]) -> list[list[object]]:
    """Return classes.csv: accuracy per class over the test samples of all evaluated clients."""
    rows: list[list[object]] = [list(CLASS)]
    if not results:
        return rows
    total = np.sum([result.class_total for result in results], axis=0)
    initial = np.sum([result.class_initial for result in results], axis=0)
    personalized = np.sum([result.class_personalized for result in results], axis=0)
    for label, count in enumerate(total.tolist()):
        correct = (initial[label], personalized[label])
        rows.append([label, int(count), *(float(c / count) if count else None for c in correct)])
    return rows


def holdings_table(class_counts: np.ndarray) -> list[list[object]]:
    """Return holdings.csv: how many training samples of a class a client has, where it has any.

    `class_counts` has a number for each client and class, [clients, classes].
    """
    rows: list[list[object]] = [list(HOLDING)]
    for client, label in np.argwhere(class_counts).tolist():
        rows.append([client, label, int(class_counts[client, label])])
    return rows


def _figure_means(results: Sequence[ClientEval], figure: Figure) -> dict[str, float | None]:
    """Return a figure's means by their columns, over the clients that gave it."""
    those = [result for result in results if figure.name in result.figures]
    values = [result.figures[figure.name] for result in those]
    by_samples = _mean(values, [result.num_test for result in those])
    return dict(zip(figure.columns, (_mean(values), by_samples), strict=False))


def _mean(values: Sequence[float], weights: Sequence[int] | None = None) -> float | None:
    if not values or (weights is not None and not sum(weights)):
        return None
    return float(np.average(values, weights=weights))
