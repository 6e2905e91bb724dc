"""One command of the command line: its parser, and what its errors and Ctrl-C end in."""

import argparse
import sys
import textwrap
from collections.abc import Callable, Sequence
from typing import NoReturn

from fedapps.core.errors import RunError

INTERRUPTED = 130  # what a shell makes of Ctrl-C


class Paragraphs(argparse.RawDescriptionHelpFormatter):
    """Fills the paragraphs of a description; one that has an indented line stays as it is."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        parts = textwrap.dedent(text).strip().split("\n\n")
        filled = [
            p if "\n " in f"\n{p}" else textwrap.fill(p, width, break_on_hyphens=False)
            for p in parts
        ]
        return textwrap.indent("\n\n".join(filled), indent)


class Parser(argparse.ArgumentParser):
    """Says where settings belong if some stand by themselves, the commonest slip of all."""

    def error(self, message: str) -> NoReturn:
        """Exit with the message and status 2."""
        if message.startswith("unrecognized arguments") and "=" in message:
            message += "; settings stand behind -c, several in one pair of quotes: -c 'a=1 b=2'"
        super().error(message)


def execute(
    prog: str,
    description: str | None,
    add_arguments: Callable[[argparse.ArgumentParser], None],
    run: Callable[[argparse.Namespace], int],
    arguments: Sequence[str] | None,
) -> int:
    """Parse the arguments (None: the process's), run the command and return its exit status.

    An error of the user's is one line. A `KeyboardInterrupt` may carry a text, which is told.
    """
    parser = Parser(
        prog=prog, description=description, formatter_class=Paragraphs, allow_abbrev=False
    )
    add_arguments(parser)
    try:
        return run(parser.parse_args(arguments))
    except RunError as error:
        sys.stdout.flush()
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as stop:
        if str(stop):
            print(stop, file=sys.stderr)
        return INTERRUPTED
