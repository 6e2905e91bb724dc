"""Errors that end a run: each is one line that says what is wrong and what to do."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from logging import LogRecord

DIVERGED = "training diverged"  # a failure's cause begins so if numbers are no longer finite


class RunError(Exception):
    """A run cannot start or continue; the text is one line: what, which value, what is allowed."""

    def __init__(self, message: str) -> None:
        line = " ".join(message.split())
        super().__init__(line.encode("utf-8", "backslashreplace").decode())  # no surrogates


def one_line(text: str) -> str:
    """Return the last line of an error text that is not empty, at most 300 characters of it.

    Characters that are not printable, such as control codes of a terminal, become `?`.
    """
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    last = lines[-1][:300] if lines else "no reason given"
    return "".join(letter if letter.isprintable() else "?" for letter in last)


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
