"""The rows of the tables: a finished round, a client's evaluation, and means over clients."""

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
    """One client's evaluation on its own held-out samples.

    The class counts are the samples of each class (`class_total`), and how many of them were
    classified correctly. `figures` are the further figures of this client. `accuracy_personalized`
    is None in a round without personalization. Values are checked as far as that is possible
    without the client's data.
    """

    client: int
    num_train: NonNegative
    num_test: NonNegative
    loss: float  # not finite if the client's personalization diverged
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
        """Read a client's metrics; raises ValueError if one is missing or out of range."""
        known = {f.name: metrics[f.name] for f in fields(cls) if f.name in metrics}
        about = {"client": client, "num_test": num_test, "figures": given(figures, metrics)}
        return msgspec.convert(known | about, cls)

    def initial_only(self) -> "ClientEval":
        """Return the scores for a round without personalization."""
        return replace(self, accuracy_personalized=None)

    def flat(self) -> dict[str, Any]:
        """Return the values by column of clients.csv."""
        return vars(self) | self.figures


@dataclass(frozen=True, kw_only=True)
class Means:
    """The means of one evaluation over its clients; accuracies are fractions, or None if undefined.

    `_std` has ddof=0; `_weighted` is weighted by scored samples. Of the personalized accuracies,
    `decile` is the 10th percentile over clients, `least` the lowest, and `balanced` the mean over
    clients of a client's mean over its classes. `share_hurt` is the share of clients that
    personalization made worse. `figures` has a value for each column of the figures.
    """

    accuracy_initial: float | None = None
    accuracy_personalized: float | None = None
    accuracy_personalized_std: float | None = None
    accuracy_initial_weighted: float | None = None
    accuracy_personalized_weighted: float | None = None
    evaluated: int | None = None  # number of evaluated clients
    decile_personalized: float | None = None
    least_personalized: float | None = None
    share_hurt: float | None = None
    balanced_personalized: float | None = None
    figures: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(kw_only=True)
class RoundRow:
    """One line of rounds.csv; `means` are all None if the round was not evaluated.

    Bytes count the arrays of all selected clients; those of the evaluation are in `bytes_eval`.
    `cost_paper` counts active parameters x batches. `epsilon` is the privacy that all rounds so far
    have spent at `dp.delta`, or None without differential privacy.
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
        """Read a line of rounds.csv, given by column; raises ValueError if it is not valid."""
        values = {name: text or None for name, text in line.items()}
        names = [name for figure in figures for name in figure.columns]
        found = {name: float(text) for name in names if (text := values.get(name))}
        columns = {f.name: values[f.name] for f in fields(cls) if f.name in values}
        mean_columns = {f.name: values[f.name] for f in fields(Means) if f.name in values}
        means = msgspec.convert(mean_columns, Means, strict=False)
        row = msgspec.convert(columns, cls, strict=False)
        return replace(row, means=replace(means, figures=found))

    def flat(self) -> dict[str, Any]:
        """Return the values by column of rounds.csv; columns of figures can be missing."""
        values = asdict(self)
        means = values.pop("means")
        figures = means.pop("figures")
        return values | means | figures


def means(results: Sequence[ClientEval], figures: Iterable[Figure]) -> Means:
    """Return the means over the clients of an evaluation; either all personalize or none."""
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
    """Return sums over clients, [3, classes]: samples, and how many were right before and after."""
    names = ("class_total", "class_initial", "class_personalized")
    sums = [np.sum([getattr(result, name) for result in results], axis=0) for name in names]
    return np.array(sums, int).reshape(3, -1).tolist() if results else []


def class_table(sums: Sequence[Sequence[int]]) -> list[list[object]]:
    """Return the rows of classes.csv: accuracies per class over all evaluated clients' samples."""
    rows: list[list[object]] = [list(CLASS)]
    for label, (count, *correct) in enumerate(zip(*sums, strict=True)):
        rows.append([label, count, *(right / count if count else None for right in correct)])
    return rows


def _balanced(result: ClientEval) -> float:
    """Return the mean of a client's personalized accuracies over the classes that it has."""
    total, correct = np.array(result.class_total), np.array(result.class_personalized)
    return float((correct[total > 0] / total[total > 0]).mean())


def _figure_means(results: Sequence[ClientEval], figure: Figure) -> dict[str, float | None]:
    """Return a figure's means by column, over the clients that have this figure."""
    those = [result for result in results if figure.name in result.figures]
    values = [result.figures[figure.name] for result in those]
    by_samples = _mean(values, [result.num_test for result in those])
    return dict(zip(figure.columns, (_mean(values), by_samples), strict=False))


def _mean(values: Sequence[float], weights: Sequence[int] | None = None) -> float | None:
    if not values or (weights is not None and not sum(weights)):
        return None
    return float(np.average(values, weights=weights))
