"""Everything random is a pure function of the seed and of what it is for."""

import zlib

import numpy as np


def generator(seed: int, purpose: str, *key: int) -> np.random.Generator:
    """Return the generator of one purpose, as (seed, "shuffle", round, client, epoch).

    The same arguments give the same draws in every process, on every engine.
    """
    return np.random.default_rng([seed, zlib.crc32(purpose.encode()), *key])


def sample_clients(seed: int, round_: int, num_clients: int, fraction: float) -> list[int]:
    """Draw m = max(floor(r N + 1e-9), 1) clients without replacement, in ascending order."""
    size = max(int(fraction * num_clients + 1e-9), 1)
    chosen = generator(seed, "sample", round_).choice(num_clients, size, replace=False)
    return sorted(chosen.tolist())
