"""What the commands that draw a figure share: the option `--plot`, and saving the figure."""

import argparse
from collections.abc import Callable
from pathlib import Path

from matplotlib.figure import Figure

from fedapps.core.errors import RunError
from fedapps.drawing import pictures

KINDS = (".png", ".svg", ".pdf")


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


def save_plot(draw: Callable[[], Figure], path: Path) -> None:
    """Draw a figure in the common style, save it and print its path."""
    pictures.write(draw, path)
    print(path)
