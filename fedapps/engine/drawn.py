"""Notice hooks that draw from a global generator, torch's, NumPy's or Python's, with no seed.

Clients that train in this process have seeded torch's; those that train in another have not.
NumPy's and Python's begin anew in each process, so that any second run gives other numbers.
"""

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedapps.core import log

T = TypeVar("T")
SEED = slice(8)  # the bytes of a generator's state that name its seed; draws do not depend on them
MARK = torch.tensor([*b"fedapps?"], dtype=torch.uint8)  # there while a hook has not seeded it
TORCH, NUMPY, PYTHON = "torch's", "NumPy's", "Python's"
# A library can draw once, when it is imported, and another thread now and then, such as the one
# that sends Flower's heartbeats: told are draws in so many calls running.
CALLS = 2


@dataclass
class Drawn:
    """Watches the hooks of a method, and warns of the first that draws from a generator."""

    method: str
    told: set[str] = field(default_factory=set)  # the generators of which it has warned
    before: Tensor = field(init=False)  # the state of torch's generator, uint8 [bytes]
    shared: dict[str, object] = field(init=False)  # those of the others, by their names
    moved: set[str] = field(init=False)  # which of these a hook has drawn from
    calls: Counter[tuple[str, str]] = field(default_factory=Counter)  # running, by hook and name

    @contextmanager
    def watched(self, hook: str) -> Iterator[None]:
        """Warn if the hook, which is called in this context, draws without a seed of its own."""
        self.moved = set()
        self._note()
        yield
        self._compare(hook)
        self._count(hook, self.moved)

    def not_while(self, hook: str, awaited: Iterator[T]) -> Iterator[T]:
        """Yield what is awaited to a watched hook; what is drawn in the meantime is not its own."""
        while True:
            self._compare(hook)
            found = next(awaited, None)
            self._note()
            if found is None:
                return
            yield found

    def by_clients(self, what: str, awaited: Iterator[T]) -> Iterator[T]:
        """Yield what is awaited; warn if clients in this process draw from NumPy's generator.

        `what` they do is training or an evaluation. Torch's has a seed while they train, and Flower
        draws from Python's while it waits.
        """
        moved = set[str]()
        while True:
            before = _states()
            found = next(awaited, None)
            moved |= _changed(before) & {NUMPY}
            if found is None:
                break
            yield found
        self._count(f"{what} at a client", moved, "plan.round, self.client")

    def _note(self) -> None:
        self.shared = _states()
        self.before = torch.get_rng_state()
        marked = self.before.clone()
        marked[SEED] = MARK
        torch.set_rng_state(marked)

    def _compare(self, hook: str) -> None:
        self.moved |= _changed(self.shared)
        state = torch.get_rng_state()
        if not torch.equal(state[SEED], MARK):
            return
        state[SEED] = self.before[SEED]
        torch.set_rng_state(state)
        if not torch.equal(state, self.before):
            self._tell(hook, TORCH, "so its numbers depend on the engine")

    def _count(self, who: str, moved: set[str], when: str = "round_") -> None:
        for whose in (NUMPY, PYTHON):
            self.calls[who, whose] = self.calls[who, whose] + 1 if whose in moved else 0
            if self.calls[who, whose] == CALLS:
                self._tell(who, whose, "which the whole process shares", when)

    def _tell(self, who: str, whose: str, why: str, when: str = "round_") -> None:
        if whose in self.told:
            return
        self.told.add(whose)
        log.warning(
            '%s of %s draws from %s global generator, %s: use generator(self.settings.seed, "%s", '
            "%s)",
            *(who, self.method, whose, why, self.method, when),
        )


def _states() -> dict[str, object]:
    numpys: Any = np.random.get_state()
    return {NUMPY: (numpys[1].tobytes(), *numpys[2:]), PYTHON: random.getstate()}


def _changed(before: dict[str, object]) -> set[str]:
    return {whose for whose, state in _states().items() if state != before[whose]}
