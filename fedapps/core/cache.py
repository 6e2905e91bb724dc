"""A cache with a limit in bytes; it keeps count of the bytes that it holds."""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

Value = TypeVar("Value")


class ByteCache(Generic[Value]):
    """Values by key; when they exceed `limit` bytes, the least recently used ones are dropped.

    `held` is the sum of their bytes. At least `least` values stay, however large they are.
    """

    def __init__(self, limit: int, least: int = 0) -> None:
        self.limit = limit
        self.least = least
        self.held = 0
        self._known: OrderedDict[Hashable, tuple[Value, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def get(self, key: Hashable) -> Value | None:
        """Return a value and mark it as the most recently used; None if the key is unknown."""
        if key not in self._known:
            return None
        self._known.move_to_end(key)
        return self._known[key][0]

    def put(self, key: Hashable, value: Value, nbytes: int) -> None:
        """Store a value as the most recently used one; drop old values that exceed the limit."""
        _, before = self._known.pop(key, (value, 0))
        self._known[key] = (value, nbytes)
        self.held += nbytes - before
        while self.held > self.limit and len(self._known) > self.least:
            _, (_, freed) = self._known.popitem(last=False)
            self.held -= freed
