"""Hooks of the few methods that talk with clients beside the plan: before a run, or in a round."""

import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from fedapps.method.update import ClientUpdate, Failure
from fedapps.training.plan import Plan


@dataclass(frozen=True)
class Question:
    """Something that every client is asked before round 1: its answer is `length` floats > 0.

    None of them is above `largest`.
    """

    name: str
    length: int
    largest: float = math.inf


class Conversation:
    """What a strategy may do around the plans; by default nothing."""

    def question(self) -> Question | None:
        """Return what to ask every client before round 1 (its `answer` hook), if anything."""
        return None

    def answered(self, answers: Mapping[int, list[float]]) -> None:
        """Take the valid answers, by client; there is at least one."""

    def running(self) -> AbstractContextManager[object]:
        """Return the context in which all rounds take place, as one with a server of its own."""
        return nullcontext()

    def begin_round(self, round_: int, plans: dict[int, Plan]) -> dict[int, Plan]:
        """Prepare a round with these clients; return their plans as they are sent."""
        return plans

    def train_nodes(self, nodes: list[int], workers: int) -> list[int]:
        """Return those of the SuperNodes that the clients of a round are shared out over.

        So many `workers` of them work at the same time; 0: each has a process of its own.
        """
        return nodes

    def unreachable(self) -> dict[int, str]:
        """Return clients whose reply is not worth waiting for, and why."""
        return {}

    def screen(
        self, round_: int, updates: Iterator[ClientUpdate]
    ) -> Iterator[ClientUpdate | Failure]:
        """Pass updates on, or a failure in the place of one that must not count."""
        yield from updates

    def end_round(self, round_: int) -> tuple[int, int]:
        """Close what `begin_round` opened; return the bytes (down, up) that it has moved."""
        return 0, 0
