"""Means of updates that a few attackers cannot move as they like (key `aggregation`).

Every client counts the same, because its sample count is its own claim. The update x_i of client i
is the slice that it uploads, all arrays together as one vector of d entries; w is the server's
model before the round, and m the number of updates. f = floor(`robust-share` m) of the clients are
expected to be attackers.

- `median`, `trimmed-mean`: of each entry alone; the latter without its f largest and f smallest
  values (Yin et al., Byzantine-Robust Distributed Learning, ICML 2018).
- `krum`: the update with the smallest sum of squared distances to its m - f - 2 nearest others;
  `multi-krum`: the mean of the m - f best ones (Blanchard et al., Machine Learning with
  Adversaries, NeurIPS 2017).
- `geometric-median`: the point with the smallest sum of distances, by the smoothed Weiszfeld
  algorithm (Pillutla, Kakade, Harchaoui, Robust Aggregation for FL, 2022, Algorithm 2).
- `clipped`: c + (1/m) sum_i (x_i - c) min(1, tau / ||x_i - c||), one step of centered clipping
  (Karimireddy, He, Jaggi, Learning from History, ICML 2021). The center c is w plus the last
  round's step, and tau is `clip-radius`, or the median of the distances (our choice).

The last four are means with weights that follow from the scalar products of all x_i - w. So an
array is needed as a whole only twice, and only one array at a time in float64.

A new rule needs a line in `RULES`, and its name among the values of the key in
`fedapps.core.settings`.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from fedapps.core.errors import RunError
from fedapps.core.settings import Settings
from fedapps.method.aggregation import weighted_mean
from fedapps.method.update import ClientUpdate
from fedapps.models.layers import Arrays

STEP = "robust/step/"  # prefix in a strategy's state: the last step, for centered clipping
SMOOTHING = 1e-6  # nu, the least distance by which the Weiszfeld algorithm divides
ITERATIONS, TOLERANCE = 1000, 1e-12


def average(
    settings: Settings, updates: Iterable[ClientUpdate], model: Arrays, state: Arrays
) -> Arrays:
    """Return the mean that `aggregation` asks for, float32 by name.

    A robust one holds all updates of the round. `model` is what the server had before; `state`
    keeps the last step for `clipped`. Raises `RunError` if clients upload different layers, unless
    it is "mean".
    """
    if settings.aggregation == "mean":
        return weighted_mean(updates)[0]
    held = list(updates)
    names = held[0].arrays.keys()
    if other := next((u.client for u in held if u.arrays.keys() != names), None):
        raise RunError(
            f'aggregation = "{settings.aggregation}": clients {held[0].client} and {other} upload '
            'different layers; use "mean"'
        )
    return RULES[settings.aggregation].mean(held, model, state, settings)


def expected_attackers(settings: Settings, count: int) -> int:
    """Return f, how many of `count` clients are expected to lie; less than half of them."""
    return int(settings.robust_share * count + 1e-9)


def needed_bytes(sizes: Sequence[int], count: int) -> int:
    """Return the memory in bytes for `count` updates, whose arrays have so many entries."""
    return count * (4 * sum(sizes) + 16 * max(sizes, default=0))


# updates, the server's model, a strategy's state and the settings -> the mean, float32 by name
Mean = Callable[[Sequence[ClientUpdate], Arrays, Arrays, Settings], Arrays]


@dataclass(frozen=True)
class Rule:
    """A robust mean, the run-config keys that it reads, and how many updates it needs.

    `least` gives this number by f, how many of them are expected to be of attackers.
    """

    mean: Mean
    keys: tuple[str, ...] = ()
    least: Callable[[int], int] = lambda attackers: 1


# Of each entry alone ------------------------------------------------------------------------------


def of_entries(of: Callable[[np.ndarray, int], np.ndarray]) -> Mean:
    """Return the mean that makes each entry by `of` (a stack [m, ...] and f)."""

    def mean(held: Sequence[ClientUpdate], model: Arrays, state: Arrays, s: Settings) -> Arrays:
        attackers = expected_attackers(s, len(held))
        stacks = ((key, np.stack([u.arrays[key] for u in held])) for key in held[0].arrays)
        return {key: of(stack, attackers).astype(np.float32) for key, stack in stacks}

    return mean


def median(stack: np.ndarray, attackers: int) -> np.ndarray:
    """Return the median of each entry of a stack [m, ...]."""
    return np.asarray(np.median(stack, axis=0))


def trimmed_mean(stack: np.ndarray, attackers: int) -> np.ndarray:
    """Return each entry's mean without its f largest and f smallest values."""
    kept = np.sort(stack, axis=0)[attackers : len(stack) - attackers]
    return np.asarray(kept.mean(axis=0, dtype=np.float64))


# By distances: weights [m] from the scalar products [m, m] of all x_i - c -------------------------


def of_distances(weights_by: Callable[[np.ndarray, int], np.ndarray]) -> Mean:
    """Return the mean with weights `weights_by` (scalar products of all x_i - w, and f)."""

    def mean(held: Sequence[ClientUpdate], model: Arrays, state: Arrays, s: Settings) -> Arrays:
        center = {key: model[key].astype(np.float64) for key in held[0].arrays}
        weights = weights_by(products(held, center), expected_attackers(s, len(held)))
        new = {key: weighted(held, key, weights, center[key]) for key in center}
        return {key: value.astype(np.float32) for key, value in new.items()}

    return mean


def clipped(held: Sequence[ClientUpdate], model: Arrays, state: Arrays, s: Settings) -> Arrays:
    """Return the centered clipping's mean, and keep the step to it in `state`."""
    before = {key: model[key].astype(np.float64) for key in held[0].arrays}
    center = {key: value + state.get(STEP + key, 0.0) for key, value in before.items()}
    weights = clipping_weights(products(held, center), s.clip_radius)
    new = {key: weighted(held, key, weights, center[key]) for key in center}
    state.update({STEP + key: new[key] - before[key] for key in center})
    return {key: value.astype(np.float32) for key, value in new.items()}


def products(updates: Sequence[ClientUpdate], center: Arrays) -> np.ndarray:
    """Return the scalar products [m, m] (float64) of all updates' differences from a center.

    They are added up without BLAS, whose last digits depend on its number of threads.
    """
    count = len(updates)
    total = np.zeros((count, count))
    for key, middle in center.items():
        apart = np.stack([(u.arrays[key] - middle).ravel() for u in updates])
        for i in range(count):
            total[i, i:] += np.einsum("k,jk->j", apart[i], apart[i:])
    return np.triu(total) + np.triu(total, 1).T


def krum_scores(gram: np.ndarray, attackers: int) -> np.ndarray:
    """Return each update's sum of squared distances to its m - f - 2 (at least 1) nearest."""
    norms = np.diag(gram)
    squares = norms[:, None] + norms - 2 * gram
    np.fill_diagonal(squares, np.inf)
    near = max(1, len(gram) - attackers - 2)
    return np.asarray(np.sort(squares, axis=1)[:, :near].sum(axis=1))


def krum_weights(gram: np.ndarray, attackers: int) -> np.ndarray:
    """Return weight 1 for the update with the smallest score, the first of equal ones."""
    return np.eye(len(gram))[int(np.argmin(krum_scores(gram, attackers)))]


def multi_krum_weights(gram: np.ndarray, attackers: int) -> np.ndarray:
    """Return equal weights for the m - f updates with the smallest scores."""
    count = len(gram)
    best = np.argsort(krum_scores(gram, attackers), kind="stable")[: count - attackers]
    return np.bincount(best, minlength=count) / len(best)


def geometric_weights(gram: np.ndarray, attackers: int) -> np.ndarray:
    """Return the weights whose mean is the geometric median, by smoothed Weiszfeld steps.

    Each step sets a_i to 1 / max(nu, ||x_i - z||), normalized, where z = sum_i a_i x_i; the first
    z is the mean.
    """
    weights = np.full(len(gram), 1 / len(gram))
    for _ in range(ITERATIONS):
        squares = np.diag(gram) - 2 * gram @ weights + weights @ gram @ weights
        closeness = 1 / np.maximum(np.sqrt(np.maximum(squares, 0.0)), SMOOTHING)
        before, weights = weights, closeness / closeness.sum()
        if np.abs(weights - before).max() < TOLERANCE:
            break
    return weights


def clipping_weights(gram: np.ndarray, radius: float) -> np.ndarray:
    """Return (1/m) min(1, tau / ||x_i - c||); the center has the rest of the weight."""
    norms = np.sqrt(np.diag(gram))
    limit = radius or float(np.median(norms))
    return np.where(norms > limit, limit / np.maximum(norms, 1e-300), 1.0) / len(norms)


def weighted(
    updates: Sequence[ClientUpdate], key: str, weights: np.ndarray, center: np.ndarray
) -> np.ndarray:
    """Return (1 - sum_i a_i) c + sum_i a_i x_i of one array, in float64."""
    rest = 1.0 - weights.sum()
    total = rest * center if abs(rest) > TOLERANCE else np.zeros(center.shape)
    for weight, update in zip(weights, updates, strict=True):
        if weight:
            total += weight * update.arrays[key].astype(np.float64)
    return total


SHARE = ("robust-share",)
RULES = {
    "median": Rule(of_entries(median)),
    "trimmed-mean": Rule(of_entries(trimmed_mean), SHARE, lambda f: 2 * f + 1),
    "krum": Rule(of_distances(krum_weights), SHARE, lambda f: 2 * f + 3),
    "multi-krum": Rule(of_distances(multi_krum_weights), SHARE, lambda f: 2 * f + 3),
    "geometric-median": Rule(of_distances(geometric_weights)),
    "clipped": Rule(clipped, ("clip-radius",)),
}
