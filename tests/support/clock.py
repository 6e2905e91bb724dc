"""A clock that only the test moves, for code that waits for a while and then gives up.

What a busy machine does in the meantime makes no difference: a wait ends when something arrives
or when the test says that its time is over, never because the test itself was slow.
"""

import queue
import time
from collections import deque
from threading import Condition
from types import SimpleNamespace

PATIENCE = 120.0  # seconds after which a test that waits for an event has failed


def until(condition, told="waited in vain", seconds=PATIENCE):
    """Wait until something is true, and fail with what is `told` if it never is."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, told
        time.sleep(0.005)


class Passing:
    """Time in seconds, which passes in `sleep` and where a test adds to `now`; `slept`: pauses."""

    def __init__(self):
        self.now, self.slept = 0.0, []

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds
        self.slept.append(seconds)


def passing(monkeypatch, *modules):
    """Let time pass only in the `time.sleep` of these modules; return the clock."""
    clock = Passing()
    for module in modules:
        monkeypatch.setattr(module, "time", clock)
    return clock


class Clock:
    """A clock in seconds, and queues whose waits end by it.

    `waits` are the limits in seconds of the waits that are on.
    """

    def __init__(self):
        self.now = 0.0
        self.waits = []
        self.changed = Condition()

    def rule(self, monkeypatch, *modules):
        """Take the place of `time.monotonic`, and of queues where they are used, in modules."""
        queues = SimpleNamespace(Queue=self.queue, SimpleQueue=self.queue, Empty=queue.Empty)
        for module in modules:
            if hasattr(module, "time"):
                monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now))
            if hasattr(module, "queue"):
                monkeypatch.setattr(module, "queue", queues)

    def queue(self):
        """Return a new queue."""
        return ClockedQueue(self)

    def move(self, seconds):
        """Let time go by."""
        with self.changed:
            self.now += seconds
            self.changed.notify_all()


class ClockedQueue:
    """A queue of any length; the timeouts of `get` are those of the clock."""

    def __init__(self, clock):
        self.clock, self.items = clock, deque()

    def put(self, item):
        """Put an item at the end."""
        with self.clock.changed:
            self.items.append(item)
            self.clock.changed.notify_all()

    def get(self, timeout=None):
        """Return the first item; raises `queue.Empty` if none comes in `timeout` seconds."""
        clock = self.clock
        with clock.changed:
            end = None if timeout is None else clock.now + timeout
            if timeout is not None:
                clock.waits.append(timeout)
            clock.changed.wait_for(lambda: self.items or (end is not None and clock.now >= end))
            if timeout is not None:
                clock.waits.remove(timeout)
            if not self.items:
                raise queue.Empty
            return self.items.popleft()

    def qsize(self):
        """Return the number of items."""
        return len(self.items)
