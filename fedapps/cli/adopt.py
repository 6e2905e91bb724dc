"""Personalize the shared model of a run on your own data, when the run is over.

The model comes from a run directory, or from a file that `fedapps export` has written. It is
personalized as the method has newcomers do, and nothing is sent. Afterwards, `predict` and `export`
take the state folder.

    fedapps adopt --model shared.safetensors --data mine.npz --state-dir ~/adopted
    fedapps predict ~/adopted --input images.npz
"""

import argparse
import sys

from fedapps.cli.chosen_model import open_model
from fedapps.core.options import add_run_config, add_trust, parse_options
from fedapps.core.paths import expanded


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "--model",
        type=expanded,
        required=True,
        metavar="RUN|MODEL.safetensors",
        help="a run directory, or an exported shared model",
    )
    parser.add_argument(
        "--data",
        type=expanded,
        required=True,
        metavar="MINE",
        help="own samples as of a device: an .npz file, a table, or a folder",
    )
    parser.add_argument(
        "--state-dir",
        type=expanded,
        required=True,
        metavar="STATE_DIR",
        help="the folder for the personalized model; only this user can enter it",
    )
    add_run_config(parser)
    add_trust(parser)


def run(options: argparse.Namespace) -> int:
    """Personalize, and print the scores and where the model is; raises `RunError`."""
    from fedapps.device import adopting

    changes = parse_options(options.run_config)
    model = open_model(options.model, tell=False, trust=options.trust)
    found = adopting.adopt(model, options.data, options.state_dir, changes)
    scores, s = found.scores, found.settings
    metric = scores.task.lead
    for note in found.told:
        print(f"note: {note}", file=sys.stderr)
    samples = f"{scores.num_train} training and {scores.num_test} {s.evaluate_on} samples"
    print(f"{s.strategy}, {samples} of {options.data}")
    print(f"{metric.label}: {metric.change(scores.initial, scores.personalized)}")
    print(found.path)
    return 0
