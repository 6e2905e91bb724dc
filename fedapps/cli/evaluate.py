"""Score a saved run again, with another personalization, without training it again.

This writes RUN/evaluation-1.csv, with a line for each client, and adds a line with the means to
RUN/evaluations.csv. The next evaluation writes evaluation-2.csv, and so on.

    fedapps evaluate ~/fedapps-runs/mine -c 'finetune-epochs=20 finetune-part=head'
"""

import argparse

from fedapps.core.options import add_run_config, add_trust, parse_options
from fedapps.core.paths import expanded


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("run", type=expanded, metavar="RUN", help="the directory of a simulation")
    add_run_config(parser)
    add_trust(parser)


def run(options: argparse.Namespace) -> int:
    """Evaluate and print where the table is; raises `RunError`."""
    from fedapps.engine import again

    changes = parse_options(options.run_config)
    again.evaluate(options.run.absolute(), changes, options.trust)
    return 0
