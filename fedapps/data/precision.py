"""What float32, in which models compute, loses of numbers: small differences far from 0."""

from collections.abc import Iterator, Sequence

import numpy as np

from fedapps.core.errors import RunError
from fedapps.core.words import some
from fedapps.data.spec import LEAST_STD, moments

ROWS = 4096  # that are looked at at once
COARSE = 1e-5  # deviation, of the mean: steps of float32 are then a hundredth of it
NOISE = 1e-13  # below, differences are those of float64 itself


def told(where: object, names: Sequence[str], values: np.ndarray, targets: bool) -> list[str]:
    """Return a line if float32 rounds features coarsely; `names` are those of the last axis.

    Raises `RunError` if all values of `targets` would count as equal.
    """
    rows = values.reshape(-1, len(names))
    with np.errstate(over="ignore", invalid="ignore"):  # numbers too large are refused elsewhere
        mean, std = moments(lambda: _finite(rows))
    far = np.abs(mean)
    found = np.flatnonzero((std > NOISE * far) & (std <= COARSE * far))
    if not len(found):
        return []
    worst = found[(std[found] / far[found]).argmin()]
    step = np.spacing(far[worst].astype(np.float32))
    lost = bool(std[worst] <= LEAST_STD * far[worst])
    named = some([names[feature] for feature in found.tolist()])
    line = (
        f"{where}: {named}: values around {mean[worst]:.6g}"
        f" differ by {std[worst]:.2g} only (standard deviation), where float32 has steps of"
        f" {step:.2g}{', so they count as equal' * lost}; subtract a constant, such as"
        f" {mean[worst]:.6g}"
    )
    if targets and lost:
        raise RunError(line)
    return [line]


def as_float32(values: np.ndarray) -> np.ndarray:
    """Return values as float32; infinity is in place of those that are too large, without a word.

    Whoever looks for what is not finite reports them more clearly than NumPy.
    """
    with np.errstate(over="ignore"):
        return values.astype(np.float32, copy=False)


def _finite(rows: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the rows in float64, some at a time; NaN is in place of what is not finite."""
    for first in range(0, len(rows), ROWS):
        block = rows[first : first + ROWS].astype(np.float64)
        block[~np.isfinite(block)] = np.nan
        yield block
