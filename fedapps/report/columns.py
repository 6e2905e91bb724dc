"""The columns of the tables in a run directory; they are the same in all runs and methods."""

from collections.abc import Sequence
from functools import cache
from itertools import chain

from fedapps.core import registry
from fedapps.core.errors import RunError
from fedapps.method.figures import GENERAL, Figure

ROUND = (
    "round",
    "phase",
    "clients",
    "failures",
    "train_loss",
    "accuracy_initial",
    "accuracy_personalized",
    "accuracy_personalized_std",
    "accuracy_initial_weighted",
    "accuracy_personalized_weighted",
    "bytes_down",
    "bytes_up",
    "bytes_eval",
    "train_macs",
    "cost_paper",
    "seconds",
    "epsilon",
    "evaluated",
)
MEANS = tuple(name for name in ROUND if name.startswith("accuracy_"))
SPREAD = (  # over the clients of an evaluation; the last columns of rounds.csv
    "decile_personalized",
    "least_personalized",
    "share_hurt",
    "balanced_personalized",
)
CLIENT = (
    "round",
    "client",
    "num_train",
    "num_test",
    "loss",
    "accuracy_initial",
    "accuracy_personalized",
)
CLASS = ("class", "num_test", "accuracy_initial", "accuracy_personalized")
SAMPLES = ("client", "class", "num_train")
EVENT = ("round", "client", "kind", "detail")


@cache
def known_figures() -> tuple[Figure, ...]:
    """Return the general figures, then those of all methods, each once.

    Raises `RunError` if two methods declare different figures with the same name.
    """
    known: dict[str, Figure] = {}
    for figure in chain(GENERAL.values(), *map(_figures_of, registry.names())):
        if known.setdefault(figure.name, figure) != figure:
            raise RunError(f"figure {figure.name}: two methods declare it differently; rename one")
    return tuple(known.values())


def round_columns(figures: Sequence[Figure]) -> tuple[str, ...]:
    """Return the columns of rounds.csv: base columns with each figure in its place, then `SPREAD`.

    Raises `RunError` if a figure has the name of another column, or if its `after` is not a column.
    """
    for figure in figures:
        if figure.after and figure.after not in ROUND:
            raise RunError(
                f'figure {figure.name}: after = "{figure.after}": must be one of {", ".join(ROUND)}'
            )
    columns: list[str] = []
    for place in (*ROUND, ""):
        columns += [place] if place else []
        columns += chain.from_iterable(f.columns for f in figures if f.after == place)
    columns += SPREAD
    for name in columns:
        if columns.count(name) > 1:
            raise RunError(f"figure {name}: rounds.csv has another column of this name; rename it")
    return tuple(columns)


def client_columns(figures: Sequence[Figure]) -> tuple[str, ...]:
    """Return the columns of clients.csv: the base columns, then the figures per client."""
    return (*CLIENT, *(figure.name for figure in figures if figure.per_client))


def accuracy_columns(figures: Sequence[Figure]) -> tuple[str, ...]:
    """Return the columns of rounds.csv with mean accuracies, of which a higher one is better."""
    means = (name for name in round_columns(figures) if name.startswith("accuracy_"))
    return tuple(name for name in means if name != "accuracy_personalized_std")


def _figures_of(method: str) -> tuple[Figure, ...]:
    try:
        return tuple(registry.strategy_class(method).figures)
    except Exception:  # a method that cannot be loaded fails only its own runs
        return ()
