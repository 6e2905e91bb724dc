"""Run once more, from the model of the last run: every night, with whatever data the devices have.

A federation is a folder with its runs, their models, and a ledger of what they have cost in
privacy. Each run starts from the model of the last one that has finished. With --key, the model is
signed as soon as it is there, and a later run starts from a signed model only.

    fedapps nightly --connection site -c nightly.toml    # a run on the devices of a SuperLink
    fedapps nightly -c nightly.toml --node-config ...    # on devices in this process
    fedapps nightly --history                            # all runs, and epsilon
    fedapps nightly --roll-back                          # the next run starts one model earlier

    fedapps nightly --make-key model.key                 # and model.pub, for the devices
    fedapps nightly --sign weights.safetensors --key model.key
"""

import argparse
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedapps import launch
from fedapps.core.errors import RunError
from fedapps.core.options import LATEST, chosen
from fedapps.core.paths import expanded

if TYPE_CHECKING:
    from fedapps.engine.ledger import Ledger, Night

FOLDER = "federation"  # in runs-dir
ELSEWHERE = ("connection", "federation_config", "port")  # options of runs in other processes


def _full(text: str) -> Path:
    return expanded(text).absolute()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `fedapps run`, and the command's own."""
    launch.add_arguments(parser)
    parser.add_argument(
        "--folder", type=_full, help="folder of the federation [federation in runs-dir]"
    )
    parser.add_argument(
        "--key", type=_full, help="private key that signs the model of this run (--make-key)"
    )
    parser.add_argument(
        "--node-config",
        action="append",
        default=[],
        metavar="KEYS",
        help="run on devices in this process, as fedapps serial does; once for each device",
    )
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--history", action="store_true", help="list the runs, without a new one")
    instead.add_argument(
        "--roll-back",
        nargs="?",
        const="",
        metavar="RUN",
        help="let the next run start from the model of RUN; without RUN, from the model that the "
        "last run has started from",
    )
    instead.add_argument("--make-key", type=_full, metavar="FILE", help="make a key to sign with")
    instead.add_argument(
        "--sign", type=_full, metavar="MODEL", help="sign a model, or that of a run, with --key"
    )


def run(options: argparse.Namespace) -> int:
    """Do what the options say; return the exit status. Raises `RunError`."""
    from fedapps.core import config, signing

    if options.make_key:
        print(f"{signing.make_key(options.make_key)} is for the devices (model-key)")
        return 0
    if options.sign:
        return _sign(options.sign, options.key)
    if options.key:  # a mistake shows now, not after the night
        (signing.public_key if options.history else signing.private_key)(options.key)
    for name in ELSEWHERE if options.node_config else ():
        if value := getattr(options, name):
            option = "--" + name.replace("_", "-")
            raise RunError(f"{option} {value}: devices (--node-config) run in this process")
    values = config.parse(chosen(options))
    folder = options.folder or _full(str(values["federation"] or f"{values['runs-dir']}/{FOLDER}"))
    if options.history:
        return _show(folder, options.key)
    if options.roll_back is not None:
        return _roll_back(folder, options.roll_back)
    return _night(options, folder, values)


def _sign(given: Path, key: Path | None) -> int:
    """Sign a model, or that of a run, which must have finished: its end makes a signature void."""
    from fedapps.core import signing
    from fedapps.engine import resume
    from fedapps.report import about, directory

    if key is None:
        raise RunError("--sign: needs a key; use --key FILE")
    model = given / directory.MODEL if given.is_dir() else given
    run = directory.whole(model.parent)
    with ExitStack() as stack:
        if (run / about.FILE).exists():
            stack.enter_context(resume.alone(run))
            if not directory.has_finished(run):
                raise RunError(f"{run}: has not finished; --resume it before you sign its model")
        signing.sign(model, key)
    print(f"signed: {model}")
    return 0


@contextmanager
def _alone(folder: Path) -> Iterator["Ledger"]:
    """Give the ledger of a federation, and keep nights away; raises `RunError` if one goes on."""
    from fedapps.core.files import alone, writing
    from fedapps.engine import ledger, resume

    with writing(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with alone(folder, f"{folder}: another run of this federation is going on; wait for it"):
        book = ledger.read(folder)
        for night in book.runs[-1:]:
            if not night.finished and (folder / night.folder).is_dir():
                with resume.alone(folder / night.folder):  # after Ctrl-C it can go on elsewhere
                    pass
        yield book


def _night(options: argparse.Namespace, folder: Path, values: Mapping[str, Any]) -> int:
    """Make one run of the federation, alone, and sign its model; return the exit status."""
    from fedapps.core import config, signing
    from fedapps.core.schema import literal
    from fedapps.engine import ledger
    from fedapps.report.directory import MODEL

    with _alone(folder) as book:
        mine = expanded(str(values["resume"]))
        if values["resume"] == LATEST:
            mine = folder / _unfinished(folder, book, options.key).folder
            options.resume = str(mine)
        elif not values["resume"]:
            names = (f"run-{number:04}" for number in count(len(book.runs) + 1))
            name = next(name for name in names if not (folder / name).exists())
            mine = folder / name
            keys = {"federation": str(folder), "runs-dir": str(folder), "run-name": name}
            if start := book.run(book.start):
                keys["initial-model"] = str(_model(folder, start, options.key))
            told = " ".join(f"{key}={literal(value)}" for key, value in keys.items())
            options.run_config.append(told)
        known = config.stored(mine) if values["resume"] else {}
        if (named := known.get("federation")) and _full(str(named)) == folder:
            for name in ("federation", "initial-model"):  # as the night has set them
                options.run_config.append(f"{name}={literal(known.get(name, ''))}")
        status = _serial(options) if options.node_config else launch.run(options)
        for night in ledger.read(folder).runs if options.key else ():
            ended = night.finished and (status == 0 or night not in book.runs)
            if ended and (folder / night.folder).resolve() == mine.resolve():  # not of another run
                signing.sign(mine / MODEL, options.key)
    return status


def _unfinished(folder: Path, book: "Ledger", key: Path | None) -> "Night":
    """Return the last run, which --resume finishes; raises `RunError` if it has finished."""
    from fedapps.report.directory import MODEL

    last = book.runs[-1] if book.runs else None
    if last and not last.finished:
        return last
    start = last if key and last and last.run == book.start else None
    unsigned = start and _state(folder / start.folder / MODEL, None) == "unsigned"
    cure = ", but is not signed; --sign it or --roll-back" if unsigned else "; start a new one"
    raise RunError(f"--resume: the last run of {folder} has finished{cure}")


def _serial(options: argparse.Namespace) -> int:
    """Run on devices in this process."""
    from fedapps import serial
    from fedapps.core import config

    values = serial.absolute(config.parse(chosen(options)))
    print(serial.run_serial(values, node_configs=serial.devices(options.node_config)))
    return 0


def _model(folder: Path, night: "Night", key: Path | None) -> Path:
    """Return the model of a finished run that is what its manifest says; raises `RunError`."""
    from fedapps.core import signing
    from fedapps.report.directory import MODEL

    if not night.finished:
        raise RunError(
            f"{night.folder}: was made longer, and has not finished since; finish it with --resume,"
            " or go on from another model with --roll-back"
        )
    model, trust = folder / night.folder / MODEL, ""
    try:
        found = signing.read(model)
        signing.check(found, None, str(model))
        trust = ", or, if you trust this one, --sign it"
        signing.check(found, key, str(model))
    except RunError as error:
        raise RunError(f"{error}; go on from another model with --roll-back{trust}") from error
    return model


def _state(model: Path, key: Path | None) -> str:
    """Say in a word what is left of a run's model; without a key, any signature will do."""
    from fedapps.core import signing

    if not model.exists():
        return "gone"
    try:
        found = signing.read(model)
    except RunError:
        return "unreadable"
    try:
        signing.check(found, key if found.signature else None, str(model))
    except RunError:
        return "altered"
    return "signed" if found.signature else "unsigned"


def _roll_back(folder: Path, called: str) -> int:
    """Choose the model that the next run starts from."""
    from fedapps.engine import ledger

    with _alone(folder), ledger.editing(folder) as book:  # a night chooses at its end
        current = book.run(book.start)
        if called:
            name = Path(called).name
            finished = {Path(n.folder).name: n for n in book.runs if n.finished}
            if name not in finished:
                known = ", ".join(finished) or "none"
                raise RunError(f"--roll-back {called}: must be a finished run of {folder}: {known}")
            target: Night | None = finished[name]
        elif current is None:
            raise RunError(f"--roll-back: the next run of {folder} starts from the seed already")
        else:
            target = book.run(current.parent)
        if target:
            _model(folder, target, None)
        book.start = target.run if target else ""
        print(_next(book))
    return 0


def _show(folder: Path, key: Path | None) -> int:
    """Print the runs of a federation, oldest first, and the epsilon of each and of all so far."""
    from fedapps.cli.tables import Column, show
    from fedapps.engine import ledger
    from fedapps.report.directory import MODEL

    book, rows = ledger.read(folder), []
    if not book.runs:
        print(f"no runs yet in {folder}")
        return 0
    for number, night in enumerate(book.runs, 1):
        state = _state(folder / night.folder / MODEL, key) if night.finished else "not finished"
        alone, total = (ledger.guaranteed(r, night.delta) for r in ([night], book.runs[:number]))
        parent = book.run(night.parent)
        rows.append([
            Path(night.folder).name, night.started[:16].replace("T", " "), night.strategy,
            str(night.round), Path(parent.folder).name if parent else "-",
            _said(alone), _said(total), state,
        ])  # fmt: skip
    titles = ("run", "began (UTC)", "method", "rounds", "from", "epsilon", "all so far", "model")
    show([Column(title) for title in titles], rows)
    print(_next(book))
    return 0


def _said(epsilon: float | None) -> str:
    """Write an epsilon: `-` if no run has secret noise, `inf` if it has no limit."""
    return "-" if epsilon is None else f"{epsilon:.4g}"


def _next(book: "Ledger") -> str:
    start = book.run(book.start)
    if start is None:
        return "the next run starts from the seed, or from initial-model"
    return f"the next run starts from the model of {Path(start.folder).name}, round {start.round}"
