"""Strategies that keep what each client sent last, to send every client a mixture of its own."""

from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from fedapps.method.flower import BaseStrategy
from fedapps.method.mixtures import LastSent
from fedapps.method.update import ClientUpdate
from fedapps.models.layers import Arrays
from fedapps.training.plan import Plan


class Mixing(BaseStrategy):
    """The server stores the arrays `mixed_keys` of each update in `last`; `sent` [N] says whose.

    As long as a client has sent none, `last` has the initial ones. The server's own model is the
    mean of the round's models. Write `download`, which sends a mixture; a newcomer gets the mean.
    """

    by_client: ClassVar[tuple[str, ...]] = ("last/", "sent")

    def setup(self) -> None:
        """No client has sent anything; a method with more to set up calls this method first."""
        clients = self.settings.num_clients
        self.last.start({key: self.arrays[key] for key in self.mixed_keys}, clients)
        self.state["sent"] = np.zeros(clients, bool)

    @property
    def mixed_keys(self) -> tuple[str, ...]:
        """The keys that are stored: by default, all that travel."""
        return self.layout.shared(self.layout.names)

    @property
    def last(self) -> LastSent:
        """What every client sent last; a part of the state."""
        return LastSent(self.state)

    def state_bytes(self) -> int:
        """Return the size of what all clients sent last."""
        return LastSent.nbytes(self.arrays, self.mixed_keys, self.settings.num_clients)

    def newcomer_download(self, round_: int, client: int, plan: Plan) -> Arrays:
        """Return means of the last round, since nothing is known of a newcomer."""
        return super().download(round_, client, plan)

    def aggregate(self, round_: int, updates: Iterator[ClientUpdate]) -> Arrays:
        """Return means with weights n_i; `observe` sees each update."""
        return super().aggregate(round_, self._observed(updates))

    def observe(self, update: ClientUpdate) -> None:
        """Take from an update what the method keeps on the server: its arrays."""
        self.last.keep(update.client, {key: update.arrays[key] for key in self.mixed_keys})
        self.state["sent"][update.client] = True

    def _observed(self, updates: Iterator[ClientUpdate]) -> Iterator[ClientUpdate]:
        for update in updates:
            self.observe(update)
            yield update
