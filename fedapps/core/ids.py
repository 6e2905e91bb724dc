"""Ascending ids of many clients, without a Python object for each of them."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np


class Ids(Sequence[int]):
    """Ascending ids, 8 bytes each; like in a `range`, `in` does not look at all of them."""

    def __init__(self, ids: Iterable[int] | np.ndarray) -> None:
        found = ids if isinstance(ids, np.ndarray) else np.fromiter(ids, np.int64)
        self._ids: np.ndarray = found

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, place: Any) -> Any:
        found = self._ids[place]
        return Ids(found) if isinstance(place, slice) else int(found)

    def __iter__(self) -> Iterator[int]:
        return iter(self._ids.tolist())

    def __contains__(self, client: object) -> bool:
        place = np.searchsorted(self._ids, client)  # type: ignore[call-overload]
        return bool(place < len(self) and self._ids[place] == client)


def without(count: int, left_out: Sequence[int]) -> Sequence[int]:
    """Return the ids 0, 1, ... below `count` that are not among those `left_out`."""
    if not left_out:
        return range(count)
    return Ids(np.delete(np.arange(count), np.fromiter(left_out, np.int64)))
