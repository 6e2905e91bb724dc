"""What `flwr run` gets: the app without its bulk, several run-configs as one."""

import contextlib
import os
import shutil
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from fedapps.core.errors import RunError
from fedapps.core.words import did_you_mean

BUNDLED = {".py", ".toml", ".md", ".yaml", ".yml", ".json", ".jsonl", "LICENSE", ".gitignore"}


@contextlib.contextmanager
def merged(options: Sequence[str]) -> Iterator[list[str]]:
    """Give the options as one that `flwr run` takes.

    Flower refuses a file beside pairs, and a later option replaces a whole table: several options
    become one temporary file. To go on with a run is to take its settings, too. One option stays
    as it is, a file's path made absolute.
    """
    options = [option for option in options if option.strip()]
    if len(options) < 2 and not any("resume" in option for option in options):
        yield [str(Path(o).expanduser().resolve()) if o.endswith(".toml") else o for o in options]
        return
    values: dict[str, Any] = {}
    for option in options:
        values |= _parsed(option)
    values = _resumed_from(values) | values
    with tempfile.TemporaryDirectory(prefix="fedapps-") as folder:
        path = Path(folder) / "run-config.toml"
        path.write_text(tomli_w.dumps(values), "utf-8")
        yield [str(path)]


@contextlib.contextmanager
def staged(app_dir: Path) -> Iterator[Path]:
    """Give a copy of what Flower may bundle of an app, without environments, results and data.

    Flower looks at every file below the app's folder, at the 30,000 of an environment too, which
    takes seconds a run, before it drops those that .gitignore names. The bundle is the same.
    """
    if not (app_dir / "pyproject.toml").exists():
        raise RunError(f"{app_dir.resolve()} has no pyproject.toml: not a Flower app")
    ignore = app_dir / ".gitignore"
    lines = ignore.read_text("utf-8").splitlines() if ignore.exists() else []
    folders = {".git", ".venv", ".flwr", *(line.strip("/") for line in lines if line[-1:] == "/")}
    with tempfile.TemporaryDirectory(prefix="fedapps-") as folder:
        for path, inner, names in os.walk(app_dir):
            top = Path(path) == app_dir
            inner[:] = [name for name in inner if not (top and name in folders)]
            target = Path(folder, os.path.relpath(path, app_dir))
            for name in names:
                if name in BUNDLED or Path(name).suffix in BUNDLED:
                    target.mkdir(parents=True, exist_ok=True)
                    if not Path(path, name).is_symlink():
                        shutil.copyfile(Path(path, name), target / name)
        yield Path(folder)


def refused_keys(app_dir: Path, options: Sequence[str]) -> str:
    """Name the key of a run-config that the app lacks, as `flwr run` does not; empty if none."""
    from fedapps.core.flower import flatten_dict  # see _parsed

    try:
        project = tomllib.loads((app_dir / "pyproject.toml").read_text("utf-8"))
        known = flatten_dict(project["tool"]["flwr"]["app"].get("config", {}))
    except (OSError, KeyError, ValueError):
        return ""
    for key in (key for option in options for key in _parsed(option) if key not in known):
        return f"unknown key {key}{did_you_mean(key, known)}"
    return ""


def _resumed_from(values: Mapping[str, Any]) -> dict[str, Any]:
    from fedapps.core.config import resumed_from  # see _parsed

    return dict(resumed_from(values))


def _parsed(option: str) -> Mapping[str, object]:
    # Flower takes a second or two to import, which `--stop` and one option need not wait for
    from fedapps.core.config import parse_option

    return parse_option(option)
