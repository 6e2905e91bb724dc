"""Strategies that keep what each client sent last, to send every client a mixture of its own."""

from abc import abstractmethod
from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from fedapps.method.flower import BaseStrategy
from fedapps.method.mixtures import LastSent
from fedapps.method.update import ClientUpdate
from fedapps.method.warmup import WarmUp
from fedapps.models.layers import Arrays
from fedapps.training.plan import Plan


class KeepsLast(BaseStrategy):
    """The server keeps in `last` what each client has sent last of the arrays `mixed_keys`.

    It can also keep a number for each pair of clients: [N, N] (float64, at first 0), by the names
    in `by_pair`.
    """

    by_client: ClassVar[tuple[str, ...]] = ("last/",)

    @property
    def mixed_keys(self) -> tuple[str, ...]:
        """The keys that are stored: by default, all that travel."""
        return self.layout.shared(self.layout.names)

    @property
    def last(self) -> LastSent:
        """What every client sent last; a part of the state."""
        return LastSent(self.state)

    def state_bytes(self) -> int:
        """Return the size of what all clients sent last, and of what is kept of pairs."""
        clients = self.settings.num_clients
        pairs = 8 * len(self.by_pair) * clients**2
        return LastSent.nbytes(self.arrays, self.mixed_keys, clients) + pairs

    def start_last(self) -> None:
        """Let the server's arrays be what every client has sent; of pairs nothing is known."""
        clients = self.settings.num_clients
        self.last.start({key: self.arrays[key] for key in self.mixed_keys}, clients)
        self.state.update({name: np.zeros((clients, clients)) for name in self.by_pair})


class Mixing(KeepsLast):
    """The server stores the arrays `mixed_keys` of each update in `last`; `sent` [N] says whose.

    As long as a client has sent none, `last` has the initial ones. The server's own model is the
    mean of the round's models. Write `download`, which sends a mixture; a newcomer gets the mean.
    """

    by_client: ClassVar[tuple[str, ...]] = (*KeepsLast.by_client, "sent")

    def setup(self) -> None:
        """No client has sent anything; a method with more to set up calls this method first."""
        self.start_last()
        self.state["sent"] = np.zeros(self.settings.num_clients, bool)

    def not_sent(self, key: str) -> np.ndarray:
        """Return the initial array."""
        return self.workspace.initial[key]

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


class LateMixing(WarmUp, KeepsLast):
    """After the warm-up, a client gets a mixture of its own: of what all have sent last.

    Write `weights`, and `mixed_keys` if not all arrays are mixed. At the end of the warm-up, the
    server's arrays are what every client has sent last.
    """

    by_client: ClassVar[tuple[str, ...]] = (*WarmUp.by_client, *KeepsLast.by_client)

    @abstractmethod
    def weights(self, client: int) -> np.ndarray:
        """Return the weights w [N] (float64) of all clients in the mixture of `client`."""

    def end_warmup(self) -> None:
        """Start with the same arrays for every client."""
        self.start_last()

    def download(self, round_: int, client: int, plan: Plan) -> Arrays:
        """Return the server's arrays and, after the warm-up, the client's mixture."""
        arrays = super().download(round_, client, plan)
        if round_ <= self.warmup:
            return arrays
        return arrays | self.last.mixture(self.weights(client), self.mixed_keys)

    def observe(self, round_: int, update: ClientUpdate) -> None:
        """After the warm-up, store what is mixed of a client that has trained."""
        if round_ > self.warmup and update.arrays:
            self.last.keep(update.client, {key: update.arrays[key] for key in self.mixed_keys})
