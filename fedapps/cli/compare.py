"""Compare runs: print tables of their results and costs, draw their curves, write two CSV files.

The results are those of the last evaluated round, by the metric that leads in the runs, or by
--metric. Runs that differ only in their seed form a group, which is shown as a mean and a standard
deviation (n - 1). If groups have seeds in common, a further table shows their differences, computed
seed by seed, with a paired t-test.

    fedapps compare ~/fedapps-runs/fedavg-* ~/fedapps-runs/fedper-*
    fedapps compare ~/fedapps-runs/sweep --output figures --format pdf
    fedapps compare ~/fedapps-runs/sweep/*/best/evaluation-1.csv
    fedapps compare ~/fedapps-runs/sweep --latex > table.tex
"""

import argparse
import sys
from pathlib import Path

from fedapps.cli.plot import add_format
from fedapps.core.paths import expanded


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "runs",
        type=expanded,
        nargs="+",
        metavar="RUN",
        help="a run directory, a folder of run directories, or an evaluation-N.csv",
    )
    parser.add_argument(
        "--output",
        type=expanded,
        default=Path("comparison"),
        metavar="DIR",
        help="folder for runs.csv, groups.csv and the plot of the curves [comparison]",
    )
    parser.add_argument(
        "--metric",
        default="auto",
        help="the metric to compare by, such as macro_f1 [the one that leads in the runs]",
    )
    add_format(parser)
    parser.add_argument(
        "--latex",
        action="store_true",
        help="print only the table of scores, in LaTeX with the package booktabs; the best means "
        "are bold",
    )


def run(options: argparse.Namespace) -> int:
    """Print the comparison and write its files; raises `RunError`."""
    # what reads tables takes a second that the help need not wait for
    from fedapps.compare import files, latex, table
    from fedapps.compare.comparison import compare

    comparison = compare(options.runs, options.metric)
    try:  # before anything is printed: `... | head` ends the process there
        written = files.write(comparison, options.output, options.format)
    finally:  # for whom they cannot be written, too
        if options.latex:
            print(latex.latex(comparison), end="")
        else:
            table.show(comparison)
    for file in written:
        print(file, file=sys.stderr if options.latex else None)
    return 0
