"""Checks that large data fit into memory, and keeps freed memory for reuse."""

import ctypes
import sys
from collections.abc import Iterator
from itertools import product

from rich.filesize import decimal

from fedapps.core import cgroups, log
from fedapps.core.errors import RunError

TOLD_FROM = 10**9  # bytes; less is not reported
# For cgroups v2 and v1: the limit, the usage, and the file caches in memory.stat. All of them are
# those of a group and the groups below it.
_FILES = (
    ("memory.max", "memory.current", ("active_file", "inactive_file")),
    (
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        ("total_active_file", "total_inactive_file"),
    ),
)
_LARGEST = 2**30  # bytes of one block
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # as in glibc's malloc.h


def keep_freed() -> None:
    """Make the C library keep freed memory for later allocations.

    glibc returns large blocks to the system at once. A training step with large activations then
    has to wait until the system has cleared the same pages again; with conv4 this is a sixth of its
    time (benchmarks/memory.py). With this setting the process keeps as much memory as it has ever
    used. Other C libraries are left as they are.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    # Either option turns glibc's own adjustment off. Before 2.35, glibc accepts at most 32 MiB.
    if mallopt and any(mallopt(_MMAP_THRESHOLD, size) for size in (_LARGEST, _LARGEST // 32)):
        mallopt(_TRIM_THRESHOLD, _LARGEST)


def reserve(what: str, nbytes: int, instead: str) -> None:
    """Report how much memory something large needs; raise `RunError` if there is too little.

    `what` names it, and `instead` says what the user can do about too little memory.
    """
    if nbytes < TOLD_FROM:
        return
    there = available()
    if nbytes > there:
        raise RunError(
            f"{what} needs {decimal(nbytes)} of memory, {decimal(there)} are free: {instead}"
        )
    log.info("note: %s needs %s of memory, %s are free", what, decimal(nbytes), decimal(there))


def available() -> int:
    """Return how many bytes this process can still use, in its machine or container."""
    import psutil  # devices never ask, and need not load it

    return max(0, min([psutil.virtual_memory().available, *_left_in_container()]))


def _left_in_container() -> Iterator[int]:
    for folder, (limit, used, cached) in product(cgroups.folders("memory"), _FILES):
        try:
            most, now = int((folder / limit).read_text()), int((folder / used).read_text())
            lines = [line.split() for line in (folder / "memory.stat").read_text().splitlines()]
            yield most - now + sum(int(count) for name, count in lines if name in cached)
        except (OSError, ValueError):  # no such file, or no limit ("max")
            continue
