"""End the SuperLink that `fedapps run` leaves in the background, and all processes that it started.

Runs on this SuperLink that are still going on end, too.
"""

import argparse

from fedapps.core.options import add_home


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add_home(parser)


def run(options: argparse.Namespace) -> int:
    """End it and say so."""
    from fedapps.launcher.superlink import flower_home, not_running, stop

    ended, home = stop(options.home), flower_home(options.home)
    print(f"SuperLink of {home} ended" if ended else not_running(home))
    return 0
