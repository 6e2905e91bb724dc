"""Updates in fixed point, and the masks that hide them: integers modulo 2^64 [1 + entries].

The first integer is a client's weight n_i, its sample count; the others are n_i w_i in multiples of
2^-24, array after array. That is finer than the float32 in which updates travel otherwise.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

from fedapps.models.layers import Arrays

WORD = np.dtype("<u8")
SCALE = 2.0**24
LIMIT = 2.0**63 / SCALE  # sum_i n_i |w_i| must be below it
PART = 2**14  # words that are masked at a time, so that they stay in the processor's cache
ZEROS, NONCE = memoryview(bytes(WORD.itemsize * PART)), bytes(16)


def encoded(arrays: Iterable[np.ndarray], weight: int) -> np.ndarray:
    """Return arrays, times a weight, as the vector that is masked; no entry may be above a limit.

    The limit is that weight times the largest magnitude is below 2^39.
    """
    values = [np.multiply(array, weight * SCALE, dtype=np.float64).ravel() for array in arrays]
    words = np.rint(np.concatenate([[float(weight)], *values])).astype("<i8")
    return words.view(WORD)


def decoded(total: np.ndarray, shapes: Mapping[str, tuple[int, ...]]) -> tuple[Arrays, int]:
    """Return the mean that a sum of vectors stands for (float32, by name), and its weight.

    Without a positive weight there is no mean; it is then empty.
    """
    weight, start = int(total.view("<i8")[0]), 1
    mean: Arrays = {}
    for name, shape in shapes.items() if weight > 0 else ():
        end = start + math.prod(shape)
        values = total[start:end].view("<i8").astype(np.float64) / (SCALE * weight)
        mean[name] = values.reshape(shape).astype(np.float32)
        start = end
    return mean, weight


def length(shapes: Iterable[Sequence[int]]) -> int:
    """Return the number of integers for arrays of these shapes."""
    return 1 + sum(map(math.prod, shapes))


def add_masks(vector: np.ndarray, plus: Iterable[bytes], minus: Iterable[bytes]) -> None:
    """Add the masks that some keys stand for to a vector, and subtract those of others, in place.

    A mask is the key stream of ChaCha20, which nobody can tell from random integers.
    """
    signed = [(np.add, key) for key in plus] + [(np.subtract, key) for key in minus]
    streams = [(add, Cipher(ChaCha20(key, NONCE), None).encryptor()) for add, key in signed]
    found = bytearray(len(ZEROS))
    masks = np.frombuffer(found, WORD)
    for start in range(0, len(vector), PART):
        part = vector[start : start + PART]
        for add, stream in streams:
            stream.update_into(ZEROS[: part.nbytes], found)
            add(part, masks[: len(part)], out=part)
