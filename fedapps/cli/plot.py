"""Draw the plots of a run again, for example as SVG or PDF for a paper.

fedapps plot ~/fedapps-runs/mine --format pdf
"""

import argparse

from fedapps.core.paths import expanded

FORMATS = ("png", "svg", "pdf")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what can be given."""
    parser.add_argument("run", type=expanded, metavar="RUN", help="a run directory")
    add_format(parser)


def add_format(parser: argparse.ArgumentParser) -> None:
    """Add the option that says what pictures are written as."""
    parser.add_argument(
        "--format",
        choices=FORMATS,
        default="png",
        help="format of the plots; svg and pdf are sharp at any size [png]",
    )


def run(options: argparse.Namespace) -> int:
    """Draw and say where; raises `RunError`."""
    from fedapps.report import plots

    for file in plots.draw_all(options.run, options.format):
        print(file)
    return 0
