"""Write the report of a run, RUN/report.html, again.

fedapps report ~/fedapps-runs/mine
"""

import argparse

from fedapps.core.paths import expanded


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "run",
        type=expanded,
        metavar="RUN",
        help="a run directory; the run need not be finished, and can be of an older version",
    )


def run(options: argparse.Namespace) -> int:
    """Write RUN/report.html and print where it is."""
    # reading it all takes a second that the help need not wait for
    from fedapps.report import page

    print(page.again(options.run).absolute())
    return 0
