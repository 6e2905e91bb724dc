"""Limits of a container or a batch job: those of this process's cgroups, of versions 1 and 2."""

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

ROOT, OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def folders(controller: str) -> Iterator[Path]:
    """Yield the folders that limit this process's `controller`, from its own cgroup to the root."""
    tops = {"": ROOT, controller: ROOT / controller}  # of version 2, and of version 1
    own = dict.fromkeys(tops, "/")
    with suppress(OSError):  # not on Linux
        for line in OWN.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            own |= {name: path for name in controllers.split(",") if name in tops}
    for name, top in tops.items():
        here = top / own[name].lstrip("/")
        yield from (top / part for part in (here, *here.parents) if part.is_relative_to(top))


def cores() -> int:
    """Return how many cores this process may use at once; a part of a core counts as one."""
    known = [len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()]
    for folder in folders("cpu"):
        with suppress(OSError, ValueError):  # no such file, or no limit ("max")
            quota, period = map(int, (folder / "cpu.max").read_text().split())
            known.append(math.ceil(quota / period))
        with suppress(OSError, ValueError):
            files = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
            quota, period = (int((folder / name).read_text()) for name in files)
            known.append(math.ceil(quota / period) if quota > 0 else None)
    return max(1, min(filter(None, known), default=1))
