"""Processes and all that they started."""

import os
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress

import psutil

from fedapps.core.errors import RunError

KILL_AFTER = 5.0  # seconds between asking processes to end and ending them


def living() -> Iterator[psutil.Process]:
    """Yield every living process; `info` has its `ppid` and `cmdline` (a list, maybe empty)."""
    for process in psutil.process_iter(["ppid", "cmdline", "status"]):
        if process.info["status"] not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
            process.info["cmdline"] = process.info["cmdline"] or []  # of others: None
            yield process


def end(roots: Iterable[int]) -> bool:
    """End processes with all that they started; False if there were none.

    They are asked first, and killed after `KILL_AFTER` seconds.
    """
    family, sessions = set(roots), set[int]()
    found, asked = bool(family), time.monotonic()
    signals = iter([signal.SIGTERM])  # alone not enough: a SuperLink waits for open log streams
    while members := _grown(family, sessions):
        late = time.monotonic() > asked + KILL_AFTER
        if number := signal.SIGKILL if late else next(signals, None):
            for process in members:
                _send(process, number)
        time.sleep(0.1)
    return found


def session_of(pid: int) -> int:
    """Return the id of a process's session, -1 if it is gone."""
    try:
        return os.getsid(pid)
    except OSError:
        return -1


def _grown(family: set[int], sessions: set[int]) -> list[psutil.Process]:
    """Bring a family up to date and return it: living members, their children and sessions.

    Flower's processes leave Ray's agents behind without a parent; the session still holds them.
    A session counts only if a member leads it, so that of a user's shell never does.
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
    """Send a signal, unless the process is gone (psutil knows if its id has a new owner).

    Raises `RunError` if it is another user's.
    """
    with suppress(psutil.NoSuchProcess):
        try:
            process.send_signal(number)
        except psutil.AccessDenied as error:
            raise RunError(
                f"process {process.pid} is another user's: only they can end it"
            ) from error
