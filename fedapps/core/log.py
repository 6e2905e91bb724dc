"""The one way to say what goes on: `log.info`, `log.warning`, ... print a line at once.

Lines go to standard output, because that is what Flower and Ray carry from their processes to the
user: warnings and errors begin with `warning: ` and `error: `, others are the text alone. The
environment variable FEDAPPS_LOG (debug, info, warning or error; info if unset) says from which
level on. A traceback (`log.exception`) is shown with FEDAPPS_LOG=debug only; a file that `to_file`
attached gets everything.
"""

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from logging.handlers import MemoryHandler
from pathlib import Path
from typing import TextIO

from fedapps.core.errors import RunError

LEVEL = "FEDAPPS_LOG"
LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
MOST_EARLY = 10_000  # lines that wait for a file
NEVER = logging.CRITICAL + 1  # no line is as important as to be written before there is one
logger = logging.getLogger("fedapps")
# The logger's own methods: a record carries the place in the code that calls them.
debug, info, warning = logger.debug, logger.info, logger.warning
error, exception = logger.error, logger.exception


class _Lines(logging.Formatter):
    """A record as a line: the text, with the level before warnings and errors."""

    def format(self, record: logging.LogRecord) -> str:
        prefix = f"{record.levelname.lower()}: " if record.levelno >= logging.WARNING else ""
        line = prefix + record.getMessage()
        if record.exc_info and _stdout.level <= logging.DEBUG:
            line += "\n" + self.formatException(record.exc_info)
        return line


class _Stdout(logging.StreamHandler[TextIO]):
    """Writes to what is standard output now: Flower replaces it in its processes."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)
        self.setFormatter(_Lines())

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        """Standard output."""
        return sys.stdout


class _File(logging.FileHandler):
    """A file that a full disk keeps lines from, and nothing else."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Leave the line out: whatever else cannot be written says so."""


@contextmanager
def remembering() -> Iterator[None]:
    """Keep what is said until `to_file` writes it, too."""
    early = MemoryHandler(MOST_EARLY, flushLevel=NEVER, flushOnClose=False)
    logger.addHandler(early)
    try:
        yield
    finally:
        logger.removeHandler(early)


@contextmanager
def to_file(path: Path) -> Iterator[None]:
    """Also append everything, debug lines and tracebacks too, to a file, with time and level.

    What was said before while `remembering` comes first. Raises `RunError` if the file cannot be
    written.
    """
    try:
        handler = _File(path, encoding="utf-8", errors="backslashreplace")
    except OSError as failure:
        raise RunError(f"cannot write {path}: {failure.strerror or failure}") from failure
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


def has_file(path: Path) -> bool:
    """Tell whether lines of this process are written to that file."""
    files = [h for h in logger.handlers if isinstance(h, logging.FileHandler)]
    return any(Path(handler.baseFilename) == path.absolute() for handler in files)


def set_level(name: str) -> None:
    """Show lines from level `name` on; an unknown one is warned of and taken as info."""
    _stdout.setLevel(LEVELS.get(name, logging.INFO))
    if name not in LEVELS:
        warning(f'{LEVEL} = "{name}": must be one of {", ".join(LEVELS)}; info is used')


_stdout = _Stdout()
logger.setLevel(logging.DEBUG)  # the handlers choose
logger.propagate = False  # or the root's handlers, Flower's and Ray's, would say it again
logger.handlers = [_stdout]
set_level(os.environ.get(LEVEL, "").lower() or "info")
