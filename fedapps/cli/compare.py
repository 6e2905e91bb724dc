"""`fedapps compare RUN...`: runs side by side, as a table, a picture and two CSV files."""

import argparse
from pathlib import Path

from fedapps.cli.plot import add_format


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what can be given."""
    parser.add_argument(
        "runs",
        type=Path,
        nargs="+",
        metavar="RUN",
        help="a run directory, or a folder of them; runs that differ only in the seed are one row",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("comparison"),
        metavar="DIR",
        help="where runs.csv, groups.csv and the picture are written [./comparison]",
    )
    add_format(parser)


def run(options: argparse.Namespace) -> int:
    """Print the comparison and write its files; raises `RunError`."""
    from fedapps.compare import files, table
    from fedapps.compare.comparison import compare

    comparison = compare(path.expanduser() for path in options.runs)
    table.show(comparison)
    for path in files.write(comparison, options.output.expanduser(), options.format):
        print(path)
    return 0
