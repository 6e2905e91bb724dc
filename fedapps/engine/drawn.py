"""Notice hooks of a strategy that draw from torch's global generator as somebody else has left it.

Clients that train in this process have seeded it; those that train in another have not. NumPy's and
Python's own generators begin anew in each process, so that any second run gives other numbers.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor

from fedapps.core import log

T = TypeVar("T")
SEED = slice(8)  # the bytes of a generator's state that name its seed; draws do not depend on them
MARK = torch.tensor([*b"fedapps?"], dtype=torch.uint8)  # there while a hook has not seeded it


@dataclass
class Drawn:
    """Watches the hooks of a method's strategy, and warns of the first that draws."""

    method: str
    told: bool = False
    before: Tensor = field(init=False)  # the generator's state, uint8 [bytes]

    @contextmanager
    def watched(self, hook: str) -> Iterator[None]:
        """Warn if the hook, which is called in this context, draws without a seed of its own."""
        self._note()
        yield
        self._compare(hook)

    def not_while(self, hook: str, awaited: Iterator[T]) -> Iterator[T]:
        """Yield what is awaited to a watched hook; what is drawn in the meantime is not its own."""
        while True:
            self._compare(hook)
            found = next(awaited, None)
            self._note()
            if found is None:
                return
            yield found

    def _note(self) -> None:
        self.before = torch.get_rng_state()
        marked = self.before.clone()
        marked[SEED] = MARK
        torch.set_rng_state(marked)

    def _compare(self, hook: str) -> None:
        state = torch.get_rng_state()
        if not torch.equal(state[SEED], MARK):
            return
        state[SEED] = self.before[SEED]
        torch.set_rng_state(state)
        if self.told or torch.equal(state, self.before):
            return
        self.told = True
        log.warning(
            "%s of %s draws from torch's global generator, so its numbers depend on the engine: "
            'use generator(self.settings.seed, "%s", round_)',
            *(hook, self.method, self.method),
        )
