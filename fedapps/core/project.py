"""Finds and reads the project's pyproject.toml; no other module does."""

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from fedapps.core.errors import RunError


@cache
def pyproject() -> dict[str, Any]:
    """Return the content of pyproject.toml, which callers must not change.

    An installed wheel carries the file inside the package. In a checkout the file is beside the
    package. The same is true of the bundle that Flower makes from a checkout, and runs without
    installing it. Raises `RunError` if there is no such file.
    """
    places = [folder / "pyproject.toml" for folder in Path(__file__).parents[1:3]]
    for path in places:
        if path.exists():
            return tomllib.loads(path.read_text("utf-8"))
    raise RunError(f"pyproject.toml: not at {' nor '.join(map(str, places))}; it has all defaults")


def run_config() -> dict[str, Any]:
    """Return `[tool.flwr.app.config]`: the run-config before Flower applies the user's values."""
    config: dict[str, Any] = pyproject()["tool"]["flwr"]["app"]["config"]
    return config


def defaults() -> dict[str, Any]:
    """Return `[tool.fedapps.defaults]`: the defaults of keys that are unset in the run-config."""
    table: dict[str, Any] = pyproject()["tool"]["fedapps"]["defaults"]
    return table


def version() -> str:
    """Return the version of this project."""
    return str(pyproject()["project"]["version"])
