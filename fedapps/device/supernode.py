"""A SuperNode that answers sooner than Flower's, and exits when it has lost its SuperLink for good.

    python -m fedapps.device.supernode ...   # the options of flower-supernode, and --metrics-port

Flower 1.41 sleeps 3 s whenever there is no message, even in the middle of a round, which costs
about 3 s per message. Here a pause is a tenth of the wait so far, and at most as long as Flower's,
so that an idle device polls as rarely as with Flower. Messages are answered by a process that
stays, see `answering.py`.

After an error at which Flower does not retry, such as an expired certificate or a server error,
`flower-supernode` leaves its loop. But its process stays and does nothing, because the thread that
serves its own port still runs, so a supervisor would not restart it. This SuperNode exits instead.
"""

import atexit
import os
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import NoReturn

from fedapps.core import flower
from fedapps.core.errors import RunError, one_line
from fedapps.core.flower import ChangedError, Known, Overlay, leave_as_it_is
from fedapps.core.prometheus import serving
from fedapps.device import exporter
from fedapps.device.answering import LOOP, answer_here
from fedapps.device.connection import keep_trying
from fedapps.device.warm import shorten_backoff

SHORTEST = 0.05  # seconds
PAUSES = Known(
    LOOP.module, {"time": time}, {r"\btime\.(\w+\([\d.]*\))": {"sleep(3)", "sleep(0.5)"}}
)


_serving = ExitStack()  # until the process ends; a server of figures that nobody stops holds it up
atexit.register(_serving.close)


class PollingPause:
    """Replaces the `sleep` of Flower's loop: a pause is a tenth of the wait so far.

    It is also at least nine times as long as it took to ask, so that a server that is busy, or many
    devices at one server, are asked less often. The length of the loop's pause tells what it waits
    for: 3 s for a message, 0.5 s for the app's reply. Each of the two has its own wait. `rest` is
    called before each pause and returns when the last message was answered, if not by Flower, so
    that a new wait began.
    """

    def __init__(self, rest: Callable[[], float] = lambda: 0.0) -> None:
        self.pause, self.since, self.rest = 0.0, 0.0, rest
        self.slept = 0.0  # until when

    def sleep(self, pause: float) -> None:
        """Sleep for at most `pause` seconds, and for less at first."""
        answered, now = self.rest(), time.monotonic()
        if pause != self.pause:
            self.pause, self.since = pause, now
        self.since = max(self.since, answered)
        asking = now - self.slept if self.slept >= self.since else 0.0
        time.sleep(min(pause, max(SHORTEST, (now - self.since) / 10, 9 * asking)))
        self.slept = time.monotonic()


def answer_sooner() -> None:
    """Make Flower's loop pause less, and let one process answer all messages.

    If Flower's code is not as expected, it is left unchanged, with a log line.
    """
    answering = answer_here()
    pause = PollingPause(answering.process.end_idle) if answering else PollingPause()
    try:
        vars(PAUSES.load())["time"] = Overlay(time, sleep=pause.sleep)
    except ChangedError as error:
        leave_as_it_is("the SuperNode's wait", str(error), "a message may take 3 s longer")


def serve_figures() -> None:
    """Serve the device's figures to Prometheus if `--metrics-port` says so; raises `RunError`."""
    port, sys.argv = exporter.without_port(sys.argv)
    if port:
        _serving.enter_context(serving(port, exporter.of_device(sys.argv), exporter.PORT))


def leave(cause: str) -> NoReturn:
    """End this process with all its threads, through Flower's own exit function if possible."""
    try:
        flower.flwr_exit(flower.ExitCode.SUPERNODE_CONNECTION_ERROR, cause)
    except (ImportError, AttributeError, TypeError):
        print(f"error: {cause}", flush=True)
    os._exit(1)


def main() -> None:
    """Run a SuperNode; never returns."""
    os.umask(0o077)  # files that it and its processes write are for this user only
    try:
        serve_figures()
    except RunError as error:
        sys.exit(f"error: {error}")
    shorten_backoff()
    run = flower.command("flower-supernode")
    answer_sooner()
    keep_trying()
    try:
        run()
    except Exception as error:  # for example a bad certificate file; threads would go on
        leave(f"{type(error).__name__}: {one_line(str(error))}")
    leave("Lost the SuperLink.")


if __name__ == "__main__":
    main()
