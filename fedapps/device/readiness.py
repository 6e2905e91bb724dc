"""A device's say in when it works: the command `ready` of its node-config."""

import os
import shlex
import shutil
import signal
import subprocess
from contextlib import suppress

from fedapps.core.errors import DECLINED, RunError

SECONDS = 10.0  # a command that takes longer says no


class DeclinedError(RunError):
    """A device takes no part now. It is no failure, and the server hears the reason."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"{DECLINED}: its ready command {reason}")


def words(command: str) -> list[str]:
    """Split a command as a shell does; raises `RunError` if it cannot be run."""
    try:
        found = shlex.split(command)
    except ValueError as error:
        raise RunError(f'node-config: ready = "{command}": {error}') from error
    if not found or shutil.which(found[0]) is None:
        raise RunError(
            f'node-config: ready = "{command}": must be a command that can be run, such as'
            " /usr/local/bin/idle"
        )
    return found


def check(command: str) -> None:
    """Raise `DeclinedError` unless the command ends with status 0; without one, it is always so."""
    if not command:
        return
    silent = subprocess.DEVNULL
    try:
        started = subprocess.Popen(
            words(command), stdin=silent, stdout=silent, stderr=silent, start_new_session=True
        )
    except (OSError, RunError) as error:  # it was there when the device was started
        raise DeclinedError("cannot be run") from error
    with started:
        try:
            status = started.wait(SECONDS)
        except BaseException as error:
            with suppress(OSError):  # all that it has started ends with it
                os.killpg(started.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                raise DeclinedError(f"takes more than {SECONDS:g} s") from error
            raise
    if status:
        raise DeclinedError(f"ends with status {status}")
