"""What the tables are made of: a finished round, a client's evaluation, means over clients."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import msgspec
import numpy as np

from fedapps.core.schema import Fraction, NonNegative
from fedapps.method.figures import Figure, given
from fedapps.report.columns import CLASS


@dataclass
class ClientEval:
    """One client's evaluation on its own test split, as far as one can tell without its data.

    The class counts are test samples of each class and how many of them were classified right;
    `figures` are those that this client gave. `accuracy_personalized` is None in a round in which
    nobody personalizes.
    """

    client: int
    num_train: NonNegative
    num_test: NonNegative
    loss: float  # of a personalization that diverged: not finite; it stands for itself only
    accuracy_initial: Fraction
    accuracy_personalized: Fraction | None
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

    def initial_only(self) -> "ClientEval":
        """Return the scores of a round in which nobody personalizes."""
        return replace(self, accuracy_personalized=None)

    def flat(self) -> dict[str, Any]:
        """Return the values by their columns in clients.csv."""
        return vars(self) | self.figures


@dataclass(frozen=True, kw_only=True)
class Means:
    """One evaluation over its clients: accuracies are fractions, None where undefined.

    `_std` has ddof=0, `_weighted` is by test samples; `figures` has a value for each column.
    Of the personalized accuracies: `decile` is the 10th percentile over clients, `least` the
    lowest, `balanced` the mean over clients of the mean over the classes that a client has;
    `share_hurt` is the share of clients that personalization made worse.
    """

    accuracy_initial: float | None = None
    accuracy_personalized: float | None = None
    accuracy_personalized_std: float | None = None
    accuracy_initial_weighted: float | None = None
    accuracy_personalized_weighted: float | None = None
    evaluated: int | None = None  # clients
    decile_personalized: float | None = None
    least_personalized: float | None = None
    share_hurt: float | None = None
    balanced_personalized: float | None = None
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

    @classmethod
    def read(cls, line: Mapping[str, str], figures: Iterable[Figure]) -> "RoundRow":
        """Make it of a line of rounds.csv, by columns; raises ValueError for what is no number."""
        values = {name: text or None for name, text in line.items()}
        names = [name for figure in figures for name in figure.columns]
        found = {name: float(text) for name in names if (text := values.get(name))}
        columns = {f.name: values[f.name] for f in fields(cls) if f.name in values}
        mean_columns = {f.name: values[f.name] for f in fields(Means) if f.name in values}
        means = msgspec.convert(mean_columns, Means, strict=False)
        row = msgspec.convert(columns, cls, strict=False)
        return replace(row, means=replace(means, figures=found))

    def flat(self) -> dict[str, Any]:
        """Return the values by their columns in rounds.csv; those of figures may be missing."""
        values = asdict(self)
        means = values.pop("means")
        figures = means.pop("figures")
        return values | means | figures


def means(results: Sequence[ClientEval], figures: Iterable[Figure]) -> Means:
    """Return the means over the clients of one evaluation, in which all personalize or none."""
    initial = [result.accuracy_initial for result in results]
    sizes = [result.num_test for result in results]
    done = [(r, r.accuracy_personalized) for r in results if r.accuracy_personalized is not None]
    personalized = [accuracy for _, accuracy in done]
    figure_means: dict[str, float | None] = {}
    for figure in figures:
        figure_means |= _figure_means(results, figure)
    return Means(
        accuracy_initial=_mean(initial),
        accuracy_personalized=_mean(personalized),
        accuracy_personalized_std=float(np.std(personalized)) if personalized else None,
        accuracy_initial_weighted=_mean(initial, sizes),
        accuracy_personalized_weighted=_mean(personalized, sizes),
        evaluated=len(results) or None,
        decile_personalized=float(np.percentile(personalized, 10)) if personalized else None,
        least_personalized=min(personalized, default=None),
        share_hurt=_mean([float(after < result.accuracy_initial) for result, after in done]),
        balanced_personalized=_mean([_balanced(result) for result, _ in done]),
        figures=figure_means,
    )


def class_sums(results: Sequence[ClientEval]) -> list[list[int]]:
    """Return sums over clients, [3, classes]: test samples, and those right before and after."""
    names = ("class_total", "class_initial", "class_personalized")
    sums = [np.sum([getattr(result, name) for result in results], axis=0) for name in names]
    return np.array(sums, int).reshape(3, -1).tolist() if results else []


def class_table(sums: Sequence[Sequence[int]]) -> list[list[object]]:
    """Return classes.csv: accuracy per class over the test samples of all evaluated clients."""
    rows: list[list[object]] = [list(CLASS)]
    for label, (count, *correct) in enumerate(zip(*sums, strict=True)):
        rows.append([label, count, *(right / count if count else None for right in correct)])
    return rows


def _balanced(result: ClientEval) -> float:
    """Return the mean personalized accuracy over the classes of a client's test samples."""
    total, correct = np.array(result.class_total), np.array(result.class_personalized)
    return float((correct[total > 0] / total[total > 0]).mean())


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
