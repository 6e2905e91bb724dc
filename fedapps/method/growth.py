"""A federation that grows: what a strategy keeps of each client gets rows for new clients."""

from itertools import chain
from typing import Any, ClassVar

import numpy as np

from fedapps.core.errors import RunError
from fedapps.method.tools import StrategyTools

LAST_SENT = "last/"  # prefix of what each client sent last


class Growing(StrategyTools):
    """A strategy whose run can be resumed with more clients (`num-clients`).

    What a class names in `by_client`, `by_pair` and `by_mean` is added to what its bases name; a
    property names all itself.
    """

    # names of state with a row per client; those that end in "/" are prefixes
    by_client: ClassVar[tuple[str, ...]] = ()
    by_pair: ClassVar[tuple[str, ...]] = ()  # names of state with a row and a column per client
    by_mean: ClassVar[tuple[str, ...]] = ()  # prefixes of means over all, where new ones have 0

    def __init_subclass__(cls, **given: Any) -> None:
        super().__init_subclass__(**given)
        for attribute in ("by_client", "by_pair", "by_mean"):
            named = [vars(base).get(attribute, ()) for base in reversed(cls.__mro__)]
            own = named[-1]
            if not (isinstance(own, tuple) or hasattr(own, "__get__")):
                told = f"{cls.__name__}.{attribute} = {own!r}"
                raise RunError(f'{told}: must be a tuple of names, such as ("phi",)')
            if all(isinstance(names, tuple) for names in named):
                setattr(cls, attribute, tuple(dict.fromkeys(chain.from_iterable(named))))

    def grows(self, name: str) -> bool:
        """Tell whether an array of the state has a row per client."""
        prefixes = tuple(known for known in self.by_client if known.endswith("/"))
        return name in (*self.by_client, *self.by_pair) or name.startswith(prefixes)

    def not_sent(self, key: str) -> np.ndarray:
        """Return what stands for an array that a new client has not sent: the server's."""
        return self.arrays[key]

    def grow(self, before: int) -> None:
        """Add to `state` what the clients from `before` on need: rows, and 0 to means.

        The rows are 0, but those of what clients sent last (`KeepsLast`) are `not_sent`. Means are
        over the clients that train.
        """
        training = self.workspace.population.training
        share = sum(client < before for client in training) / len(training)
        for name in [name for name in self.state if name.startswith(self.by_mean)]:
            self.state[name] = share * self.state[name]  # its checkpoint may be in use, too
        more = self.settings.num_clients - before
        for name in filter(self.grows, list(self.state)):
            rows = self.state[name]
            row = np.zeros(rows.shape[1:], rows.dtype)
            if name.startswith(LAST_SENT):
                row = self.not_sent(name.removeprefix(LAST_SENT))
            rows = np.concatenate([rows, np.repeat(row[None], more, axis=0)])
            if name in self.by_pair:
                rows = np.pad(rows, ((0, 0), (0, more)))
            self.state[name] = rows
