"""Errors that end a run: each is one line that says what is wrong and what to do."""

import errno
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from logging import LogRecord
from typing import TypeVar

T = TypeVar("T")

DECLINED = "declined"  # one begins so if a device does not want to work now
WITHHELD = f"{DECLINED}: keeps its scores to itself (scores=false in its node-config)"
GROWN = f"{DECLINED}: its data have grown"  # one begins so if a device has more samples than known
NO_REPLY = "no reply in time"  # the cause of a failure if nothing has come back
DIVERGED = "training diverged"  # a failure's cause begins so if numbers are no longer finite

# What a terminal obeys, such as the escape; not tabs and ends of lines.
OBEYED = dict.fromkeys([*range(9), *range(11, 32), *range(127, 160)], "?")


class RunError(Exception):
    """A run cannot start or continue; the text is one line: what, which value, what is allowed."""

    def __init__(self, message: str) -> None:
        line = " ".join(message.split()).translate(OBEYED)
        super().__init__(line.encode("utf-8", "backslashreplace").decode())  # no surrogates


class MisfitError(RunError):
    """The data of a device cannot be used in a run. The text may hold values of the data.

    `told` is what the server hears of it.
    """

    def __init__(self, message: str, told: str = "") -> None:
        super().__init__(message)
        where = "in the output of its SuperNode (journalctl, docker logs)"  # no log.txt has it
        self.told = told or f"its data cannot be used; why is {where}"


class DivergedError(FloatingPointError):
    """The training of a client has diverged, so its update cannot be used.

    `told` is what the server hears of it.
    """

    def __init__(self, message: str, told: str) -> None:
        super().__init__(message)
        self.told = told


def told_to_server(error: Exception) -> str:
    """Return the text of an error as it may leave a device: without what the server must not see.

    Those are values of the data, and of updates and layers that the client protects.
    """
    return error.told if isinstance(error, MisfitError | DivergedError) else str(error)


def one_line(text: str) -> str:
    """Return the last line of an error text that is not empty, at most 300 characters of it.

    It is `printable`.
    """
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    return printable(lines[-1][:300] if lines else "no reason given")


def printable(text: str) -> str:
    """Return a text with `?` in the place of what is not printable, as a terminal would obey it."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def named(error: BaseException) -> str:
    """Return the type of an error and its text, like `one_line`."""
    return f"{type(error).__name__}: {one_line(str(error))}"


def cause_of(error: Exception, text: str = "") -> str:
    """Return one line with the text of an error; its type comes first if the code may be wrong.

    The `text` is what the server may see, if no other is given.
    """
    clear = isinstance(error, RunError | DivergedError)
    return one_line(text or told_to_server(error)) if clear else named(error)


def as_returned(hook: str, found: T, fits: bool, right: str) -> T:
    """Return what a hook of a method has returned; raises TypeError if it does not fit.

    The commonest slip is a forgotten `return`. `right` says what must be returned.
    """
    if fits:
        return found
    raise TypeError(f"{hook} returned {what_it_is(found)}: must return {right}")


def what_it_is(found: object) -> str:
    """Return `None`, `an int` or `a Tensor [2, 3]`: the type, and the shape if it has one."""
    kind, size = type(found).__name__, f" {[*found.shape]}" if hasattr(found, "shape") else ""
    return "None" if found is None else f"a{'n' * (kind[0] in 'aeioAEIO')} {kind}{size}"


_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE}
_PATH = {errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ENOTDIR, errno.ELOOP}


def refused(error: OSError) -> str:
    """Say in one line what the system refuses of a path or a disk; "" for an error of another kind.

    A disk that is full is not always named, and Python misses "a usable temporary directory" then.
    """
    if error.filename is not None and error.errno in _DISK | _PATH:
        return str(RunError(f"{os.fsdecode(error.filename)}: {error.strerror}"))  # printable
    unnamed = error.filename is None and error.errno in _DISK | {errno.ENOENT}
    return str(error.strerror) if unnamed else ""


_PIP_NAMES = {"PIL": "pillow", "sklearn": "scikit-learn"}  # modules that pip knows by other names


def missing(error: ModuleNotFoundError, install: str = "") -> str:
    """Say which package is missing and how to install it; `install` is what to tell pip."""
    name = (error.name or "").partition(".")[0]
    return f"needs {name}; pip install {install or _PIP_NAMES.get(name, name)}"


@contextmanager
def needed(what: str, install: str = "") -> Iterator[None]:
    """Raise a `RunError` if a package that `what` needs is not installed.

    A device has fewer packages than a simulation needs (`deploy/device-requirements.lock`).
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise RunError(f"{what}: {missing(error, install)}") from error


@contextmanager
def without_lines(logger: str, unwanted: Callable[[LogRecord], bool]) -> Iterator[None]:
    """Keep lines out of the log of a library if `unwanted` is true for them."""

    def keep(record: LogRecord) -> bool:
        return not unwanted(record)

    source = logging.getLogger(logger)
    source.addFilter(keep)
    try:
        yield
    finally:
        source.removeFilter(keep)
