"""What is left of a client's failure where it happens: its traceback, in a file or raised at once.

The server gets one line. The traceback goes into log.txt of the run directory, on a device into
that of its state-dir.
"""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedapps.core import log
from fedapps.core.errors import RunError

FILE = "log.txt"
MOST_BYTES = 2**25  # after which a log gets no more tracebacks
_raising = False


class ClientError(Exception):
    """A client has failed in a run that is to stop there; its own error is the cause."""


class DivergedError(FloatingPointError):
    """A client's training has diverged: settings are to blame, not code."""


@contextmanager
def raising(wanted: bool) -> Iterator[None]:
    """Let failures of clients in this process raise `ClientError` (the serial engine)."""
    global _raising
    before, _raising = _raising, wanted
    try:
        yield
    finally:
        _raising = before


def record(folder: Path, where: str, error: Exception) -> None:
    """Append a failure's traceback to the log in `folder`; `where` is the round, client and stage.

    In a run that is to stop at the first failure, raises `ClientError` afterwards, or `RunError`
    for what says in one line what is wrong already. Training that diverges stops no run.
    """
    if log.has_file(folder / FILE):  # the server's, which runs in this process
        log.debug("%s failed", where, exc_info=error)
    else:
        _append(folder, where, error)
    if not _raising or isinstance(error, DivergedError):  # the server says what to do about it
        return
    if isinstance(error, RunError):
        raise RunError(f"{where}: {error}") from error
    raise ClientError(f"{where}: {type(error).__name__}: {error}") from error


def _append(folder: Path, where: str, error: Exception) -> None:
    """Append to a log file of this process's own; the folder is never made."""
    text = "".join(traceback.format_exception(error))
    path = folder / FILE
    with suppress(OSError):  # the failure itself is still told to the server
        if folder.is_dir() and (not path.exists() or path.stat().st_size < MOST_BYTES):
            with path.open("a", encoding="utf-8", errors="backslashreplace") as file:
                file.write(f"{where}\n{text}\n")
