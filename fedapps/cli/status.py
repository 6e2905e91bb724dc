"""Show the SuperLink that `fedapps run` uses in the background, and its runs, newest first.

`flwr stop RUN_ID` ends one of the runs; `fedapps stop` ends the SuperLink. For a SuperLink that
config.toml names, for example that of devices, `flwr ls NAME` shows the runs.
"""

import argparse
import textwrap

from fedapps.core.options import add_home


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add_home(parser)
    parser.add_argument(
        "--limit", type=int, default=10, metavar="N", help="show at most N runs [10]"
    )


def run(options: argparse.Namespace) -> int:
    """Print a line about the SuperLink and a line for each run."""
    from fedapps.launcher.runs import listed
    from fedapps.launcher.superlink import flower_home, not_running, superlink

    home, link = flower_home(options.home), superlink(options.home)
    if link is None:
        print(f"{not_running(home)}; for one that config.toml names, use flwr ls NAME")
        return 0
    print(f"SuperLink of {home}: port {link.port}, process {link.pid}, Flower {link.version}")
    runs = listed(home, link, options.limit)
    if not runs:
        print("no runs yet")
        return 0
    for run in runs:
        print(f"run {run.id}  {run.status}  since {run.since}  {run.seconds:.0f} s")
        if run.error:
            print("   ", textwrap.shorten(run.error, 95, placeholder=" ..."))
    return 0
