"""Prepare the inputs of `flwr run`: a small copy of the app, and one run-config."""

import contextlib
import errno
import os
import shutil
import tempfile
import tomllib
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import tomli_w

from fedapps.core.errors import RunError
from fedapps.core.options import flat, named_model, parse_option, parse_options, quoted
from fedapps.core.words import did_you_mean, key_meant
from fedapps.launcher.superlink import READ

if TYPE_CHECKING:  # it loads msgspec, which would delay the help text
    from fedapps.core.schema import Scalar

FEDERATION = "--federation-config"
# the settings of Flower's simulation, and the least value of those that are whole numbers
SIMULATION = {
    "num-supernodes": 1,
    "client-resources-num-cpus": 1,
    "client-resources-num-gpus": None,
    "init-args-num-cpus": 1,
    "init-args-num-gpus": 0,
    "init-args-logging-level": None,
    "init-args-log-to-driver": None,
    "backend": None,
    "verbose": None,
}
BUNDLED = {".py", ".toml", ".md", ".yaml", ".yml", ".json", ".jsonl", "LICENSE", ".gitignore"}


@contextlib.contextmanager
def merged(options: Sequence[str]) -> Iterator[list[str]]:
    """Provide run-config options as one that `flwr run` accepts; none if they set nothing.

    Flower accepts no file together with key=value pairs, and lets a later option replace a whole
    table. So they become one temporary file. If they resume a run, it also gets the settings of
    that run.
    """
    if not (values := _values(options)):
        yield []
        return
    with tempfile.TemporaryDirectory(prefix="fedapps-") as folder:
        path = Path(folder) / "run-config.toml"
        with _filling(folder):
            path.write_text(tomli_w.dumps(values), "utf-8")
        yield [str(path)]


@contextlib.contextmanager
def staged(app_dir: Path) -> Iterator[Path]:
    """Provide a copy of the files that Flower can bundle, without environments, results and data.

    Flower looks at every file below the app's folder before it drops those named in .gitignore. An
    environment has 30,000 files, which takes seconds per run. The bundle is the same with the copy.
    """
    if not (app_dir / "pyproject.toml").exists():
        raise RunError(
            f"{app_dir.resolve()} has no pyproject.toml, so it is not a Flower app; run the command"
            " in the project's folder, or give it the path of that folder"
        )
    ignore = app_dir / ".gitignore"
    lines = ignore.read_text("utf-8").splitlines() if ignore.exists() else []
    folders = {".git", ".venv", ".flwr", *(line.strip("/") for line in lines if line[-1:] == "/")}
    with tempfile.TemporaryDirectory(prefix="fedapps-") as folder:
        with _filling(folder):
            _copy(app_dir, Path(folder), folders)
        yield Path(folder)


def _copy(app_dir: Path, folder: Path, left_out: Collection[str]) -> None:
    """Copy what Flower can bundle, without the folders at the top that are left out."""
    for path, inner, names in os.walk(app_dir):
        top = Path(path) == app_dir
        inner[:] = [name for name in inner if not (top and name in left_out)]
        target = folder / os.path.relpath(path, app_dir)
        for name in names:
            if name in BUNDLED or Path(name).suffix in BUNDLED:
                target.mkdir(parents=True, exist_ok=True)
                if not Path(path, name).is_symlink():
                    shutil.copyfile(Path(path, name), target / name)


@contextlib.contextmanager
def _filling(folder: str) -> Iterator[None]:
    """Name a temporary folder that is full; the system names the file that was read, or none."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        how = "set TMPDIR to a folder that has space"
        raise RunError(f"cannot write to {folder}: {error.strerror}; {how}") from error


def refusal(app_dir: Path, options: Sequence[str]) -> str:
    """Say why an app would refuse a run-config; empty if it would not, or if only the run can tell.

    This saves waiting: Flower does not say which key is unknown, and the app can refuse a value
    only when Flower's engine has started, which takes up to a minute.
    """
    from fedapps.core import config  # imported here, because it would delay the help text

    if (known := _defaults(app_dir)) is None:
        return ""
    for key in (key for key in parse_options(options) if key not in known):
        return f"unknown key {key}{key_meant(key, known)}"
    if known != config.defaults():  # another app, or another version of this one
        return ""
    try:
        config.read_general(known | _values(options))
    except RunError as error:
        return str(error)
    return ""


def loggers(app_dir: Path, options: Sequence[str]) -> str:
    """Return the key `loggers` of a run; an app without this key may use any of them."""
    known = {"loggers": ",".join(READ)} | (_defaults(app_dir) or {})
    return str((known | _values(options))["loggers"])


def _values(options: Sequence[str]) -> "dict[str, Scalar]":
    """Return the keys that are set: those given, and all others of a run that they resume."""
    from fedapps.core import config  # imported here for the same reason as in `refusal`

    given = parse_options(options)
    return config.resumed_from(given, named_model(options)) | given


def _defaults(app_dir: Path) -> "dict[str, Scalar] | None":
    """Return the run-config of an app's pyproject.toml as flat keys; None if it has no app."""
    try:
        project = tomllib.loads((app_dir / "pyproject.toml").read_text("utf-8"))
        return flat(project["tool"]["flwr"]["app"].get("config", {}))
    except (OSError, KeyError, ValueError):
        return None


def simulation(federation_config: str) -> str:
    """Return the settings of a simulation as Flower reads them; raises `RunError` for a wrong one.

    Flower itself does not say which number is wrong, and with no SuperNodes it waits for one.
    """
    for name, value in parse_option(federation_config, FEDERATION).items():
        key = name.replace("_", "-")
        if key not in SIMULATION:
            raise RunError(f"{FEDERATION}: unknown key {name}{did_you_mean(key, SIMULATION)}")
        least = SIMULATION[key]
        if least is not None and (type(value) is not int or value < least):
            raise RunError(f"{FEDERATION}: {name} = {value}: must be int >= {least}")
    return quoted(federation_config)
