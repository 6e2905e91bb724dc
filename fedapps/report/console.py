"""The console for printed tables: at most 100 columns, without colors in a file or pipe."""

import sys

from rich import console as rich

from fedapps.core import log
from fedapps.report.units import LINE_WIDTH


class Console(rich.Console):
    """Prints nothing more if the reader has gone; rich would end the process instead."""

    def on_broken_pipe(self) -> None:
        """Go on: what is on its way must not be lost."""
        log.drop_output()


def console() -> Console:
    """Return a console for standard output; colors and bold face are for terminals only."""
    terminal = getattr(sys.stdout, "isatty", lambda: False)()  # it can be a program's own
    return Console(
        width=LINE_WIDTH,
        force_terminal=terminal,
        no_color=not terminal,
        highlight=False,
        markup=False,
        emoji=False,
    )


def readable(text: str, on: Console) -> str:
    """Return a text with `+-` for the plus-minus sign if the console's encoding may lack it."""
    return text if on.encoding.startswith("utf") else text.replace("±", "+-")
