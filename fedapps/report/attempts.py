"""Errors while a run directory is written: collected to be raised later, or put into words."""

from collections.abc import Callable

from fedapps.core.errors import RunError
from fedapps.core.stopping import Stopped


def attempt(write: Callable[[], None]) -> list[RunError]:
    """Call `write`; return its `RunError` in a list, which is empty if there is none."""
    try:
        write()
    except RunError as error:
        return [error]
    return []


def cause(error: BaseException) -> str:
    """Say why a run has ended."""
    if isinstance(error, KeyboardInterrupt):
        return "Ctrl-C"
    return str(error) if isinstance(error, RunError | Stopped) else said(error)


def said(error: BaseException) -> str:
    """Return an error in one line, with its type."""
    return " ".join(f"{type(error).__name__}: {error}".split())
