"""What a method has its runs show: further figures of an evaluation, and plots of its events."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec


@dataclass(frozen=True)
class Figure:
    """A further figure that clients give in an evaluation, beside the loss and the accuracies.

    A strategy class lists those of its method as `figures`, and the client returns their values
    from `extra_scores`. rounds.csv has the mean over the clients that give it, in every run
    (empty where nobody does). If the name begins with `accuracy_`, summary.json has its best round.
    """

    name: str  # its key in a client's reply and its column in rounds.csv
    meaning: str  # one line
    label: str = ""  # of its curve in the plot of accuracies; "": no curve
    after: str = ""  # the column of rounds.csv that it stands behind; "": it stands at the end
    weighted: bool = False  # <name>_weighted is there too: the mean by test samples
    per_client: bool = False  # it is a column of clients.csv too
    low: float = 0.0  # the range that is accepted from a client
    high: float = 1.0

    @property
    def columns(self) -> tuple[str, ...]:
        """Its columns in rounds.csv."""
        return (self.name, f"{self.name}_weighted") if self.weighted else (self.name,)


@dataclass(frozen=True)
class EventPlot:
    """A plot of events.csv: how often each category was counted, and the mean of its values.

    A strategy class lists those of its method as `plots`. Categories are words in the details of
    events: `<category>` in those that are counted, `<category> <number>` in those with a value.
    """

    name: str  # of the file plots/<name>.png
    counted: str  # kind of the events that are counted for each category and round: bars
    valued: str  # kind of the events that give a category a value; its mean in a round: lines
    count_label: str  # of the axis of the bars
    value_label: str  # of the axis of the lines


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
# Figures that a key of the run-config brings, whatever the method.
GENERAL = {"score_last": LAST_LOCAL, "score_without_head": WITHOUT_HEAD}


def given(figures: Iterable[Figure], metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return those of `figures` that a client gave; raises ValueError for one out of its range."""
    return {f.name: _checked(f, metrics[f.name]) for f in figures if f.name in metrics}


def _checked(figure: Figure, value: Any) -> float:
    accepted: Any = Annotated[float, msgspec.Meta(ge=figure.low, le=figure.high)]
    try:
        return float(msgspec.convert(value, accepted))
    except msgspec.ValidationError as error:
        raise ValueError(f"{error} - at `$.{figure.name}`") from None
