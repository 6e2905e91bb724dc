"""Ends a run in good order when a signal arrives or Flower ends the process.

Before the process ends, the run must write what it has. A request to stop therefore raises
`Stopped` in the thread of the run. If that is the main thread, the signal handler raises it. In a
simulation, the run has a thread of its own, and signals arrive in Flower's main thread. There the
run asks from time to time whether it has to stop (`check`), and Flower waits for it before it ends
the process.
"""

import functools
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from fedapps.core import flower

PATIENCE = 20.0  # seconds for which the process, at its end, waits for a run in another thread
GRACE = 30.0  # seconds that a process has left after the one that started it has ended
# Terminals send SIGHUP twice, and `timeout` SIGTERM; batch systems send SIGTERM to all processes of
# a job, of which the parents then end the others, too. Nobody means: at once, and save nothing.
TWICE = {signal.SIGTERM, signal.SIGHUP}
ORPHANED = "the SuperLink has ended; resume the run"  # its processes then get a signal of Flower's
_parents: list[int] = []  # the process that has started this one, if Flower has told its id
_told = threading.Event()
_running: set[threading.Event] = set()  # of each run in a thread: whether it has written all


class Stopped(SystemExit):
    """The run was told to stop; the text says by what, and the code is the exit status."""

    def __init__(self, why: str, status: int) -> None:
        super().__init__(status)
        self.why = why

    def __str__(self) -> str:
        return self.why


def check() -> None:
    """Raise `Stopped` if the process of this run is about to end."""
    if _told.is_set() or not threading.main_thread().is_alive():
        raise Stopped("Flower ended the process of the run", 1)


@contextmanager
def stoppable() -> Iterator[None]:
    """Let signals and Flower raise `Stopped` in this context.

    Then the signal is passed on to the handler that was there before. Ctrl-C remains Python's
    KeyboardInterrupt unless a handler was installed for it.
    """
    if threading.current_thread() is threading.main_thread():
        with _by_signals():
            yield
    else:
        with _by_flower():
            yield


@contextmanager
def _by_signals() -> Iterator[None]:
    before: dict[int, Any] = {}
    came: list[int] = []

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def stop(number: int, frame: FrameType | None) -> None:
        restore()  # a second Ctrl-C ends the process at once
        for again in before.keys() & TWICE:
            signal.signal(again, signal.SIG_IGN)
        came.append(number)
        name = signal.Signals(number).name
        raise Stopped(ORPHANED if any(map(_has_ended, _parents)) else name, 128 + number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # SIGHUP: a closed terminal
        handler = signal.getsignal(number)
        if handler not in (None, signal.SIG_IGN, signal.default_int_handler):
            before[number] = signal.signal(number, stop)
    try:
        yield
    except Stopped:
        former = before.get(came[0]) if came else None
        restore()
        if callable(former):  # Flower's handler, which tells the SuperLink and ends the process
            former(came[0], None)
        raise
    finally:
        restore()


@contextmanager
def _by_flower() -> Iterator[None]:
    written = threading.Event()
    _running.add(written)
    _be_told()
    try:
        yield
    finally:
        written.set()
        _running.remove(written)
        _told.clear()


def _before_the_end() -> None:
    for written in [*_running]:  # a run that is over must not stop the next one
        _told.set()
        written.wait(PATIENCE)


@functools.cache  # once in a process, however many runs it has
def _be_told() -> None:
    """Make Flower wait for the runs before it ends this process."""
    try:
        flower.add_exit_handler(_before_the_end, run_before_force_exit=True)
    except (ImportError, TypeError) as error:
        cost = "a simulation that is stopped possibly leaves no plots and no summary"
        flower.leave_as_it_is("the end of a simulation", str(error), cost)


def end_with_parent(words: list[str]) -> None:
    """End this process soon after its parent (Flower's option `--parent-pid`) has ended.

    Flower asks the process to stop with a signal, but a main thread that waits for other threads
    does not handle it. Threads that try to reach a peer which has ended would then go on for ever
    and keep the run directory locked.
    """
    if "--parent-pid" not in words:
        return
    parent = int(words[words.index("--parent-pid") + 1])
    _parents[:] = [parent]

    def watch() -> None:
        while not _has_ended(parent):
            time.sleep(1.0)
        time.sleep(GRACE)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _has_ended(process: int) -> bool:
    try:
        os.kill(process, 0)
    except OSError as error:  # PermissionError: it exists
        return isinstance(error, ProcessLookupError)
    return False
