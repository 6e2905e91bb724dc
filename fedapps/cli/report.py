"""`fedapps report`: write the page of a run directory again."""

import argparse

from fedapps.cli.chosen_model import path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "run", type=path, metavar="RUN", help="a run directory, of any version, finished or not"
    )


def run(options: argparse.Namespace) -> int:
    """Write RUN/report.html and print where it is."""
    # reading it all takes a second that the help need not wait for
    from fedapps.core.errors import RunError
    from fedapps.report import page

    if not (options.run / "rounds.csv").is_file():
        raise RunError(f"{options.run}: is no run directory, it has no rounds.csv")
    print(page.write(options.run.absolute(), page.plots_of(options.run)))
    return 0
