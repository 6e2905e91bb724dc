"""What a method adds to the results of its runs: figures of an evaluation, plots of events."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec


@dataclass(frozen=True)
class Figure:
    """A figure that clients report in an evaluation, besides the loss and the accuracies.

    A strategy class lists the figures of its method as `figures`, and the client returns their
    values from `extra_scores`. In every run, rounds.csv has the mean over the clients that report
    the figure (empty if none does). If the name begins with `accuracy_`, summary.json has the
    figure's best round.
    """

    name: str  # its key in a client's reply and its column in rounds.csv
    meaning: str  # one line
    label: str = ""  # the label of its curve in the plot of accuracies; "": no curve
    after: str = ""  # the column of rounds.csv before it; "": it is the last column
    weighted: bool = False  # report <name>_weighted too: the mean weighted by test samples
    per_client: bool = False  # make it a column of clients.csv too
    low: float = 0.0  # the smallest value that is accepted from a client
    high: float = 1.0  # the largest one

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
    "accuracy_last_local",
    "accuracy of the whole model as the client's last local training left it (`score-last`)",
    label="last local",
    after="seconds",
    weighted=True,
    per_client=True,
)
WITHOUT_HEAD = Figure(
    "accuracy_without_head",
    "accuracy of the nearest class template in the body's output (method, `score-without-head`)",
    label="without head",
    after="accuracy_initial",
)
# Figures that a key of the run-config turns on for any method.
GENERAL = {"score_last": LAST_LOCAL, "score_without_head": WITHOUT_HEAD}


def given(figures: Iterable[Figure], metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the `figures` that a client reported; raises ValueError for one out of its range."""
    return {f.name: _checked(f, metrics[f.name]) for f in figures if f.name in metrics}


def _checked(figure: Figure, value: Any) -> float:
    accepted: Any = Annotated[float, msgspec.Meta(ge=figure.low, le=figure.high)]
    try:
        return float(msgspec.convert(value, accepted))
    except msgspec.ValidationError as error:
        raise ValueError(f"{error} - at `$.{figure.name}`") from None
