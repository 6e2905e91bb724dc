"""Aggregation rules: means of client updates, in float64 and in the order of the updates."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from fedapps.core.errors import RunError
from fedapps.method.update import ClientUpdate
from fedapps.models.layers import Arrays


def plain_mean(updates: Iterable[ClientUpdate]) -> tuple[Arrays, int]:
    """Return the unweighted mean of every array (float64), and the number of updates.

    An array's mean is over the updates that carry it; the number counts all updates.
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

    An array's mean is over the updates that carry it; the sum of weights is over all updates. Each
    array has one float64 accumulator, to which updates are added in place as they arrive, so the
    server never holds a list of whole models. As long as the order of the updates stays the same,
    so do all digits of the result, whatever the number of SuperNodes.
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
            sums[key] += np.multiply(array, update.weight, dtype=np.float64)
            weights[key] = weights.get(key, 0.0) + update.weight
    return {key: (sums[key] / weights[key]).astype(dtypes[key]) for key in sums}, total


def presummed(updates: list[ClientUpdate]) -> list[ClientUpdate]:
    """Replace the updates of one SuperNode by their mean, which the first update carries for all.

    Raises `RunError` if the updates have different arrays: each array's mean would then have the
    weight of all updates, and the result would depend on which SuperNode runs which client.
    """
    if not updates:
        return []
    for update in updates:
        if update.arrays.keys() != updates[0].arrays.keys():
            raise RunError(
                f"presum = true: clients {updates[0].client} and {update.client} upload different "
                "layers; use false"
            )
    mean, total = weighted_mean(updates)
    silent = [replace(update, arrays={}, weight=0.0) for update in updates[1:]]
    return [replace(updates[0], arrays=mean, weight=total), *silent]
