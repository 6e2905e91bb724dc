"""What a method adds to the results of its runs: figures of an evaluation, plots of events."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from fedapps.core.words import shortened
from fedapps.tasks import Metric


@dataclass(frozen=True)
class Figure:
    """A figure that clients report in an evaluation, besides the loss and the task's metrics.

    A strategy class lists the figures of its method as `figures`, and the client returns their
    values from `extra_scores`. In every run, rounds.csv has the mean over the clients that report
    the figure (empty if none does). A figure `of_metric` is the task's leading metric of another
    model, so its column begins with the name of this metric: `global` becomes `accuracy_global`,
    and summary.json has its best round.
    """

    name: str  # its key in a client's reply and its column in rounds.csv
    meaning: str  # one line
    label: str = ""  # the label of its curve in the plot of the metric; "": no curve
    of_metric: bool = False  # whether it is a value of the leading metric
    after: str = ""  # the column before it, `initial` for that of the metric; "": the last column
    weighted: bool = False  # report <name>_weighted too: the mean weighted by test samples
    per_client: bool = False  # make it a column of clients.csv too
    low: float = 0.0  # the smallest value that is accepted from a client
    high: float = 1.0  # the largest one
    key: str = ""  # in a client's reply, if that is not the name
    sometimes: bool = False  # in some runs no client can give it: that is no reason to warn

    def named(self, metric: Metric) -> "Figure":
        """Return the figure with the name and the bounds that it has if this metric leads."""
        after = {"initial": metric.initial}.get(self.after, self.after)
        if not self.of_metric:
            return replace(self, after=after)
        low, high = metric.bounds
        name = f"{metric.name}_{self.name}"
        return replace(self, name=name, key=self.name, after=after, low=low, high=high)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the figure has in rounds.csv."""
        return (self.name, f"{self.name}_weighted") if self.weighted else (self.name,)


@dataclass(frozen=True)
class EventPlot:
    """A plot of events.csv: how often each category was counted, and the mean of its values.

    A strategy class lists the plots of its method as `plots`. The details of an event name its
    category: `<category>` in events that are counted, `<category> <number>` in events with a value.
    """

    name: str  # the plot is the file plots/<name>.png
    counted: str  # the kind of event that is counted, for each category and round: bars
    valued: str  # the kind of event that has a value; its mean for each category and round: lines
    count_label: str  # the label of the bars' axis
    value_label: str  # the label of the lines' axis


LAST_LOCAL = Figure(
    "last_local",
    "score of the whole model as the client's last local training left it (`score-last`)",
    label="last local",
    of_metric=True,
    after="seconds",
    weighted=True,
    per_client=True,
)
WITHOUT_HEAD = Figure(
    "without_head",
    "score of the nearest class template in the body's output (method, `score-without-head`)",
    label="without head",
    of_metric=True,
    after="initial",
    sometimes=True,  # not if the model cannot be cut
)
# Figures that a key of the run-config turns on for any method.
GENERAL = {"score_last": LAST_LOCAL, "score_without_head": WITHOUT_HEAD}


def given(figures: Iterable[Figure], metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the `figures` that a client reported; raises ValueError for one out of its range.

    A figure `of_metric` is NaN, and left out, if the metric is not defined for a client's samples.
    """
    told = {figure: figure.key or figure.name for figure in figures}
    return {
        f.name: _checked(f, metrics[key])
        for f, key in told.items()
        if key in metrics and not (f.of_metric and metrics[key] != metrics[key])
    }


def _checked(figure: Figure, value: Any) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and math.isfinite(value) and figure.low <= value <= figure.high:
        return float(value)
    bounds = f"from {figure.low:g} to {figure.high:g} (low and high of its Figure)"
    told = shortened(repr(value), 40)
    raise ValueError(f"{figure.name} = {told}: must be a finite float {bounds}")
