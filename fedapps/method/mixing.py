"""Strategies that keep what each client sent last, to send every client a mixture of its own."""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import ClassVar

import numpy as np

from fedapps.method.flower import BaseStrategy
from fedapps.method.growth import LAST_SENT
from fedapps.method.update import ClientUpdate
from fedapps.method.warmup import WarmUp
from fedapps.models.layers import Arrays, as_sent
from fedapps.training.plan import Plan


class KeepsLast(BaseStrategy):
    """The server keeps what each client has sent last of the arrays `mixed_keys`.

    It is in the state, stacked as `last/<key>` [N, ...]. There can also be a number for each pair
    of clients: [N, N] (float64, at first 0), by the names in `by_pair`.
    """

    by_client: ClassVar[tuple[str, ...]] = (LAST_SENT,)

    @property
    def mixed_keys(self) -> tuple[str, ...]:
        """The keys that are stored: by default, all that travel."""
        return self.layout.shared(self.layout.names)

    def state_bytes(self) -> int:
        """Return the size of what all clients sent last, and of what is kept of pairs."""
        clients = self.settings.num_clients
        pairs = 8 * len(self.by_pair) * clients**2
        return clients * sum(self.arrays[key].nbytes for key in self.mixed_keys) + pairs

    def start_last(self) -> None:
        """Let the server's arrays be what every client has sent; of pairs nothing is known."""
        clients = self.settings.num_clients
        for key in self.mixed_keys:
            self.state[LAST_SENT + key] = np.repeat(self.arrays[key][None], clients, axis=0)
        self.state.update({name: np.zeros((clients, clients)) for name in self.by_pair})

    def keep_last(self, client: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Replace what a client sent last."""
        for key in self.mixed_keys:
            self.state[LAST_SENT + key][client] = arrays[key]

    def last_of(self, client: int, keys: Iterable[str]) -> Arrays:
        """Return the arrays `keys` that a client sent last, read-only."""
        return as_sent({key: self.state[LAST_SENT + key][client] for key in keys})

    def mixture(self, weights: np.ndarray) -> Arrays:
        """Return sum_j w_j a_j (float32) of what clients sent last; w is float64 [N].

        The sums are in float64.
        """
        chosen = np.flatnonzero(weights)
        return {key: _sum(weights, chosen, self.state[LAST_SENT + key]) for key in self.mixed_keys}

    def mix_last(self, clients: Sequence[int], weights: np.ndarray) -> None:
        """Replace what each of m clients sent by its mixture of them; a row of weights [m, m]."""
        rows = np.zeros((len(clients), self.settings.num_clients))
        rows[:, clients] = weights
        mixed = [self.mixture(row) for row in rows]
        for client, arrays in zip(clients, mixed, strict=True):
            self.keep_last(client, arrays)


def _sum(weights: np.ndarray, chosen: np.ndarray, stacked: np.ndarray) -> np.ndarray:
    total = np.zeros(stacked.shape[1:], np.float64)
    for client in chosen:
        total += weights[client] * stacked[client].astype(np.float64)
    return total.astype(np.float32)


class Mixing(KeepsLast):
    """The server stores the arrays `mixed_keys` of each update; `sent` [N] says whose.

    As long as a client has sent none, the initial ones count as sent. The server's own model is the
    mean of the round's models. Write `download`, which sends a mixture; a newcomer gets the mean.
    """

    by_client: ClassVar[tuple[str, ...]] = ("sent",)

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
        self.keep_last(update.client, update.arrays)
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

    @property
    def weighs_by_count(self) -> bool:
        """Only the means of the warm-up, and those that newcomers get, have weights n_i."""
        return self.warmup > 0 or bool(self.settings.unseen_clients)

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
        return arrays | self.mixture(self.weights(client))

    def observe(self, round_: int, update: ClientUpdate) -> None:
        """After the warm-up, store what is mixed of a client that has trained."""
        if round_ > self.warmup and update.arrays:
            self.keep_last(update.client, update.arrays)
