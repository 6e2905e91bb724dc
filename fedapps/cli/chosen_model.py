"""Which model `predict` and `export` take: what their options name, read."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from fedapps.core.errors import RunError, printable
from fedapps.core.options import add_trust
from fedapps.core.paths import expanded

if TYPE_CHECKING:
    from fedapps.device.personalized import Personalized


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that name a model."""
    parser.add_argument(
        "source",
        type=expanded,
        nargs="?",
        metavar="RUN|STATE_DIR|MODEL.safetensors",
        help="where the model is: a run directory, a device's state-dir or an exported model",
    )
    parser.add_argument(
        "--state-dir",
        type=expanded,
        metavar="STATE_DIR",
        help="another way to name a device's state-dir",
    )
    parser.add_argument(
        "--client",
        metavar="N|NAME",
        help="take the personalized model of a client from a run directory: its number, or its "
        "name in names.csv; without this option, the shared model",
    )
    add_trust(parser)


def read_model(options: argparse.Namespace) -> "Personalized":
    """Return the model that the options name; raises `RunError`."""
    if (options.source is None) == (options.state_dir is None):
        raise RunError("name one model: a run directory, a state-dir or a .safetensors file")
    return open_model(options.source or options.state_dir, options.client, trust=options.trust)


def open_model(
    source: Path, client: str | None = None, tell: bool = True, trust: str = ""
) -> "Personalized":
    """Return the model in a run directory, a state-dir or a file: a client's, or the shared one.

    A client is named by its number or, if the data call it something, by its name. With `tell`,
    the user is warned of layers of a shared model that are not shared. `trust` is as in
    `config.check_code`.
    """
    # torch takes a second that the help need not wait for
    from fedapps.device import personalized, run_models
    from fedapps.engine.finished import FinishedRun
    from fedapps.report import directory

    if (source / "config.toml").exists():
        try:
            run = FinishedRun.open(source, trust=trust)
        except RunError as error:
            raise RunError(f"{error}{_hint(source)}") from error
        number = None if client is None else directory.client_of(source, client)
        model = run_models.of_run(run, number)
        _tell(run_models.untrained(model, run) if tell else "")
        return model
    if source.suffix == ".pt2":
        raise RunError(f"{source}: is a program for torch.export.load; give a .safetensors file")
    model = personalized.load(source)
    if client not in (None, str(model.about.client)):
        own = model.about.client
        what = "the shared model" if own is None else f"the model of client {own}"
        raise RunError(f"--client {client}: {source} is {what}")
    _tell(run_models.untrained(model) if tell else "")
    return model


def _tell(warning: str) -> None:
    if warning:
        print(f"warning: {printable(warning)}", file=sys.stderr)


def _hint(folder: Path) -> str:
    """Say what a run directory needs, if it is the run's own data that are gone."""
    from fedapps.core import config

    dataset = expanded(str(config.stored(folder).get("dataset", "")))
    if not dataset.is_absolute() or dataset.exists():
        return ""
    return (
        "; a run directory needs the run's data set, and a file that `fedapps export` made before"
        " does not"
    )
