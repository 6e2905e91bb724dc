"""Notice hooks that draw from a global generator, torch's or NumPy's.

Clients that train in this process have seeded torch's; those that train in another have not.
NumPy's begins anew in each process, so that any second run gives other numbers; whoever seeds it
does so for all of the process. Python's is left out: Flower's threads draw from it at any time.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from fedapps.core import log

T = TypeVar("T")
SEED = slice(8)  # the bytes of a generator's state that name its seed; draws do not depend on them
MARK = torch.tensor([*b"fedapps?"], dtype=torch.uint8)  # there while a hook has not seeded it
TORCH, NUMPY = "torch's", "NumPy's"
CALLS = 2  # running, in which a hook draws from NumPy's: a library can draw when it is imported


@dataclass
class Drawn:
    """Watches the hooks of a method, and warns of the first that draws from a generator."""

    method: str
    told: set[str] = field(default_factory=set)  # the generators of which it has warned
    before: Tensor = field(init=False)  # the state of torch's generator, uint8 [bytes]
    shared: tuple[object, ...] = field(init=False)  # that of NumPy's
    moved: bool = field(init=False)  # whether a hook has drawn from NumPy's
    calls: Counter[str] = field(default_factory=Counter)  # those that drew from it, by hook

    @contextmanager
    def watched(self, hook: str) -> Iterator[None]:
        """Warn if the hook, which is called in this context, draws without a seed of its own."""
        self.moved = False
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

        `what` they do is training or an evaluation. Torch's has a seed while they train.
        """
        moved = False
        while True:
            before = _numpys()
            found = next(awaited, None)
            moved |= _numpys() != before
            if found is None:
                break
            yield found
        self._count(f"{what} at a client", moved, "plan.round, self.client")

    def _note(self) -> None:
        self.shared = _numpys()
        self.before = torch.get_rng_state()
        marked = self.before.clone()
        marked[SEED] = MARK
        torch.set_rng_state(marked)

    def _compare(self, hook: str) -> None:
        self.moved |= _numpys() != self.shared
        state = torch.get_rng_state()
        if not torch.equal(state[SEED], MARK):
            return
        state[SEED] = self.before[SEED]
        torch.set_rng_state(state)
        if not torch.equal(state, self.before):
            self._tell(hook, TORCH, "so its numbers depend on the engine")

    def _count(self, who: str, moved: bool, when: str = "round_") -> None:
        self.calls[who] = self.calls[who] + 1 if moved else 0
        if self.calls[who] == CALLS:
            self._tell(who, NUMPY, "which the whole process shares", when)

    def _tell(self, who: str, whose: str, why: str, when: str = "round_") -> None:
        if whose in self.told:
            return
        self.told.add(whose)
        log.warning(
            '%s of %s draws from %s global generator, %s: use generator(self.settings.seed, "%s", '
            "%s)",
            *(who, self.method, whose, why, self.method, when),
        )


def _numpys() -> tuple[object, ...]:
    _, key, *rest = np.random.get_state()
    return (np.asarray(key).tobytes(), *rest)
