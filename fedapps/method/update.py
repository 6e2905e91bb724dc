"""What a client's work gives to aggregation: an update, or a failure and its cause."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from fedapps.core.errors import DECLINED, GROWN, NO_REPLY, WITHHELD
from fedapps.models.layers import Arrays

SERVER = -1  # the client of an update that the server has made itself
Metrics = dict[str, int | float | list[int] | list[float]]


@dataclass(frozen=True)
class ClientUpdate:
    """What aggregation sees of one client: arrays by name (float32), sample count, metrics.

    `arrays` are entries of the model; `extras` are the arrays that the plan asked for in `sends`.
    `metrics` are as the client has sent them. On the server, `checked` holds what was read from
    them and checked once (after training, a `TrainingStats`).

    `weight` is the client's weight in a weighted mean: its sample count, or 1 if it adds noise. It
    is sent only with `presum`. Then one update of a SuperNode carries the mean of all its clients
    and the sum of their weights, and its other updates have weight 0.
    """

    client: int
    arrays: Arrays
    num_examples: int
    metrics: Metrics = field(default_factory=dict)
    weight: float = 0.0
    extras: Arrays = field(default_factory=dict)
    checked: Any = None

    def without_counts(self) -> "ClientUpdate":
        """Return the update without the metrics that are lists, which `checked` has as arrays."""
        scalars: Metrics = {key: m for key, m in self.metrics.items() if not isinstance(m, list)}
        return dataclasses.replace(self, metrics=scalars)


Updates = Iterator[ClientUpdate]


class OnePass(Updates):
    """Updates that can be iterated over once: they are not stored, as they can be whole models.

    A second loop raises RuntimeError. It would find no update, and the method would silently
    compute something else.
    """

    def __init__(self, updates: Iterable[ClientUpdate]) -> None:
        self._updates = iter(updates)
        self._ended = False

    def __iter__(self) -> "OnePass":
        if self._ended:
            raise RuntimeError(
                "the updates can be read only once: use one loop, or begin with list(updates)"
            )
        return self

    def __next__(self) -> ClientUpdate:
        for update in self._updates:
            return update
        self._ended = True
        raise StopIteration


@dataclass(frozen=True)
class Failure:
    """A client that could not do its work, and the cause in one line."""

    client: int
    cause: str
    worker_died: bool = False

    @property
    def declined(self) -> bool:
        """Whether it is a device that did not want to work now: it has not failed."""
        return self.cause.startswith(DECLINED)

    @property
    def withheld(self) -> bool:
        """Whether it is a device that has been scored, and tells nobody how."""
        return self.cause == WITHHELD

    @property
    def grown(self) -> bool:
        """Whether it has declined as it has more samples than it said: it is to be asked anew."""
        return self.cause.startswith(GROWN)

    @property
    def unanswered(self) -> bool:
        """Whether nothing has come back: the client may still be at work."""
        return self.cause == NO_REPLY


Item = TypeVar("Item")


def replace(item: Item, **changes: Any) -> Item:
    """Return a copy of a plan, stage or update in which some fields are changed."""
    if isinstance(item, msgspec.Struct):
        return msgspec.structs.replace(item, **changes)
    return dataclasses.replace(item, **changes)  # type: ignore[type-var]


def under(arrays: Mapping[str, Item], prefix: str) -> dict[str, Item]:
    """Return the entries whose names begin with a prefix, under their names without it."""
    return {n.removeprefix(prefix): item for n, item in arrays.items() if n.startswith(prefix)}
