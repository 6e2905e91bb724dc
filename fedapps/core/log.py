"""The one log of the project: `log.info`, `log.warning`, ... print a line at once.

Lines go to standard output, because Flower and Ray carry that from their processes to the user.
Warnings and errors begin with `warning: ` and `error: `; other lines are the text alone. The
environment variable FEDAPPS_LOG sets the lowest level that is printed: debug, info (the default),
warning or error. Tracebacks (`log.exception`) are printed only with FEDAPPS_LOG=debug. A file that
`to_file` has attached gets everything. What a terminal would obey, as in a name of a class, is `?`.
"""

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import StringIO, TextIOWrapper
from logging.handlers import MemoryHandler
from pathlib import Path
from typing import TextIO

from fedapps.core.errors import OBEYED
from fedapps.core.files import writing

LEVEL = "FEDAPPS_LOG"
LEVELS = ("debug", "info", "warning", "error")
FILE = "log.txt"  # in a run directory: all lines; in a state-dir: tracebacks
MOST_EARLY = 10_000  # the largest number of lines that are kept until there is a file
NEVER = logging.CRITICAL + 1  # a level above all lines: none makes the memory write early
logger = logging.getLogger("fedapps")
# These are the logger's own methods, so that a record names the line of code that calls them.
debug, info, warning = logger.debug, logger.info, logger.warning
error, exception = logger.error, logger.exception


def writable(stream: TextIO) -> TextIO:
    """Let a stream write letters that its encoding does not have as escapes; return it."""
    if isinstance(stream, TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
        with suppress(OSError, ValueError):  # it is closed
            stream.reconfigure(errors="backslashreplace")
    return stream


def open_closed() -> None:
    """Open the standard streams that are closed, so that no file gets their places."""
    while (null := os.open(os.devnull, os.O_RDWR)) <= 2:  # it takes the first free place
        os.set_inheritable(null, True)
    os.close(null)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))


def drop_output() -> None:
    """Let standard output go nowhere from now on: its reader has gone, or its disk is full."""
    with open(os.devnull, "wb") as null:
        os.dup2(null.fileno(), 1)


@contextmanager
def expendable() -> Iterator[None]:
    """Drop what is printed in this context, and all output after it, if it cannot be written.

    So what is on its way goes on. All that is printed so is also in a file.
    """
    try:
        yield
    except OSError:
        drop_output()


class _Lines(logging.Formatter):
    """Formats a record: its text, after `warning: ` or `error: ` if it has such a level."""

    def format(self, record: logging.LogRecord) -> str:
        prefix = f"{record.levelname.lower()}: " if record.levelno >= logging.WARNING else ""
        line = prefix + record.getMessage()
        if record.exc_info and _stdout.level <= logging.DEBUG:
            line += "\n" + self.formatException(record.exc_info)
        return line.translate(OBEYED)


class _Stdout(logging.StreamHandler[TextIO]):
    """Writes to whatever standard output is at the moment, because Flower replaces it."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)
        self.setFormatter(_Lines())

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        """Standard output; nowhere if the process has none."""
        return StringIO() if sys.stdout is None else writable(sys.stdout)

    def handleError(self, record: logging.LogRecord) -> None:
        """Print nothing more if the reader has gone, as with `| head`; log.txt has all lines."""
        if isinstance(sys.exc_info()[1], OSError):
            drop_output()
        else:
            super().handleError(record)


class _File(logging.FileHandler):
    """A log file; if the disk is full it loses lines, and nothing else happens."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the text of a record."""
        return super().format(record).translate(OBEYED)

    def handleError(self, record: logging.LogRecord) -> None:
        """Drop the line: every other file that cannot be written reports the full disk."""


@contextmanager
def remembering() -> Iterator[None]:
    """Keep all lines that are logged in this context, until `to_file` writes them to a file too."""
    early = MemoryHandler(MOST_EARLY, flushLevel=NEVER, flushOnClose=False)
    logger.addHandler(early)
    try:
        yield
    finally:
        logger.removeHandler(early)


@contextmanager
def to_file(path: Path) -> Iterator[None]:
    """Also append every line, even debug lines and tracebacks, to a file, with time and level.

    Lines that `remembering` has kept come first. Raises `RunError` if the file cannot be written.
    """
    with writing(path):
        handler = _File(path, encoding="utf-8", errors="backslashreplace")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    for early in [h for h in logger.handlers if isinstance(h, MemoryHandler)]:
        logger.removeHandler(early)
        early.setTarget(handler)
        early.flush()
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        with suppress(OSError):
            handler.close()


@contextmanager
def shown_by(handler: logging.Handler) -> Iterator[None]:
    """Let a handler show the lines in this context, and print none of them."""
    handler.setFormatter(_Lines())
    handler.setLevel(_stdout.level)
    logger.removeHandler(_stdout)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.addHandler(_stdout)


def is_printed() -> bool:
    """Tell whether lines go to standard output, as they do except in a `shown_by`."""
    return _stdout in logger.handlers


def has_file(path: Path) -> bool:
    """Tell whether this process writes its log lines to that file."""
    files = [h for h in logger.handlers if isinstance(h, logging.FileHandler)]
    return any(Path(handler.baseFilename) == path.absolute() for handler in files)


def set_level(name: str) -> None:
    """Print lines from level `name` on; for an unknown level, print a warning and take info."""
    _stdout.setLevel(name.upper() if name in LEVELS else logging.INFO)
    if name not in LEVELS:
        warning(f'{LEVEL} = "{name}": must be one of {", ".join(LEVELS)}; info is used')


_stdout = _Stdout()
logger.setLevel(logging.DEBUG)  # the handlers select by level
logger.propagate = False  # otherwise Flower's and Ray's handlers would print each line again
logger.handlers = [_stdout]
set_level(os.environ.get(LEVEL, "").lower() or "info")
