"""Compare runs: a table of their last figures and costs, a picture of their curves, two CSV files.

Runs that differ only in their seed are put together as mean and standard deviation (n - 1). Where
settings have seeds in common, their difference is told seed by seed, with a paired t-test.

    fedapps compare ~/fedapps-runs/fedavg-* ~/fedapps-runs/fedper-*
    fedapps compare ~/fedapps-runs/sweep --output figures --format pdf
    fedapps compare ~/fedapps-runs/sweep/*/best/evaluation-1.csv
"""

import argparse
from pathlib import Path

from fedapps.cli.chosen_model import path
from fedapps.cli.plot import add_format


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "runs",
        type=path,
        nargs="+",
        metavar="RUN",
        help="a run directory, a folder of some, or the table of an evaluation",
    )
    parser.add_argument(
        "--output",
        type=path,
        default=Path("comparison"),
        metavar="DIR",
        help="where runs.csv, groups.csv and the picture are written [comparison]",
    )
    add_format(parser)


def run(options: argparse.Namespace) -> int:
    """Print the comparison and write its files; raises `RunError`."""
    # what reads tables takes a second that the help need not wait for
    from fedapps.compare import files, table
    from fedapps.compare.comparison import compare

    comparison = compare(options.runs)
    try:  # before anything is printed: `... | head` ends the process there
        written = files.write(comparison, options.output, options.format)
    finally:  # for whom they cannot be written, too
        table.show(comparison)
    for file in written:
        print(file)
    return 0
