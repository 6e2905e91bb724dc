"""Which model `predict` and `export` take: what their options name, read."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from fedapps.core.errors import RunError
from fedapps.core.paths import expanded

if TYPE_CHECKING:
    from fedapps.device.personalized import Personalized


def path(text: str) -> Path:
    """Read a path of the command line; `~` is the home folder."""
    return expanded(text)


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that name a model."""
    parser.add_argument(
        "source",
        type=path,
        nargs="?",
        metavar="RUN|STATE_DIR|MODEL.safetensors",
        help="a finished run's directory, a device's state-dir, or a model that was exported",
    )
    parser.add_argument(
        "--state-dir", type=path, metavar="STATE_DIR", help="the same, as an option"
    )
    parser.add_argument(
        "--client",
        type=int,
        metavar="N",
        help="of a run: this client's personalized model; without it the shared model",
    )


def read_model(options: argparse.Namespace) -> "Personalized":
    """Return the model that the options name; raises `RunError`."""
    if (options.source is None) == (options.state_dir is None):
        raise RunError("name one run directory, state-dir or .safetensors file")
    source = options.source or options.state_dir
    # torch takes a second that the help need not wait for
    from fedapps.device import personalized
    from fedapps.engine.finished import FinishedRun

    if (source / "config.toml").exists():
        run = FinishedRun.open(source)
        model = personalized.of_run(run, options.client)
        if options.client is None and run.initial:
            layers = ", ".join(run.initial)
            note = f"note: not shared, so as initialised: {layers}; for a client's own: --client N"
            print(note, file=sys.stderr)
        return model
    model = personalized.load(source)
    if options.client not in (None, model.about.client):
        raise RunError(f"--client {options.client}: {source} is of client {model.about.client}")
    return model
