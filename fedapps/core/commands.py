"""What every command shares: its parser, and how it ends after an error or Ctrl-C."""

import argparse
import sys
import textwrap
from collections.abc import Callable, Sequence
from typing import NoReturn

from fedapps.core import log
from fedapps.core.errors import RunError, missing, refused

INTERRUPTED = 130  # exit status that shells report after Ctrl-C


class Paragraphs(argparse.RawDescriptionHelpFormatter):
    """Wraps the paragraphs of a description; one with an indented line stays as it is."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        parts = textwrap.dedent(text).strip().split("\n\n")
        filled = [
            p if "\n " in f"\n{p}" else textwrap.fill(p, width, break_on_hyphens=False)
            for p in parts
        ]
        return textwrap.indent("\n\n".join(filled), indent)


class Parser(argparse.ArgumentParser):
    """Says where settings belong if they stand alone, which is the most common mistake."""

    def error(self, message: str) -> NoReturn:
        """Print the message and exit with status 2."""
        if message.startswith("unrecognized arguments") and "=" in message:
            message += "; write settings after -c, several in one pair of quotes: -c 'a=1 b=2'"
        super().error(message)


def execute(
    prog: str,
    description: str | None,
    add_arguments: Callable[[argparse.ArgumentParser], None],
    run: Callable[[argparse.Namespace], int],
    arguments: Sequence[str] | None,
) -> int:
    """Parse the arguments, run the command, and return its exit status.

    If `arguments` is None, the arguments of the process are parsed. A `RunError`, and what the
    system refuses, is printed as one line. If a `KeyboardInterrupt` carries a text, the text is
    printed.
    """
    parser = Parser(
        prog=prog, description=description, formatter_class=Paragraphs, allow_abbrev=False
    )
    add_arguments(parser)
    log.open_closed()
    log.writable(sys.stdout)  # what a run prints at its end must not be lost
    try:
        return _ended(run(parser.parse_args(arguments)))
    except RunError as error:
        return _ended(1, str(error))
    except ModuleNotFoundError as error:  # a device has not all packages
        if (error.name or "").startswith("fedapps"):
            raise
        return _ended(1, f"{prog}: {missing(error)}")
    except OSError as error:
        if not (line := refused(error)):
            raise
        return _ended(1, line)
    except KeyboardInterrupt as stop:
        if str(stop):
            print(stop, file=sys.stderr)
        return INTERRUPTED


def _ended(status: int, line: str = "") -> int:
    """Print the line of an error, and return the exit status: 1 if what was printed is lost."""
    try:
        sys.stdout.flush()
    except OSError as error:
        log.drop_output()
        if not isinstance(error, BrokenPipeError):  # its reader has not asked for less
            status, line = status or 1, f"standard output: {error.strerror or error}"
    if line:
        print(f"error: {line}", file=sys.stderr)
    return status
