"""Random numbers: every draw is a pure function of the seed and of the draw's purpose."""

import secrets
import zlib
from collections.abc import Sequence

import numpy as np


def generator(seed: int, purpose: str, *key: int) -> np.random.Generator:
    """Return the generator for one purpose, such as (seed, "shuffle", round, client, epoch).

    The same arguments give the same draws in every process and on every engine.
    """
    return np.random.default_rng([seed, zlib.crc32(purpose.encode()), *key])


_PARTITION = 0x7061_7274  # "part"
# A step's place in this list is part of the seed: never move one.
_PARTITION_STEPS = ("dirichlet", "deal", "shards", "shuffle", "split", "deal-test", "validation")


def partition_generator(seed: int, step: str, *key: int) -> np.random.Generator:
    """Return the generator for one step of partitioning the data, such as (seed, "split", client).

    The seed contains the number of the step (from 1), where `generator` uses a hash of the name.
    Published results depend on which client got which samples, so these draws must never change.
    The steps of a new partitioner use `generator`.
    """
    return np.random.default_rng([seed, _PARTITION, 1 + _PARTITION_STEPS.index(step), *key])


def secret_seed() -> int:
    """Return 128 bits of the operating system's entropy, as a seed that nobody knows."""
    return secrets.randbits(128)


def sample_size(num_clients: int, fraction: float) -> int:
    """Return m = max(floor(r N + 1e-9), 1), the number of clients that train in a round."""
    return max(int(fraction * num_clients + 1e-9), 1)


def sample_clients(seed: int, round_: int, num_clients: int, fraction: float) -> list[int]:
    """Draw m clients without replacement; return them in ascending order."""
    return sample_some(seed, round_, num_clients, sample_size(num_clients, fraction))


def sample_some(seed: int, round_: int, num_clients: int, size: int) -> list[int]:
    """Draw `size` clients without replacement; return them in ascending order."""
    chosen = generator(seed, "sample", round_).choice(num_clients, size, replace=False)
    return sorted(chosen.tolist())


def sample_poisson(seed: int, round_: int, num_clients: int, fraction: float) -> list[int]:
    """Draw each client independently with probability m/N; return them in ascending order.

    On average m clients are drawn; it can happen that none is.
    """
    chance = sample_size(num_clients, fraction) / num_clients
    draws = generator(seed, "sample", round_).random(num_clients)
    return np.flatnonzero(draws < chance).tolist()


def sample_attackers(seed: int, clients: Sequence[int], share: float) -> frozenset[int]:
    """Draw which of some clients are attackers: floor(share N + 1e-9) of them, in all rounds."""
    count = int(share * len(clients) + 1e-9)
    chosen = generator(seed, "attackers").choice(len(clients), count, replace=False)
    return frozenset(clients[place] for place in chosen.tolist())


def smallest_share(count: int) -> float:
    """Return the smallest share, of four digits, that is at least one of `count` clients."""
    return -(-(10**4) // count) / 10**4


def sample_evaluated(seed: int, clients: Sequence[int], count: int) -> list[int]:
    """Draw which of some clients a run evaluates; return them in ascending order.

    With `count` 0, or at least the number of clients, these are all of them.
    """
    if not 0 < count < len(clients):
        return [*clients]
    chosen = generator(seed, "evaluate").choice(len(clients), count, replace=False)
    return [clients[place] for place in sorted(chosen.tolist())]
