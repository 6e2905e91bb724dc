"""Aggregation rules over client updates, in float64 and in the order the updates come."""

from collections.abc import Iterable

import numpy as np

from fedapps.method.update import ClientUpdate
from fedapps.models.layers import Arrays


def plain_mean(updates: Iterable[ClientUpdate]) -> tuple[Arrays, int]:
    """Return the mean of every array, every client counting the same (float64).

    An array's mean is over the updates that carry it; the number returned beside is of all.
    """
    sums: Arrays = {}
    carriers: dict[str, int] = {}
    count = 0
    for update in updates:
        count += 1
        for key, array in update.arrays.items():
            sums[key] = sums.get(key, 0.0) + array.astype(np.float64)
            carriers[key] = carriers.get(key, 0) + 1
    return {key: value / carriers[key] for key, value in sums.items()}, count


def weighted_mean(updates: Iterable[ClientUpdate]) -> tuple[Arrays, float]:
    """Return sum_i w_i a_i / sum_i w_i for every array (in its dtype), and sum_i w_i.

    An array's mean is over the updates that carry it; the sum of weights is over all. One
    float64 accumulator per array, updates added in place as they come: never a list of whole
    models, and the same digits whatever the number of SuperNodes as long as the order is kept.
    """
    sums: dict[str, np.ndarray] = {}
    weights: dict[str, float] = {}
    dtypes: dict[str, np.dtype] = {}
    total = 0.0
    for update in updates:
        total += update.weight
        for key, array in update.arrays.items():
            if key not in sums:
                sums[key] = np.zeros(array.shape, np.float64)
                dtypes[key] = array.dtype
            sums[key] += update.weight * array.astype(np.float64)
            weights[key] = weights.get(key, 0.0) + update.weight
    return {key: (sums[key] / weights[key]).astype(dtypes[key]) for key in sums}, total
