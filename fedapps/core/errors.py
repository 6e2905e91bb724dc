"""What ends a run, and what is said of it: one line that says what is wrong and what to do."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from logging import LogRecord

DIVERGED = "training diverged"  # begins the cause where a client's numbers are not finite any more


class RunError(Exception):
    """A run cannot start or go on; its text is one line: what, which value, what is allowed."""

    def __init__(self, message: str) -> None:
        line = " ".join(message.split())
        super().__init__(line.encode("utf-8", "backslashreplace").decode())  # it can be written


def one_line(text: str) -> str:
    """Shorten an error text to its last telling line, without characters that steer a terminal."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    last = lines[-1][:300] if lines else "no reason given"
    return "".join(letter if letter.isprintable() else "?" for letter in last)


@contextmanager
def without_lines(logger: str, unwanted: Callable[[LogRecord], bool]) -> Iterator[None]:
    """Keep unwanted lines of a library out of the log."""

    def keep(record: LogRecord) -> bool:
        return not unwanted(record)

    source = logging.getLogger(logger)
    source.addFilter(keep)
    try:
        yield
    finally:
        source.removeFilter(keep)
