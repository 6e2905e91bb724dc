"""Flower's SuperExec for a SuperNode, but its processes start with the libraries loaded.

Flower starts a process for each message, which spends most of its time on loading torch: 2.8 s of a
core on the machine of docs/devices.md, more on a small device. Here one process (`warm.py`) loads
the libraries, and each message gets a fork of it.

A message that comes while the libraries are still being loaded gets an ordinary process of Flower.
Such a process reports to Flower at once. That is necessary, because Flower gives up a message if it
hears nothing of its process for 30 s.
"""

import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedapps.core import flower
from fedapps.core.flower import ChangedError, Known, Overlay, leave_as_it_is

WARM = (sys.executable, "-P", str(Path(__file__).with_name("warm.py")))
INSTALL = "--allow-runtime-dependency-installation"  # gives each message its own environment
EXECUTOR = Known(
    "flwr.supercore.superexec.executor.subprocess_executor",
    holds={"subprocess": subprocess},
    finds={r"\bsubprocess\.(\w+)": {"Popen", "DEVNULL"}, f'"({INSTALL})"': {INSTALL}},
    parameters={
        "SubprocessExecutor.launch": ("self", "spec"),
        "SubprocessExecutor.reconcile": ("self",),
    },
)
IDLE = 600.0  # seconds without a message after which the warm process ends to free memory


class Forks:
    """Starts processes like `Popen`, except that those for messages are forks.

    The forks are made by a warm process. It is started at the first message, and ended when no
    message has come for `IDLE` seconds.
    """

    def __init__(self) -> None:
        self.warm: subprocess.Popen[bytes] | None = None
        self.loading: io.FileIO | None = None  # a pipe, until the warm process has loaded all
        self.used = 0.0  # when the last message came

    def start(self, command: Sequence[str], **options: Any) -> None:
        """Start a process, as a fork or in the ordinary way; `options` are those of `Popen`."""
        if (
            command[0] != "flwr-clientapp"
            or INSTALL in command
            or options
            or not self.fork(command)
        ):
            subprocess.Popen(command, **options)

    def fork(self, command: Sequence[str]) -> bool:
        """Have a message's process forked; return False while the warm process is not ready."""
        if self.warm is None or self.warm.poll() is not None:
            self.warm = self._begin()
        assert self.warm.stdin is not None
        self.used = time.monotonic()
        if not self.loaded():
            return False
        try:
            self.warm.stdin.write(json.dumps(command).encode() + b"\n")
        except BrokenPipeError:
            return False
        return True

    def loaded(self) -> bool:
        """Tell whether the warm process has loaded the libraries."""
        if self.loading is not None and self.loading.read(1):  # does not wait for the byte
            self.loading.close()
            self.loading = None
        return self.warm is not None and self.loading is None

    def _begin(self) -> subprocess.Popen[bytes]:
        """Start the warm process; it says through a pipe when it has loaded the libraries."""
        if self.loading is not None:  # the pipe of a warm process that was killed
            self.loading.close()
        reads, writes = os.pipe()
        os.set_blocking(reads, False)
        self.loading = io.FileIO(reads)
        try:
            words = (*WARM, str(writes))
            return subprocess.Popen(words, stdin=subprocess.PIPE, bufsize=0, pass_fds=[writes])
        finally:
            os.close(writes)

    def end_idle(self) -> None:
        """End the warm process if it has been idle for long; its forks go on."""
        if self.warm is not None and time.monotonic() - self.used > IDLE:
            self.warm.communicate()
            self.warm = None


def start_messages_as_forks(forks: Forks) -> None:
    """Make Flower's executor start the processes of messages as forks.

    If Flower's executor is not as expected, it is left unchanged, with a log line.
    """
    try:
        module = EXECUTOR.load()
    except ChangedError as error:
        cost = "each message is a new process that loads the libraries, which takes seconds"
        leave_as_it_is("SuperExec", str(error), cost)
        return

    def reconcile(self: object) -> None:  # Flower calls it whenever it looks for a message
        known(self)
        forks.end_idle()

    known = module.SubprocessExecutor.reconcile
    module.SubprocessExecutor.reconcile = reconcile
    vars(module)["subprocess"] = Overlay(subprocess, Popen=forks.start)


def main() -> None:
    """Run a SuperExec with the options of `flower-superexec`; never returns."""
    run = flower.command("flower-superexec")
    start_messages_as_forks(Forks())
    run()


if __name__ == "__main__":
    main()
