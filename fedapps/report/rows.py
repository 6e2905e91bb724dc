"""The rows of the tables: a finished round, a client's evaluation, and means over clients."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import msgspec
import numpy as np

from fedapps.core.schema import NonNegative
from fedapps.method.figures import Figure
from fedapps.report.columns import MEASURED, Columns
from fedapps.tasks import Counts, Metric, Task

Value = float | None  # None: not defined
NEWCOMERS = "newcomers"  # phase after the last round in which unseen clients are personalized
OF_TRAINING = ("train_macs", "cost_paper")  # columns of costs that only a training can have


@dataclass
class ClientEval:
    """One client's evaluation on its own held-out samples.

    `before` and `after` are what the task counts before and after personalization; `after` is None
    in a round without it. All values of metrics are computed from these. `figures` are the further
    figures of this client.
    """

    client: int
    num_train: NonNegative
    num_test: NonNegative
    loss: float  # not finite if the client's personalization diverged
    task: Task
    before: Counts
    after: Counts | None
    figures: dict[str, float] = field(default_factory=dict)

    @property
    def initial(self) -> Value:
        """The leading metric before personalization."""
        return self.task.lead.of(self.before)

    @property
    def personalized(self) -> Value:
        """The leading metric after personalization."""
        return None if self.after is None else self.task.lead.of(self.after)

    def initial_only(self) -> "ClientEval":
        """Return the scores for a round without personalization."""
        return replace(self, after=None)

    def flat(self) -> dict[str, Any]:
        """Return the values by column of clients.csv."""
        values = {column.name: getattr(self, column.name) for column in MEASURED}
        for metric in self.task.metrics:
            values[metric.initial] = metric.of(self.before)
            values[metric.personalized] = None if self.after is None else metric.of(self.after)
        return values | self.figures


@dataclass(frozen=True, kw_only=True)
class Means:
    """The means of one evaluation over its clients; None if undefined.

    `columns` has all of them by column of rounds.csv. `_std` has ddof=0; `_weighted` is the value
    over the scored samples of all clients together. Of the personalized values, `decile` is what
    nine tenths of the clients reach, and `least` the worst; `share_hurt` is the share of clients
    that personalization made worse. All of them are over the clients that have the metric.
    """

    initial: Value = None
    personalized: Value = None
    evaluated: int | None = None  # number of evaluated clients
    scored: int = 0  # those that have the metric after personalization
    columns: Mapping[str, Value] = field(default_factory=dict)

    def with_the_worst(self, more: int) -> float:
        """Return the personalized mean if so many more clients were as bad as the worst one."""
        mean, count = self.personalized or 0.0, self.scored
        worst = self.columns["least_personalized"] if more else None
        return mean if worst is None else (count * mean + more * worst) / (count + more)

    def flat(self) -> dict[str, Any]:
        """Return the values by column of rounds.csv."""
        return {"evaluated": self.evaluated} | dict(self.columns)


@dataclass(kw_only=True)
class RoundRow:
    """One line of rounds.csv; `means` are all None if the round was not evaluated.

    Bytes count the arrays of all selected clients; those of the evaluation are in `bytes_eval`.
    `cost_paper` counts trained parameters x batches. `seconds` are those of the round with its
    evaluation (in summary.json, of the whole run). `epsilon` is the privacy that all rounds so far
    have spent at `dp.delta`, or None without differential privacy. `virtual_seconds` is the virtual
    time at the end of the round, or None without `devices`.
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
    virtual_seconds: float | None = None

    @classmethod
    def read(cls, line: Mapping[str, str], columns: Columns) -> "RoundRow":
        """Read a line of rounds.csv, given by column; raises ValueError if it is not valid."""
        values = {name: text or None for name, text in line.items()}
        own = {f.name: values[f.name] for f in fields(cls) if f.name in values}
        row = msgspec.convert(own, cls, strict=False)
        evaluated = values.get("evaluated")
        found = {
            name: None if text is None else float(text)
            for name, text in values.items()
            if name in columns.rounds and name not in own and name != "evaluated"
        }
        lead = columns.lead
        means = Means(
            initial=found.get(lead.initial),
            personalized=found.get(lead.personalized),
            evaluated=None if evaluated is None else int(evaluated),
            columns=found,
        )
        return replace(row, means=means)

    def flat(self) -> dict[str, Any]:
        """Return the values by column of rounds.csv; columns of figures can be missing."""
        values = asdict(self)
        del values["means"]
        return values | self.means.flat()

    def line(self, columns: Columns) -> list[Any]:
        """Return the values in the order of rounds.csv; None for what is missing."""
        values = self.flat()
        return [values.get(name) for name in columns.rounds]


OF_ROUND = {f.name for f in fields(RoundRow)}  # columns that do not come from an evaluation


def as_after(round_: int, goes_on: bool, table: str) -> str:
    """Return rounds.csv as it was after a round; raises ValueError if it is not valid.

    If the run `goes_on`, the phase that followed the round as its end is none: its scores are the
    round's, and what only an end has, such as the training of this phase, is left out.
    """
    head, *lines = table.splitlines(keepends=True)
    whole = (line for line in lines if line.endswith("\n"))
    kept = [line for line in whole if int(line.partition(",")[0]) <= round_]
    names, last = head.rstrip().split(","), [line.rstrip().split(",") for line in kept[-2:]]
    if goes_on and len(last) > 1 and last[0][0] == last[1][0]:
        row, phase = (dict(zip(names, values, strict=True)) for values in last)
        row |= {name: value for name, value in phase.items() if name not in OF_ROUND}
        of_round = ("failures", "seconds", *["bytes_eval"] * (phase["phase"] != NEWCOMERS))
        row |= {name: str(json.loads(row[name]) + json.loads(phase[name])) for name in of_round}
        kept[-2:] = [",".join(row.values()) + "\n"]
    return "".join([head, *kept])


def is_counted(column: str, phase: str) -> bool:
    """Tell whether a cost in a row of this phase belongs to the run's total.

    Newcomers personalize what others have trained, and no personalization counts as training.
    """
    return phase != NEWCOMERS or column not in OF_TRAINING


def means(results: Sequence[ClientEval], columns: Columns) -> Means:
    """Return the means over the clients of an evaluation; either all personalize or none."""
    lead, before = columns.lead, [result.before for result in results]
    after = [result.after for result in results if result.after is not None]
    pairs = [(lead.of(r.before), lead.of(r.after)) for r in results if r.after is not None]
    scores = [new for _, new in pairs if new is not None]
    hurt = [lead.is_better(o, new) for o, new in pairs if o is not None and new is not None]
    found: dict[str, Value] = {
        lead.initial: _mean_of(lead, before),
        lead.personalized: _mean(scores),
        f"{lead.personalized}_std": float(np.std(scores)) if scores else None,
        f"{lead.initial}_weighted": lead.together(before),
        f"{lead.personalized}_weighted": lead.together(after),
        "decile_personalized": lead.decile(scores) if scores else None,
        "least_personalized": lead.worst(scores) if scores else None,
        "share_hurt": _mean(hurt),
    }
    for metric in columns.task.metrics[1:]:
        found |= {metric.initial: _mean_of(metric, before)}
        found |= {metric.personalized: _mean_of(metric, after)}
    for figure in columns.figures:
        found |= _figure_means(results, figure)
    return Means(
        initial=found[lead.initial],
        personalized=found[lead.personalized],
        evaluated=len(results) or None,
        scored=len(scores),
        columns=found,
    )


def client_rows(
    round_: object, results: Iterable[ClientEval], columns: Columns
) -> list[list[object]]:
    """Return the rows of clients.csv."""
    called = dict(enumerate(columns.names))
    flat = [{"round": round_, "name": called.get(r.client)} | r.flat() for r in results]
    return [[values.get(name) for name in columns.clients] for values in flat]


def class_sums(results: Sequence[ClientEval]) -> list[list[int]]:
    """Return sums over clients, [3, classes]: samples, and how many were right before and after.

    They are empty for a task without classes.
    """
    parts = []
    for result in results:
        before = result.task.by_class(result.before)
        after = result.task.by_class(result.before if result.after is None else result.after)
        if before is not None and after is not None:
            parts.append([*before, after[1]])
    return np.sum(parts, axis=0, dtype=int).tolist() if parts else []


def class_table(sums: Sequence[Sequence[int]], columns: Columns) -> list[list[object]]:
    """Return the rows of classes.csv: accuracies per class over all evaluated clients' samples."""
    rows: list[list[object]] = [list(columns.classes)]
    for label, (count, *correct) in enumerate(zip(*sums, strict=True)):
        shares = (right / count if count else None for right in correct)
        rows.append([label, count, *shares, *columns.class_names[label : label + 1]])
    return rows


def _figure_means(results: Sequence[ClientEval], figure: Figure) -> dict[str, Value]:
    """Return a figure's means by column, over the clients that have this figure."""
    those = [result for result in results if figure.name in result.figures]
    values = [result.figures[figure.name] for result in those]
    by_samples = _mean(values, [result.num_test for result in those])
    return dict(zip(figure.columns, (_mean(values), by_samples), strict=False))


def _mean_of(metric: Metric, clients: Iterable[Counts]) -> Value:
    return _mean([value for counts in clients if (value := metric.of(counts)) is not None])


def _mean(values: Sequence[float], weights: Sequence[int] | None = None) -> Value:
    if not values or (weights is not None and not sum(weights)):
        return None
    return float(np.average(values, weights=weights))
