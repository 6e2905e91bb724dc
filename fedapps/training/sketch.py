"""Whether two models have the same values but for last digits, as processors draw other ones."""

import hashlib
from collections.abc import Mapping

import numpy as np

from fedapps.core import log

TOLERANCE = 1e-5  # of the norm of all values; last digits make 1e-7
SUMS = 8  # so a byte has a sign for each
SIGNS = 2.0 * np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1) - 1  # [256, SUMS]
PART = 2**18  # values at once, which saves memory


def sketch(arrays: Mapping[str, np.ndarray]) -> str:
    """Describe arrays by a line of numbers: their norm, and sums of their values with random signs.

    The signs come from the arrays' names, so they are the same everywhere. Errors of single values
    cancel out in such a sum, but a changed value, array or order does not.
    """
    squares, by_byte = 0.0, np.zeros(256)
    with np.errstate(invalid="ignore", over="ignore"):  # what is not finite resembles nothing
        for key, array in arrays.items():
            flat = array.reshape(-1)
            bits = np.frombuffer(hashlib.shake_256(key.encode()).digest(flat.size), np.uint8)
            for start in range(0, flat.size, PART):
                values = flat[start : start + PART].astype(np.float64)
                by_byte += np.bincount(bits[start : start + PART], values, 256)
                squares += float(np.square(values).sum())
        sums = (by_byte[:, None] * SIGNS).sum(axis=0)
    return " ".join(f"{value:.9g}" for value in (squares**0.5, *sums))


def alike(mine: str, other: str) -> bool:
    """Tell whether two sketches are of the same values but for last digits.

    The other one can come from anybody: what is no sketch, or not finite, is not alike.
    """
    try:
        own, its = (np.array([float(word) for word in text.split(" ")]) for text in (mine, other))
    except ValueError:
        return False
    if not own.shape == its.shape == (1 + SUMS,) or not np.isfinite([own, its]).all():
        return False
    return bool((abs(own - its) <= TOLERANCE * own[0]).all())


def tell(what: str) -> None:
    """Warn that initial values are others in their last digits."""
    log.warning(
        "last digits of the initial model are not %s, as on another type of processor: so are those"
        " of the results",
        what,
    )
