"""Shares of given sizes at random."""

import math

import numpy as np

from fedapps.core.errors import RunError
from fedapps.core.settings import Settings
from fedapps.core.words import number
from fedapps.data.partitioners.dealing import cut_shuffled


def owners(labels: np.ndarray, settings: Settings) -> np.ndarray:
    """Shuffle all samples and cut them by the fractions of `sizes` (FedFC's data imbalance)."""
    edges = np.cumsum([0.0, *_fractions(settings)])
    return cut_shuffled(np.rint(edges / edges[-1] * len(labels)).astype(np.int64), settings)


def _fractions(settings: Settings) -> list[float]:
    """Parse `sizes`, such as `0.4,0.3,0.2,0.1`: one fraction per client, with sum 1."""
    where = f'sizes = "{settings.sizes}"'
    try:
        fractions = [float(word) for word in settings.sizes.split(",")]
    except ValueError as error:
        raise RunError(f"{where}: must be fractions, such as 0.4,0.3,0.2,0.1") from error
    if len(fractions) != settings.num_clients:
        raise RunError(
            f"{where}: {number(len(fractions), 'fraction')} for num-clients ="
            f" {settings.num_clients}; must be one per client"
        )
    if not all(0 < fraction <= 1 for fraction in fractions):
        raise RunError(f"{where}: every fraction must be above 0 and at most 1")
    if abs(math.fsum(fractions) - 1) > 1e-6:
        raise RunError(f"{where}: the sum is {math.fsum(fractions):g}; must be 1")
    return fractions
