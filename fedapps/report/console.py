"""Where tables are printed: at most 100 columns, plain where nobody watches."""

import sys

from rich.console import Console

from fedapps.report.progress import LINE_WIDTH


def console() -> Console:
    """Return a console for standard output; colours and bold face only on a terminal."""
    terminal = sys.stdout.isatty()
    return Console(
        width=LINE_WIDTH,
        force_terminal=terminal,
        no_color=not terminal,
        highlight=False,
        markup=False,
        emoji=False,
    )


def readable(text: str, on: Console) -> str:
    """Return a text without the signs that a console's encoding may lack."""
    return text if on.encoding.startswith("utf") else text.replace("±", "+-")
