"""Arrays of an .npz file: described by their headers; rows are read when they are needed."""

import math
import os
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from io import BufferedReader
from itertools import pairwise
from pathlib import Path
from typing import IO

import numpy as np

from fedapps.core.errors import MisfitError, RunError
from fedapps.core.files import parsing
from fedapps.core.words import composed
from fedapps.data.precision import as_float32
from fedapps.data.spec import CURE, LARGEST, RANGE

KEYS = ("train_images", "train_labels", "test_images", "test_labels")
OTHERS = ("train_inputs", "train_targets", "test_inputs", "test_targets")  # of any shape
KINDS = ("images", "labels", "inputs", "targets", "groups")
# the members that are read, if they exist
MEMBERS = (*KINDS, *(f"{part}_{kind}" for part in ("train", "val", "test") for kind in KINDS))

BLOCK = 2**23  # bytes that are read at once to pass over all rows
LOOKED_AT = 2**22  # bytes that are read of an array to judge its values, from its beginning
MOST_VALUES = 2**48  # the largest size of an axis
_changed = partial(MisfitError, told="its data have changed, or cannot be read")

# The errors that zipfile and numpy raise for a broken file.
_UNREADABLE = (
    OSError, ValueError, EOFError, MemoryError, RuntimeError, SyntaxError, tokenize.TokenError,
    struct.error, zlib.error, zipfile.BadZipFile,
)  # fmt: skip


@contextmanager
def reading(path: Path, error_of: Callable[[str], RunError] = RunError) -> Iterator[None]:
    """Turn every error that a broken file causes in the libraries into a `RunError` of one line."""
    try:
        yield
    except FileNotFoundError as error:
        raise error_of(f"{path}: no such file") from error
    except _UNREADABLE as error:
        reason = str(error) or type(error).__name__
        about = f"as .npz ({reason}); write it with numpy.savez, no pickles"
        if strerror := getattr(error, "strerror", None):  # what is in the file may be right
            about = f"({strerror})"
        raise error_of(f"{path}: cannot be read {about}") from error


@dataclass(frozen=True)
class Array:
    """A member of an .npz file, described by its header; its values are read when needed.

    Or one that is in memory (`held`), because it comes from a file of another form.
    """

    path: Path
    key: str
    shape: tuple[int, ...]
    dtype: np.dtype
    offset: int | None  # of the first value; None: compressed or in Fortran order
    stamp: tuple[int, ...] = ()  # of the file that was described

    @contextmanager
    def opened(self) -> Iterator[BufferedReader]:
        """Open the file; raises `MisfitError` if it is no longer the one that was described."""
        with reading(self.path, _changed), self.path.open("rb") as file:
            if _stamp(file) != self.stamp:
                raise _changed(f"{self.path}: has changed since the run opened it")
            yield file

    def first(self, nbytes: int) -> np.ndarray:
        """Return the values at the beginning, at most `nbytes` bytes of them, as a flat array."""
        count = min(nbytes // self.dtype.itemsize, math.prod(self.shape))
        if self.offset is None:
            return self.whole.ravel()[:count]
        with self.opened() as file:
            return np.fromfile(file, self.dtype, count, offset=self.offset)

    @cached_property
    def whole(self) -> np.ndarray:
        """All values, which stay in memory: a compressed member can only be read from its start."""
        with self.opened() as file, parsing, np.load(file, allow_pickle=False) as arrays:
            return arrays[self.key]


def held(path: Path, key: str, values: np.ndarray) -> Array:
    """Return values in memory as an array; errors name `path` and `key`."""
    array = Array(path, key, values.shape, values.dtype, None)
    vars(array)["whole"] = values
    return array


def in_text(array: Array) -> np.ndarray:
    """Return all values, bytes as the texts that they are in UTF-8; those in ASCII stay bytes.

    NumPy takes only the latter for texts, too. Raises `RunError` for bytes that are not UTF-8.
    """
    values = array.whole
    if values.dtype.kind != "S" or b"".join(values.ravel().tolist()).isascii():
        return values
    try:
        return np.char.decode(values, "utf-8")
    except UnicodeDecodeError as error:
        rule = "holds bytes that are not UTF-8; save texts (str)"
        raise RunError(f"{array.path}: {array.key} {rule}") from error


def class_names(path: Path) -> tuple[str, ...]:
    """Return the names of classes or labels that an .npz may contain; () if it has none."""
    arrays = headers(path, ("class_names",)).values()
    return tuple(composed(name) for a in arrays for name in in_text(a).astype(str).ravel().tolist())


def members(path: Path) -> list[str]:
    """Return the names of all arrays in an .npz."""
    with reading(path), zipfile.ZipFile(path) as archive:
        return [name.removesuffix(".npy") for name in archive.namelist()]


def headers(path: Path, keys: Sequence[str] = MEMBERS) -> dict[str, Array]:
    """Describe members of an .npz by reading only their headers; the result is by key.

    Raises `RunError` for a file that is broken, or an array of Python objects.
    """
    with reading(path), path.open("rb") as file, zipfile.ZipFile(file) as archive:
        return {
            info.filename.removesuffix(".npy"): _header(path, archive, info, file)
            for info in archive.infolist()
            if info.filename.removesuffix(".npy") in keys
        }


def samples(path: Path) -> dict[str, Array]:
    """Return the `headers` of the arrays that are read; if none is there, objects are refused."""
    found = headers(path)
    if not found:
        headers(path, members(path))
    return found


def _header(
    path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo, file: BufferedReader
) -> Array:
    """Read a member's header; if the values are stored uncompressed, find their place in `file`."""
    key = info.filename.removesuffix(".npy")
    with archive.open(info) as stream:
        shape, fortran, dtype = _read_header(stream, key)
        start = stream.tell()
    _refuse_objects(path, key, dtype)
    if start + dtype.itemsize * math.prod(shape) != info.file_size:
        raise ValueError(f"{key} does not have the size that its header states")
    if info.compress_type != zipfile.ZIP_STORED or fortran:
        return Array(path, key, shape, dtype, None, _stamp(file))
    file.seek(info.header_offset + 26)  # in the local header: lengths of name and extra field
    name, extra = struct.unpack("<HH", file.read(4))
    offset = info.header_offset + 30 + name + extra + start
    return Array(path, key, shape, dtype, offset, _stamp(file))


def _stamp(file: BufferedReader) -> tuple[int, ...]:
    """Return the size and the time of change, which tell a file that has been written again."""
    about = os.fstat(file.fileno())  # network drives can give one file several inodes
    return about.st_size, about.st_mtime_ns


def _refuse_objects(path: Path, key: str, dtype: np.dtype) -> None:
    """Refuse an array of Python objects, which are in the file as a pickle."""
    if dtype.hasobject:
        cure = "each array under a name of its own, such as images and labels"
        cure += " (PFLlib's files: docs/coming-from-pfllib.md)"
        if key in (*MEMBERS, "class_names"):
            text = key.endswith(("groups", "class_names"))
            cure = f"{key}.astype(str)" if text else "numbers"
        raise RunError(f"{path}: {key} holds Python objects; save {cure}")


def _read_header(stream: IO[bytes], key: str) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Read a member's header; return its shape, whether it is in Fortran order, and its dtype."""
    read = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }.get(np.lib.format.read_magic(stream))
    if read is None:
        raise ValueError(f"{key} has an unknown format version")
    shape, fortran, dtype = read(stream)
    if not all(0 <= side < MOST_VALUES for side in shape):
        raise ValueError(f"{key} has an impossible shape")
    return shape, fortran, dtype


def not_finite(array: Array, row: int, values: np.ndarray, cure: str = "") -> MisfitError:
    """Return the error of a row whose `values`, as they are stored, are not all finite float32."""
    where = f"{array.path}: {array.key}[{row}]"
    finite = values[np.isfinite(values)].astype(np.float64)
    if (large := finite[np.abs(finite) > LARGEST]).size:
        return MisfitError(f"{where} holds {large[0]:g}; must be {RANGE}")
    return MisfitError(f"{where} holds NaN or infinity; must be finite{cure}")


@dataclass(frozen=True)
class Rows:
    """The samples of one file: first train, then val (if there is any), then test.

    With `gaps`, NaN stands for a value that is missing, and is let through. `told` are lines that a
    user has to know.

    Rows are read from the file each time that they are needed. So no process holds all of them; the
    page cache of the machine holds them once for all processes.
    """

    arrays: tuple[Array, ...]
    gaps: bool = False
    told: tuple[str, ...] = ()

    @cached_property
    def starts(self) -> np.ndarray:
        """The number of the first row of every array, and at the end the number of all rows."""
        return np.cumsum([0, *(array.shape[0] for array in self.arrays)])

    def places(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the number of each row's array, and the row's place there: int64 [n] each."""
        array_of = np.searchsorted(self.starts, indices, side="right") - 1
        return array_of, indices - self.starts[array_of]

    @cached_property
    def dtype(self) -> np.dtype:
        """What can hold the values of all arrays: that of the first one if all have the same."""
        first, *others = (array.dtype for array in self.arrays)
        return first if all(other == first for other in others) else np.result_type(first, *others)

    def read(self, indices: np.ndarray) -> np.ndarray:
        """Read rows `indices` (int64 [n]), [n, ...]: floats as float32, others as they are stored.

        Raises `RunError` for float values that are not finite.
        """
        if len(indices) and not 0 <= indices.min() <= indices.max() < self.starts[-1]:
            raise IndexError(f"{self.arrays[0].path}: samples are 0..{self.starts[-1] - 1}")
        stored = self._stored(indices)
        if stored.dtype.kind != "f":
            return stored.astype(stored.dtype.newbyteorder("="), copy=False)  # for PyTorch
        out = as_float32(stored)
        wrong = np.isinf(out) if self.gaps else ~np.isfinite(out)
        broken = np.flatnonzero(wrong.reshape(len(out), math.prod(out.shape[1:])).any(axis=1))
        if len(broken):
            number, row = self.places(indices[broken[0]])
            array = self.arrays[number]
            cure = "" if self.gaps else f" (if it stands for a missing value, {CURE})"
            if array.key.endswith("images"):
                cure = " (leave this image out, or set its pixels)"
            raise not_finite(array, int(row), stored[broken[0]], cure)
        return out

    def checked(self) -> Iterator[np.ndarray]:
        """Yield all rows as `read` returns them, and refuses them, some megabytes at a time."""
        return map(self.read, self._ranges())

    def blocks(self) -> Iterator[np.ndarray]:
        """Yield all rows as they are stored, some megabytes at a time."""
        return map(self._stored, self._ranges())

    def _ranges(self) -> Iterator[np.ndarray]:
        """Yield the numbers of all rows, of some megabytes at a time."""
        size = int(self.starts[-1])
        row = self.dtype.itemsize * math.prod(self.arrays[0].shape[1:])
        step = max(1, BLOCK // max(1, row))
        for begin in range(0, size, step):
            yield np.arange(begin, min(begin + step, size))

    def _stored(self, indices: np.ndarray) -> np.ndarray:
        """Return rows as they are stored: those in memory at once, consecutive ones of a file, too.

        An array of another dtype than that of all is in memory.
        """
        out = np.empty((len(indices), *self.arrays[0].shape[1:]), self.dtype)
        array_of, rows = self.places(indices)
        in_file = np.array([a.offset is not None and a.dtype == out.dtype for a in self.arrays])
        for number in np.flatnonzero(~in_file):
            mine = np.flatnonzero(array_of == number)
            out[mine] = self.arrays[number].whole[rows[mine]].reshape(len(mine), *out.shape[1:])
        if not in_file[array_of].any():
            return out
        ends = np.flatnonzero((np.diff(rows) != 1) | (np.diff(array_of) != 0)) + 1
        with self.arrays[in_file.argmax()].opened() as file:
            for first, last in pairwise([0, *ends.tolist(), len(rows)]):
                if in_file[array_of[first]]:
                    array, part = self.arrays[array_of[first]], out[first:last]
                    file.seek((array.offset or 0) + int(rows[first]) * out[0].nbytes)
                    if file.readinto(part.data) != part.nbytes:
                        raise EOFError(f"{array.key} ends early")
        return out
