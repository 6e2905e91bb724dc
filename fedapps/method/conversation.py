"""Hooks for the few methods that need more than plans: before a run, or around a round."""

import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from fedapps.method.update import ClientUpdate, Failure
from fedapps.training.plan import Plan


@dataclass(frozen=True)
class Question:
    """A question to every client before round 1; each answer is `length` floats > 0.

    No value of an answer may be above `largest`.
    """

    name: str
    length: int
    largest: float = math.inf


class Conversation:
    """What a strategy can do around its plans; by default nothing."""

    def question(self) -> Question | None:
        """Return the question to every client before round 1 (for its hook `answer`), or None."""
        return None

    def answered(self, answers: Mapping[int, list[float]]) -> None:
        """Use the valid answers, by client; there is at least one."""

    def running(self) -> AbstractContextManager[object]:
        """Return a context for all rounds, such as one that runs a server of the method's own."""
        return nullcontext()

    def begin_round(self, round_: int, plans: dict[int, Plan]) -> dict[int, Plan]:
        """Prepare a round with these clients; return their plans as they will be sent."""
        return plans

    @property
    def has_channel(self) -> bool:
        """Whether the clients of a round train together, on a channel that `begin_round` opens."""
        return type(self).begin_round is not Conversation.begin_round

    def train_nodes(self, nodes: list[int], workers: int) -> list[int]:
        """Return the SuperNodes over which the clients of a round are distributed.

        `workers` of the SuperNodes work at the same time; 0 means that each has its own process.
        """
        return nodes

    def unreachable(self) -> dict[int, str]:
        """Return the clients whose reply is not worth waiting for, each with the reason."""
        return {}

    def screen(
        self, round_: int, updates: Iterator[ClientUpdate]
    ) -> Iterator[ClientUpdate | Failure]:
        """Pass the updates on, but a failure in the place of an update that must not count."""
        yield from updates

    def end_round(self, round_: int) -> Mapping[int, tuple[int, int]]:
        """Close what `begin_round` has opened; return what it moved: bytes (down, up) by client."""
        return {}

    def together(self, seconds: Mapping[int, float]) -> float:
        """Return how long the clients of a round take together, on the virtual clock.

        `seconds` has each client's own time. By default, all work at the same time.
        """
        return max(seconds.values(), default=0.0)
