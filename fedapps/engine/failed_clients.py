"""Record a client's failure in the process where it happens: write its traceback, or raise it.

The server gets one line. The traceback goes into log.txt of the run directory, or on a device into
log.txt of its state-dir.
"""

import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from itertools import chain
from pathlib import Path

from fedapps.core import log
from fedapps.core.errors import DivergedError, RunError, cause_of
from fedapps.models.layers import Arrays
from fedapps.training.workspace import Workspace
from fedapps.wire.checks import LARGEST, NOT_FINITE, invalid_loss, invalid_values

MOST_BYTES = 2**25  # a log that is larger gets no more tracebacks
_raising = False


class ClientError(Exception):
    """A client has failed in a run that stops at the first failure; its error is the cause."""


@contextmanager
def raising(wanted: bool) -> Iterator[None]:
    """Make failures of clients in this process raise `ClientError`; for the serial engine."""
    global _raising
    before, _raising = _raising, wanted
    try:
        yield
    finally:
        _raising = before


def is_raising() -> bool:
    """Tell whether a client that fails ends the run."""
    return _raising


def record(folder: Path, where: str, error: Exception, aloud: bool = False) -> None:
    """Append a failure's traceback to the log in `folder`; `where` is the round, client and stage.

    If `aloud`, it also prints a line: on a device nobody sees what the server prints. In a run that
    stops at the first failure, it then raises `ClientError`, or `RunError` if the error is one (its
    message already says in one line what is wrong). Training that diverges does not stop a run
    here.
    """
    path, written = folder / log.FILE, True
    if log.has_file(path):  # the server runs in this process and writes this log
        log.debug("%s failed", where, exc_info=error)
    else:
        written = _append(path, where, error)
    if aloud and not _raising:
        place = "is in" if written else "could not be written to"
        log.warning("%s: %s; its traceback %s %s", where, cause_of(error, str(error)), place, path)
    if not _raising or isinstance(error, DivergedError):  # the server decides what to do
        return
    if isinstance(error, RunError):
        raise RunError(f"{where}: {error}") from error
    raise ClientError(f"{where}: {type(error).__name__}: {error}") from error


def diverged(space: Workspace, sent: Arrays, kept: Arrays, metrics: Mapping) -> tuple[str, str]:
    """Say what in an update or state is not finite or too large, and how the server is told.

    Both are empty if nothing is. The server would refuse such an update, and it would spoil a
    pre-summed mean or later rounds. In the state, arrays with names of model arrays are limited by
    `max-value`; others, such as gradient norms, need only be finite. If the client protects its
    update, the server hears no number, and no name of what stays on the client.
    """
    s = space.settings
    limit, noise, hides = s.max_value, s.dp.suspicion, s.secure_sum or s.dp.by_clients
    where = "how large is in the client's own log"
    for key, array in chain(kept.items(), sent.items()):
        model = key in sent or key.partition("/")[2] in space.layout.shapes
        if problem := invalid_values(array, limit if model else LARGEST):
            what = key if key in sent else "what stays on the client"
            vague = f"{what} is not finite"
            if problem != NOT_FINITE:
                vague = f"{what} is too large: at most {limit:g} (max-value), {where}"
            full = f"{key} is {problem}{noise}"
            return full, vague + noise if hides else full
    loss, samples = metrics.get("loss", 0.0), metrics.get("samples", 0)
    if isinstance(loss, float) and (problem := invalid_loss(loss, samples, limit)):
        vague = (
            f"a loss that is not finite or too large: at most {limit:g} each (max-value), {where}"
        )
        return problem + noise, (vague if hides else problem) + noise
    return "", ""


def unusable(space: Workspace, extras: Arrays, sender: str) -> str:
    """Say which further array in an update is not finite or too large; empty if none is.

    Ask `diverged` first. If the model is usable, the likely reason is the code of the `sender`.
    """
    for name, array in extras.items():
        if problem := invalid_values(array, space.settings.max_value):
            although = ", although the model is" if problem == NOT_FINITE else ""
            return f"{name}, which {sender} sends, is {problem}{although}"
    return ""


def _append(path: Path, where: str, error: Exception) -> bool:
    """Append to a log file; return whether that was possible: its folder exists, it is not full.

    The time tells the runs apart, because the log of a device has those of all.
    """
    text = "".join(traceback.format_exception(error))
    now = f"{datetime.now():%Y-%m-%d %H:%M:%S}"
    with suppress(OSError):  # the server is told of the failure in any case
        if path.parent.is_dir() and (not path.exists() or path.stat().st_size < MOST_BYTES):
            with path.open("a", encoding="utf-8", errors="backslashreplace") as file:
                file.write(f"{now} {where}\n{text}\n")
            return True
    return False
