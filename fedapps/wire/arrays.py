"""Arrays in messages: pack them as float32; check name, shape, size and values before reading."""

import io
from collections.abc import Mapping
from functools import lru_cache

import numpy as np
from flwr.app import Array, ArrayRecord

from fedapps.models.layers import Arrays
from fedapps.wire.checks import LARGEST, BadMessage, invalid_values

DTYPE = np.dtype("<f4")
MASKED = "masked/sum"  # what a client uploads for a secure sum, in place of all arrays
NPY_HEADER_BYTES = 256  # upper limit of the size of an array's npy header


def pack_arrays(
    arrays: Mapping[str, np.ndarray], packed: dict[int, Array] | None = None
) -> ArrayRecord:
    """Return arrays of any float type as a record of float32 arrays (`MASKED`: of integers).

    `packed` holds packed arrays by the `id` of the original, so that an array that goes into
    several messages is packed only once.
    """
    packed = {} if packed is None else packed
    for key, array in arrays.items():
        if id(array) not in packed:
            packed[id(array)] = _pack(np.asarray(array, dtype_of(key), order="C"))
    return ArrayRecord({key: packed[id(array)] for key, array in arrays.items()})


def unpack_arrays(
    record: ArrayRecord, shapes: Mapping[str, tuple[int, ...]], largest: float = LARGEST
) -> Arrays:
    """Check and read an array record; the arrays are views of the message, not copies.

    Raises `BadMessage` if a name, dtype (`dtype_of`), shape or size is not as expected, or if a
    value is not finite or its magnitude is above `largest`.
    """
    return {key: _unpack(key, array, shapes.get(key), largest) for key, array in record.items()}


def checked_extras(extras: Mapping[str, tuple[int, ...]]) -> Mapping[str, tuple[int, ...]]:
    """Check and return the names and shapes of a plan's extra arrays, which the model lacks.

    Raises `BadMessage` for a name without a slash and for a negative size.
    """
    for name, shape in extras.items():
        if "/" not in name or any(size < 0 for size in shape):
            raise BadMessage(f"extra array {name} {shape}: needs a / in its name and sizes >= 0")
    return extras


def dtype_of(key: str) -> np.dtype:
    """Return the dtype in which an array travels."""
    return np.dtype("<u8") if key == MASKED else DTYPE


def _pack(values: np.ndarray) -> Array:
    """Return what `Array(values)` returns, whose npy file is written with two copies fewer."""
    header = _header(values.dtype, values.shape)
    data = b"".join((header, values.reshape(-1).view(np.uint8).data))
    return Array(values.dtype.name, values.shape, "numpy.ndarray", data)


def _unpack(key: str, array: Array, shape: tuple[int, ...] | None, largest: float) -> np.ndarray:
    if shape is None:
        raise BadMessage(f"unknown array {key}")
    kind = dtype_of(key)
    size = kind.itemsize * int(np.prod(shape, dtype=np.int64))
    if array.stype != "numpy.ndarray":
        raise BadMessage(f"{key} comes as {array.stype}: expected numpy.ndarray")
    if (array.dtype, array.shape) != (kind.name, shape):  # Flower's own fields, not the header's
        told = f"{array.dtype[:20]}{array.shape[:5]}"
        raise BadMessage(f"{key} is called {told}: expected {kind}{shape}")
    header = _header(kind, shape)
    if not array.data.startswith(header):
        raise BadMessage(f"{key} does not begin with NumPy's header of {kind}{shape}")
    if (found := len(array.data) - len(header)) != size:
        raise BadMessage(f"{found} bytes of values for {key}: expected {size}")
    values = np.frombuffer(array.data, kind, offset=len(header)).reshape(shape)
    if kind == DTYPE and (problem := invalid_values(values, largest)):
        raise BadMessage(f"values in {key} are {problem}")
    return values


@lru_cache(maxsize=10_000)  # a model has few shapes
def _header(kind: np.dtype, shape: tuple[int, ...]) -> bytes:
    """Return how NumPy begins the npy file of such an array."""
    file = io.BytesIO()
    sides = tuple(map(int, shape))  # NumPy's own integers have another text, and the same hash
    told = {"descr": kind.str, "fortran_order": False, "shape": sides}
    np.lib.format.write_array_header_1_0(file, told)
    return file.getvalue()
