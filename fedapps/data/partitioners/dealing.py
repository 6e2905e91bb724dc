"""What partitioners have in common: cutting, dealing and rounding.

Owners are int64 [n]: for every sample of a pool the number of its client, or `NOBODY` if no client
gets it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedapps.core.draws import partition_generator
from fedapps.core.settings import Settings

NOBODY = -1


def even_edges(samples: int, parts: int) -> np.ndarray:
    """Return the edges of `parts` pieces whose sizes differ by at most 1: int64 [parts + 1]."""
    return np.arange(parts + 1) * samples // parts


def cut_shuffled(edges: np.ndarray, settings: Settings) -> np.ndarray:
    """Return owners: client i gets the positions edges[i] to edges[i+1] of a shuffled pool."""
    owners = np.empty(edges[-1], np.int64)
    shuffled = partition_generator(settings.seed, "shuffle").permutation(edges[-1])
    owners[shuffled] = np.repeat(np.arange(len(edges) - 1), np.diff(edges))
    return owners


def deal(labels: np.ndarray, counts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return owners: each client gets counts[client, class] random samples of each class."""
    owners = np.full(len(labels), NOBODY)
    order = np.argsort(labels, kind="stable")
    by_class = np.split(order, np.cumsum(np.bincount(labels, minlength=counts.shape[1]))[:-1])
    for members, wanted in zip(by_class, counts.T, strict=True):
        owners[rng.permutation(members)[: wanted.sum()]] = np.repeat(np.arange(len(wanted)), wanted)
    return owners


def allot(wanted: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Round `wanted` [clients, classes], proportions of each class, to numbers of samples.

    `sizes` holds the number of samples of each class. Every number is rounded up or down, and no
    sample of a class is left over. A class's extra samples go to the clients that have lost most by
    rounding so far. Otherwise many small proportions would always be rounded up for the same
    clients, and others would get nothing. In a tie, the client with the lower number gets the
    sample.
    """
    quota = wanted * sizes
    counts = np.floor(quota + 1e-9).astype(np.int64)
    rest = np.maximum(quota - counts, 0)
    owed = np.zeros(len(quota))
    for label in range(len(sizes)):
        owed += rest[:, label]
        left = int(np.rint(rest[:, label].sum()))
        claims = np.where(rest[:, label] > 1e-9, owed, -np.inf)
        lucky = np.argsort(-claims, kind="stable")[:left]
        counts[lucky, label] += 1
        owed[lucky] -= 1
    return counts


@dataclass(frozen=True, eq=False)
class Parts(Sequence[np.ndarray]):
    """The sorted indices of each client's samples, without an object for each client.

    `order` has them client by client, int64 [n]; client i's are at edges[i] to edges[i+1], `edges`
    int64 [clients + 1].
    """

    order: np.ndarray
    edges: np.ndarray

    def __len__(self) -> int:
        return len(self.edges) - 1

    def __getitem__(self, client: Any) -> Any:
        if not 0 <= client < len(self):
            raise IndexError(client)
        return self.order[self.edges[client] : self.edges[client + 1]]

    @property
    def sizes(self) -> np.ndarray:
        """How many samples each client has: int64 [clients]."""
        return np.diff(self.edges)


def samples_by_client(owners: np.ndarray, clients: int) -> Parts:
    """Return the samples of clients 0, 1, ... by their owners."""
    order = np.argsort(owners, kind="stable")
    edges = np.searchsorted(owners[order], np.arange(clients + 1))
    return Parts(order[edges[0] : edges[-1]], edges - edges[0])
