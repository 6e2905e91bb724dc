"""Do work for several at the same time, each in a thread of its own."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


def at_once(name: str, work: Callable[..., T], *of: Sequence[Any]) -> list[T]:
    """Return what `work` returns for each of its arguments, which are given as in `map`.

    The threads begin with `name`. Whatever `work` raises, and Ctrl-C, is raised without a wait for
    the threads that are left.
    """
    threads = ThreadPoolExecutor(len(of[0]), thread_name_prefix=name)
    try:
        return [*threads.map(work, *of)]
    finally:
        threads.shutdown(wait=False)
