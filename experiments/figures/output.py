"""What the commands of figures share: their options, the printed table, the picture."""

import argparse
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from matplotlib.figure import Figure
from rich import box
from rich.table import Column, Table

from experiments.papers.table import SCALES
from fedapps.core.errors import RunError
from fedapps.drawing import pictures
from fedapps.report.console import console

KINDS = (".png", ".svg", ".pdf")


def add_table(parser: argparse.ArgumentParser) -> None:
    """Add the table of which a command tells, and the option `--scale`."""
    parser.add_argument("table")
    parser.add_argument("--scale", choices=SCALES, default="cpu")


def add_plot(parser: argparse.ArgumentParser, required: bool = False) -> None:
    """Add the option `--plot`; its file must end in one of `KINDS`."""
    parser.add_argument(
        "--plot",
        type=_picture,
        required=required,
        metavar="FILE",
        help="draw the figure into this file: .png, .svg or .pdf",
    )


def _picture(text: str) -> Path:
    path = Path(text)
    if path.suffix not in KINDS:
        raise RunError(f"--plot {text}: must end in {', '.join(KINDS)}")
    return path


def print_table(heads: Sequence[str], rows: Iterable[Sequence[str]], texts: int = 1) -> None:
    """Print a table; the first `texts` columns are texts, the others numbers."""
    numbers = (Column(head, justify="right") for head in heads[texts:])
    table = Table(*heads[:texts], *numbers, box=box.SIMPLE)
    for row in rows:
        table.add_row(*row)
    console().print(table)


def save_plot(draw: Callable[[], Figure], path: Path | None) -> None:
    """Draw a figure in the common style, save it and print its path, if there is a path."""
    if path:
        pictures.write(draw, path)
        print(path)
