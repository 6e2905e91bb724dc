"""The rows of arrays in an .npz file, read when they are needed."""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from fedapps.core.errors import RunError
from fedapps.data.npz import Array, reading


@dataclass(frozen=True)
class Rows:
    """The samples of one .npz file: first train, then val (if there is any), then test.

    Rows are read from the file each time that they are needed. So no process holds all of them; the
    page cache of the machine holds them once for all processes.
    """

    arrays: tuple[Array, ...]

    @cached_property
    def starts(self) -> np.ndarray:
        """The number of the first row of every array, and at the end the number of all rows."""
        return np.cumsum([0, *(array.shape[0] for array in self.arrays)])

    def read(self, indices: np.ndarray) -> np.ndarray:
        """Read rows `indices` (int64 [n]), [n, ...]: floats as float32, others as they are stored.

        Raises `RunError` for float values that are not finite.
        """
        first = self.arrays[0]
        if len(indices) and not 0 <= indices.min() <= indices.max() < self.starts[-1]:
            raise IndexError(f"{first.path}: samples are 0..{self.starts[-1] - 1}")
        out = np.empty((len(indices), *first.shape[1:]), first.dtype)
        array_of = np.searchsorted(self.starts, indices, side="right") - 1
        rows = indices - self.starts[array_of]
        self._fill(out, array_of, rows)
        if out.dtype.kind != "f":
            return out
        with np.errstate(over="ignore"):  # the check below reports it more clearly
            out = out.astype(np.float32, copy=False)
        broken = np.flatnonzero(~np.isfinite(out.reshape(len(out), -1)).all(axis=1))
        if len(broken):
            array, row = self.arrays[array_of[broken[0]]], rows[broken[0]]
            raise RunError(
                f"{array.path}: {array.key}[{row}] holds NaN or infinity; must be finite"
            )
        return out

    def _fill(self, out: np.ndarray, array_of: np.ndarray, rows: np.ndarray) -> None:
        """Read rows into `out`; consecutive rows of one array are read at once."""
        ends = np.flatnonzero((np.diff(rows) != 1) | (np.diff(array_of) != 0)) + 1
        path = self.arrays[0].path
        with reading(path), path.open("rb") as file:
            for first, last in pairwise([0, *ends.tolist(), len(rows)]):
                if first < last:
                    array = self.arrays[array_of[first]]
                    array.read(file, int(rows[first]), out[first:last])
