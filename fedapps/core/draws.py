"""Everything random is a pure function of the seed and of what it is for."""

import secrets
import zlib

import numpy as np


def generator(seed: int, purpose: str, *key: int) -> np.random.Generator:
    """Return the generator of one purpose, as (seed, "shuffle", round, client, epoch).

    The same arguments give the same draws in every process, on every engine.
    """
    return np.random.default_rng([seed, zlib.crc32(purpose.encode()), *key])


_PARTITION = 0x7061_7274  # "part"
# Places in this list are part of the seed: a step may be added behind, and none moved.
_PARTITION_STEPS = ("dirichlet", "deal", "shards", "shuffle", "split", "deal-test", "validation")


def partition_generator(seed: int, step: str, *key: int) -> np.random.Generator:
    """Return the generator of a step of sharing data out, as (seed, "split", client).

    It numbers the steps from 1 and does not hash their names as `generator` does: published
    results rest on who was given which samples, so these draws must stay what they were. Steps of
    a new partitioner use `generator`.
    """
    return np.random.default_rng([seed, _PARTITION, 1 + _PARTITION_STEPS.index(step), *key])


def secret_seed() -> int:
    """Return 128 bits of the operating system's entropy: a seed that nobody knows."""
    return secrets.randbits(128)


def sample_size(num_clients: int, fraction: float) -> int:
    """Return m = max(floor(r N + 1e-9), 1), the clients of a round."""
    return max(int(fraction * num_clients + 1e-9), 1)


def sample_clients(seed: int, round_: int, num_clients: int, fraction: float) -> list[int]:
    """Draw m clients without replacement, in ascending order."""
    size = sample_size(num_clients, fraction)
    chosen = generator(seed, "sample", round_).choice(num_clients, size, replace=False)
    return sorted(chosen.tolist())


def sample_poisson(seed: int, round_: int, num_clients: int, fraction: float) -> list[int]:
    """Draw each client by itself with chance m/N: m of them on average, ascending, maybe none."""
    chance = sample_size(num_clients, fraction) / num_clients
    draws = generator(seed, "sample", round_).random(num_clients)
    return np.flatnonzero(draws < chance).tolist()


def sample_evaluated(seed: int, num_clients: int, count: int) -> list[int]:
    """Draw the clients that a run evaluates, ascending; 0, or more than there are: all of them."""
    if not 0 < count < num_clients:
        return [*range(num_clients)]
    chosen = generator(seed, "evaluate").choice(num_clients, count, replace=False)
    return sorted(chosen.tolist())
