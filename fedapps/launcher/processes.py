"""Find and end processes together with all processes that they started."""

import os
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from fedapps.core.errors import RunError

KILL_AFTER = 5.0  # seconds between asking processes to end (SIGTERM) and killing them


def living() -> Iterator[psutil.Process]:
    """Yield every living process; `info` has its `ppid` and `cmdline` (a list, can be empty)."""
    for process in psutil.process_iter(["ppid", "cmdline", "status"]):
        if process.info["status"] not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
            process.info["cmdline"] = process.info["cmdline"] or []  # None for other users'
            yield process


def elsewhere(pid: int, home: Path) -> bool:
    """Tell whether a process has another network or another `home`, as it can in a container.

    Another root folder says nothing: some containers share all that matters with what is around.
    Of a home that is not here, the nearest folder above it counts.
    """
    with suppress(OSError):  # it is gone, somebody else's, or on a system without /proc
        there = next(path for path in (home, *home.parents) if path.exists())
        network = Path(f"/proc/{pid}/ns/net").samefile("/proc/self/ns/net")
        return not (network and Path(f"/proc/{pid}/root{there}").samefile(there))
    return False


def has_another(pid: int, folder: Path) -> bool:
    """Tell whether a process has another `folder` of this path, as in a container.

    The time of its last change counts: one image can be mounted for each process anew.
    """
    with suppress(OSError):  # as above
        there = Path(f"/proc/{pid}/root{folder}")
        return there.stat().st_mtime_ns != folder.stat().st_mtime_ns
    return False


def end(roots: Iterable[int]) -> bool:
    """End processes and all that they started; return False if there were none.

    They are first asked to end, and killed after `KILL_AFTER` seconds.
    """
    family, sessions = set(roots), set[int]()
    found, asked = bool(family), time.monotonic()
    signals = iter([signal.SIGTERM])  # not enough for a SuperLink that waits for log streams
    while members := _grown(family, sessions):
        late = time.monotonic() > asked + KILL_AFTER
        if number := signal.SIGKILL if late else next(signals, None):
            for process in members:
                _send(process, number)
        time.sleep(0.1)
    return found


def session_of(pid: int) -> int:
    """Return the id of a process's session, or -1 if the process is gone."""
    try:
        return os.getsid(pid)
    except OSError:
        return -1


def _grown(family: set[int], sessions: set[int]) -> list[psutil.Process]:
    """Update a family of processes and return its living members.

    The family gets the children of its members, and all processes in sessions that a member leads.
    Sessions are needed because Flower's processes leave Ray's agents behind without a parent. The
    session of a user's shell is never included, because its leader, the shell, is not a member.
    """
    listed = {process.pid: process for process in living()}
    size = -1
    while size != len(family):
        size = len(family)
        family |= {pid for pid, process in listed.items() if process.info["ppid"] in family}
        sessions |= {pid for pid in family if session_of(pid) == pid}
        family |= {pid for pid in listed if session_of(pid) in sessions}
    family &= listed.keys()
    return [listed[pid] for pid in family]


def _send(process: psutil.Process, number: int) -> None:
    """Send a signal, unless the process is gone (psutil notices if its id was used again).

    Raises `RunError` if the process belongs to another user.
    """
    with suppress(psutil.NoSuchProcess):
        try:
            process.send_signal(number)
        except psutil.AccessDenied as error:
            raise RunError(
                f"process {process.pid} belongs to another user, and only they can end it"
            ) from error
