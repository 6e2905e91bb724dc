"""A run that is told to stop: by a signal to this process, or because Flower ends it.

Whoever is told writes down what there is before the process ends, so being told raises `Stopped` in
the thread of the run. In the main thread the signal itself does that. In a simulation the run has a
thread of its own while Flower's main thread gets the signals; there the run asks from time to time
(`check`), and Flower's end of the process waits for it.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from fedapps.core import flower

PATIENCE = 20.0  # seconds that the end of the process waits for a run in another thread
_told = threading.Event()


class Stopped(SystemExit):
    """The run has been told to stop; its text says by what, its code is the exit status."""

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
    """Let signals and Flower raise `Stopped` in here; it goes on to whoever had the signal before.

    Ctrl-C is Python's KeyboardInterrupt where nobody else has taken it.
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
        restore()  # a second one ends the process at once, but for
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # that of a terminal, which often comes twice
        came.append(number)
        raise Stopped(signal.Signals(number).name, 128 + number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # the last: a closed terminal
        handler = signal.getsignal(number)
        if handler not in (None, signal.SIG_IGN, signal.default_int_handler):
            before[number] = signal.signal(number, stop)
    try:
        yield
    except Stopped:
        former = before.get(came[0]) if came else None
        if callable(former):  # Flower's own, which tells the SuperLink and ends the process
            former(came[0], None)
        raise
    finally:
        restore()


@contextmanager
def _by_flower() -> Iterator[None]:
    written = threading.Event()

    def before_the_end() -> None:
        if not written.is_set():  # of a run that is over, the next one is not told
            _told.set()
            written.wait(PATIENCE)

    _at_the_end(before_the_end)
    try:
        yield
    finally:
        written.set()
        _told.clear()


def _at_the_end(function: Callable[[], None]) -> None:
    """Have Flower call a function before it ends this process, and wait for it."""
    try:
        flower.add_exit_handler(function, run_before_force_exit=True)
    except (ImportError, TypeError) as error:
        cost = "a simulation that is stopped may leave no plots and no summary"
        flower.leave_as_it_is("the end of a simulation", str(error), cost)
