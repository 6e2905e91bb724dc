"""Whether what a process is to hold fits into the memory that there is, and what it keeps."""

import ctypes
import sys
from collections.abc import Iterator
from pathlib import Path

from rich.filesize import decimal

from fedapps.core import log
from fedapps.core.errors import RunError

TOLD_FROM = 10**9  # bytes
CGROUPS = Path("/sys/fs/cgroup")
# Of both versions: the limit, what is used, and the lines of `memory.stat` that can be had back.
_FILES = (
    ("memory.max", "memory.current", "memory.stat"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
)
_CACHED = ("active_file", "inactive_file")
_LARGEST = 2**30  # bytes of a block
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # as in glibc's malloc.h


def keep_freed() -> None:
    """Have the C library keep what is freed for what is allocated next.

    glibc gives large blocks back to the system at once. Each training step with large activations
    then waits until the same pages are cleared again, a sixth of its time with conv4
    (benchmarks/memory.py). The process keeps as much as it has had at most. Other C libraries are
    left as they are.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    # Either option alone would end glibc's own adjustment; before 2.35 it takes 32 MiB at most.
    if mallopt and any(mallopt(_MMAP_THRESHOLD, size) for size in (_LARGEST, _LARGEST // 32)):
        mallopt(_TRIM_THRESHOLD, _LARGEST)


def reserve(what: str, nbytes: int, instead: str) -> None:
    """Say how much memory something large will take; raises `RunError` if there is too little.

    `instead` is what to do about that.
    """
    if nbytes < TOLD_FROM:
        return
    there = available()
    if nbytes > there:
        raise RunError(
            f"{what} needs {decimal(nbytes)} of memory, {decimal(there)} are there: {instead}"
        )
    log.info("note: %s needs %s of memory, %s are there", what, decimal(nbytes), decimal(there))


def available() -> int:
    """Return the bytes that this process may still take, of the machine or of its container."""
    import psutil  # a device, which asks nothing of the kind, need not load it

    return max(0, min([psutil.virtual_memory().available, *_left_in_container()]))


def _left_in_container() -> Iterator[int]:
    for limit, used, stat in _FILES:
        try:
            most, now = int((CGROUPS / limit).read_text()), int((CGROUPS / used).read_text())
            lines = [line.split() for line in (CGROUPS / stat).read_text().splitlines()]
            yield most - now + sum(int(count) for name, count in lines if name in _CACHED)
        except (OSError, ValueError):  # there is none, or no limit: "max"
            continue
