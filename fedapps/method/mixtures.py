"""Per-client aggregation: each client receives its own mixture of what all clients last sent."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from fedapps.models.layers import Arrays

PREFIX = "last/"


class LastSent:
    """The last arrays of every client, stacked in a strategy's state as `last/<key>` [N, ...]."""

    def __init__(self, state: Arrays) -> None:
        self.state = state

    @staticmethod
    def nbytes(arrays: Mapping[str, np.ndarray], keys: Iterable[str], clients: int) -> int:
        """Return the bytes that are needed to keep the arrays `keys` of so many clients."""
        return clients * sum(arrays[key].nbytes for key in keys)

    def start(self, arrays: Mapping[str, np.ndarray], clients: int) -> None:
        """Give every client the same arrays; they count as sent until the client sends its own."""
        for key, value in arrays.items():
            self.state[PREFIX + key] = np.repeat(value[None], clients, axis=0)

    def keep(self, client: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Replace the arrays that a client sent last."""
        for key, value in arrays.items():
            self.state[PREFIX + key][client] = value

    def of(self, client: int, keys: Iterable[str]) -> Arrays:
        """Return the arrays that a client sent last."""
        return {key: self.state[PREFIX + key][client] for key in keys}

    def mixture(self, weights: np.ndarray, keys: Iterable[str]) -> Arrays:
        """Return sum_j w_j a_j (float32) for weights w (float64 [N]); the sums are in float64."""
        chosen = np.flatnonzero(weights)
        return {key: self._sum(weights, chosen, PREFIX + key) for key in keys}

    def mix(self, clients: Sequence[int], weights: np.ndarray, keys: Sequence[str]) -> None:
        """Replace what each of m clients sent by its mixture of them; a row of weights [m, m]."""
        rows = np.zeros((len(clients), len(self.state[PREFIX + keys[0]])))
        rows[:, clients] = weights
        mixed = [self.mixture(row, keys) for row in rows]
        for client, arrays in zip(clients, mixed, strict=True):
            self.keep(client, arrays)

    def _sum(self, weights: np.ndarray, chosen: np.ndarray, name: str) -> np.ndarray:
        stacked = self.state[name]
        total = np.zeros(stacked.shape[1:], np.float64)
        for client in chosen:
            total += weights[client] * stacked[client].astype(np.float64)
        return total.astype(np.float32)
