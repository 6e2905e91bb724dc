"""A SuperNode that answers sooner, and ends when it has lost its SuperLink for good.

    python -m fedapps.device.supernode ...   # the options of flower-supernode

Flower 1.41 sleeps 3 s whenever no message is there, also in the middle of a round: some 3 s of each
message. Here a pause is a tenth of the wait so far and no longer than Flower's, so that an idle
device asks as rarely as ever. And each message's process starts with its libraries loaded, see
`superexec.py`.

At an answer that Flower does not try again at, as an expired certificate or an error of the
server, `flower-supernode` leaves its loop and stays as a process that does nothing, because the
thread that serves its own port is still there. A supervisor sees no reason to start it again.
"""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any, NoReturn

from fedapps.core import flower
from fedapps.core.errors import one_line
from fedapps.core.flower import ChangedError, Known, Overlay, leave_as_it_is
from fedapps.device.warm import shorten_backoff

SHORTEST = 0.05  # seconds
SUPEREXEC = (sys.executable, "-m", "fedapps.device.superexec")
LOOP = "flwr.supernode.start_client_internal"
PAUSES = Known(LOOP, {"time": time}, {r"\btime\.(\w+\([\d.]*\))": {"sleep(3)", "sleep(0.5)"}})
STARTS = Known(
    LOOP,
    {"subprocess": subprocess},
    {r"\bsubprocess\.(\w+)": {"Popen"}, r"\bcommand = (.*)": {'["flower-superexec"]'}},
)


class PollingPause:
    """The `sleep` of Flower's loop: a pause is a tenth of the wait so far.

    The loop's pauses tell what it waits for: a message, 3 s, or the app's reply, 0.5 s.
    """

    def __init__(self) -> None:
        self.pause, self.since = 0.0, 0.0

    def sleep(self, pause: float) -> None:
        """Sleep `pause` seconds at most, and at first less."""
        now = time.monotonic()
        if pause != self.pause:
            self.pause, self.since = pause, now
        time.sleep(min(pause, max(SHORTEST, (now - self.since) / 10)))


def start_superexec(command: Sequence[str], **options: Any) -> "subprocess.Popen[bytes]":
    """Start a process as `Popen` does, our SuperExec with its options in place of Flower's."""
    if command[0] == "flower-superexec":
        command = [*SUPEREXEC, *command[1:]]
    return subprocess.Popen(command, **options)


def poll_sooner() -> None:
    """Let Flower's loop pause less and start our SuperExec.

    What is not as we know it is left as it is, with a line that says so.
    """
    try:
        vars(PAUSES.load())["time"] = Overlay(time, sleep=PollingPause().sleep)
    except ChangedError as error:
        leave_as_it_is("the SuperNode's wait", str(error), "a message may take 3 s longer")
    try:
        vars(STARTS.load())["subprocess"] = Overlay(subprocess, Popen=start_superexec)
    except ChangedError as error:
        cost = "each message is a new process that loads the libraries, which takes seconds"
        leave_as_it_is("the SuperNode's SuperExec", str(error), cost)


def leave(cause: str) -> NoReturn:
    """End this process with all its threads; Flower says goodbye, if it does that as we know."""
    try:
        flower.flwr_exit(flower.ExitCode.SUPERNODE_CONNECTION_ERROR, cause)
    except (ImportError, AttributeError, TypeError):
        print(f"error: {cause}", flush=True)
    os._exit(1)


def main() -> None:
    """Run a SuperNode; never returns."""
    os.umask(0o077)  # what it and its processes write is for this user alone
    shorten_backoff()
    run = flower.command("flower-supernode")
    poll_sooner()
    try:
        run()
    except Exception as error:  # as of a file that is no certificate; threads would go on
        leave(f"{type(error).__name__}: {one_line(str(error))}")
    leave("Lost the SuperLink.")


if __name__ == "__main__":
    main()
