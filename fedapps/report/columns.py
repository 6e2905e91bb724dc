"""The columns of the tables in a run directory; they depend on the task, and on virtual time."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import chain
from typing import Any, NamedTuple

from fedapps.core import registry
from fedapps.core.errors import RunError
from fedapps.core.schema import NonNegative
from fedapps.method.figures import GENERAL, Figure
from fedapps.method.local import keys
from fedapps.tasks import Metric, Task

COSTS = ("bytes_down", "bytes_up", "bytes_eval", "train_macs", "cost_paper", "seconds", "epsilon")
# Over the clients of an evaluation, the last columns of rounds.csv before those of further metrics.
SPREAD = ("decile_personalized", "least_personalized", "share_hurt")
SAMPLES = ("client", "class", "num_train")
VIRTUAL = "virtual_seconds"  # the last column of rounds.csv, in runs with virtual time
EVENT = ("round", "client", "kind", "detail")


class Measured(NamedTuple):
    """A column of clients.csv that is neither a metric nor a figure: a field of `ClientEval`.

    `reported` is the type of what a client says in its metrics under this name; None if the server
    knows it otherwise. `head` is the column's head on the page, if not its name.
    """

    name: str
    reported: Any = None
    head: str = ""


MEASURED = (
    Measured("client"),
    Measured("num_train", NonNegative, "train samples"),
    Measured("num_test", head="scored samples"),
    Measured("loss", float),
)
# What clients.csv has and rounds.csv has not; a figure of this name would take its place.
OF_CLIENT = (*(column.name for column in MEASURED), "name")


@dataclass(frozen=True)
class Columns:
    """The columns of rounds.csv, clients.csv and classes.csv for a task and the methods' figures.

    Raises `RunError` if a figure has the name of another column, or of what else a client reports,
    or if its `after` is not a column; or if the name of a metric or figure begins like the columns
    of another metric.
    """

    task: Task
    figures: tuple[Figure, ...]  # named for the task
    names: tuple[str, ...] = ()  # of clients 0, 1, ..., if the data name them
    class_names: tuple[str, ...] = ()
    timed: bool = False  # whether the run has virtual time

    def __post_init__(self) -> None:
        replied = keys(self.task) | {figure.name for figure in GENERAL.values()}
        general = {*_named(GENERAL.values(), self.task)}
        for figure in self.figures:
            if figure.after and figure.after not in self._base:
                raise RunError(
                    f'figure {figure.name}: after = "{figure.after}": must be one of'
                    f" {', '.join(self._base)}"
                )
            if figure.name in OF_CLIENT:
                raise RunError(
                    f"figure {figure.name}: clients.csv has another column of this name; rename it"
                )
            if (name := figure.key or figure.name) in replied and figure not in general:
                raise RunError(
                    f"figure {name}: a client's reply has another value of this name; rename it"
                )
        for name in self.rounds:
            if self.rounds.count(name) > 1:
                raise RunError(
                    f"figure {name}: rounds.csv has another column of this name; rename it"
                )
            self._check_begin(name)

    def _check_begin(self, column: str) -> None:
        """Refuse a column that begins like those of a metric whose it is not (`Metric.means`)."""
        own = self.metric_of(column)
        for metric in self.task.metrics:
            if column.startswith(f"{metric.name}_") and metric is not own:
                what = f"metric {own.name}" if own else f"column {column}"
                raise RunError(
                    f"{what}: columns that begin with {metric.name}_ are those of the metric"
                    f" {metric.name}; rename one of them"
                )

    @property
    def lead(self) -> Metric:
        """The metric by which runs are compared."""
        return self.task.lead

    @property
    def of_class(self) -> Metric:
        """The metric that is told of each class."""
        return self.task.of_class or self.lead

    @property
    def means(self) -> tuple[str, ...]:
        """The columns of rounds.csv with means of the leading metric, and their spread."""
        initial, personalized = self.lead.initial, self.lead.personalized
        weighted = (f"{initial}_weighted", f"{personalized}_weighted")
        return (initial, personalized, f"{personalized}_std", *weighted)

    @property
    def _base(self) -> tuple[str, ...]:
        first = ("round", "phase", "clients", "failures", "train_loss")
        return (*first, *self.means, *COSTS, "evaluated")

    @cached_property
    def rounds(self) -> tuple[str, ...]:
        """The columns of rounds.csv, with each figure in its place."""
        columns: list[str] = []
        for place in (*self._base, ""):
            columns += [place] if place else []
            columns += chain.from_iterable(f.columns for f in self.figures if f.after == place)
        return (*columns, *self.spread, *([VIRTUAL] if self.timed else []))

    @property
    def spread(self) -> tuple[str, ...]:
        """The last columns of rounds.csv: of the clients' spread, and of further metrics."""
        further = ((m.personalized, m.initial) for m in self.task.metrics[1:])
        return (*SPREAD, *chain.from_iterable(further))

    @property
    def clients(self) -> tuple[str, ...]:
        """The columns of clients.csv."""
        first = ("round", *(column.name for column in MEASURED))
        own = (figure.name for figure in self.figures if figure.per_client)
        further = ((m.initial, m.personalized) for m in self.task.metrics[1:])
        lead = (self.lead.initial, self.lead.personalized)
        name = ("name",) if self.names else ()
        return (*first, *lead, *own, *chain.from_iterable(further), *name)

    @property
    def classes(self) -> tuple[str, ...]:
        """The columns of classes.csv."""
        name = ("name",) if self.class_names else ()
        return ("class", "num_test", self.of_class.initial, self.of_class.personalized, *name)

    def called(self, client: int) -> str:
        """Return the number of a client, with its name if the data name it: `3 (Boston)`."""
        return f"{client} ({self.names[client]})" if self.names else str(client)

    def metric_of(self, column: str) -> Metric | None:
        """Return the metric whose values a column has; None if it has others, such as bytes."""
        return self._metrics.get(column)

    @cached_property
    def _metrics(self) -> dict[str, Metric]:
        of_figures = chain.from_iterable(f.columns for f in self.figures if f.key)
        of_lead = (*self.means, *SPREAD[:2], *of_figures)
        named = {name: m for m in self.task.metrics for name in (m.initial, m.personalized)}
        return named | dict.fromkeys(of_lead, self.lead)

    @property
    def of_lead(self) -> tuple[str, ...]:
        """The columns of rounds.csv with a mean of the leading metric, which can be the best."""
        spread = {f"{self.lead.personalized}_std", *SPREAD}
        own = (name for name in self.rounds if self.metric_of(name) is self.lead)
        return tuple(name for name in own if name not in spread)


@cache
def columns_of(
    task: Task,
    names: tuple[str, ...] = (),
    class_names: tuple[str, ...] = (),
    timed: bool = False,
) -> Columns:
    """Return the columns for a task: with the general figures, then those of all methods, once.

    With the names of clients or classes, their table has a column for them; if the run is `timed`,
    rounds.csv has one for virtual time. The figures of all methods count, because all runs have the
    same columns; but not those that `check_figures` refuses in the runs of their method.
    """
    figures = (figure for _, figure in _fitting(task).values())
    return Columns(task, tuple(figures), names, class_names, timed)


def check_figures(method: str, figures: Iterable[Figure], task: Task) -> None:
    """Raise `RunError` if one of a method's figures cannot be a column beside all others."""
    columns_of(task)  # the task's own metrics
    known, file = _fitting(task), f"{registry.STRATEGIES}/{method}.py"
    if not _are_figures(figures):
        allowed = 'must be a tuple of Figure, such as (Figure("own", "score of the own model"),)'
        raise RunError(f"{file}: figures = {repr(figures)[:100]}: {allowed}")
    for figure in _named(figures, task):
        if problem := _misfit(task, figure, known):
            raise RunError(f"{file}: {problem}")


def _fitting(task: Task) -> dict[str, tuple[str, Figure]]:
    """Return by name the figures that can be columns together, each with who declares it first."""
    known: dict[str, tuple[str, Figure]] = {}
    of_methods = ((name, _figures_of(name)) for name in registry.names())
    for who, figures in (("fedapps", tuple(GENERAL.values())), *of_methods):
        for figure in _named(figures, task):
            if figure.name not in known and not _misfit(task, figure, known):
                known[figure.name] = who, figure
    return known


def _misfit(task: Task, figure: Figure, known: Mapping[str, tuple[str, Figure]]) -> str:
    """Return why a figure cannot be a column beside those that are known; "" if it can."""
    who, same = known.get(figure.name, ("", figure))
    if figure != same:
        other = f"{who} declares it differently"
        return f"figure {figure.name}: {other}; rename one, or make both equal"
    beside = {name: one for name, (_, one) in known.items()} | {figure.name: figure}
    try:
        Columns(task, tuple(beside.values()), timed=True)
    except RunError as error:
        return str(error)
    return ""


def _named(figures: Iterable[Figure], task: Task) -> Iterator[Figure]:
    return (figure.named(task.lead) for figure in figures)


def _figures_of(method: str) -> tuple[Figure, ...]:
    try:
        figures = registry.strategy_class(method).figures
    except Exception:  # a method that cannot be loaded fails only its own runs
        return ()
    return tuple(figures) if _are_figures(figures) else ()


def _are_figures(found: object) -> bool:
    return isinstance(found, tuple | list) and all(isinstance(each, Figure) for each in found)
