"""Keys of a run as Python writes them: keywords with `_`, paths, and NumPy's numbers."""

import os
from collections.abc import Mapping
from typing import Any

from fedapps.core import options
from fedapps.core.errors import RunError
from fedapps.core.paths import expanded
from fedapps.core.schema import Scalar

ARGUMENTS = ("progress", "keep-going", "plots")  # of `fedapps.run`; they are no keys
_FILE = "save it to a file first, and give its path"
# What to do instead of giving an object for a key.
_CURES = {
    "dataset": _FILE,
    "initial-model": _FILE,
    "model": "write a .py file with a function that makes it, and give its path (docs/models.md)",
    "strategy": "write the class to strategies/NAME.py and its client's to clients/NAME.py"
    " (docs/add-a-method.md), and give NAME; or try both classes with fedapps.method.rehearse",
}


def read(given: Mapping[str, Any]) -> dict[str, Scalar]:
    """Return a mapping as flat keys; raises `RunError` for a value that no key can have."""
    return {_key(name): _value(name, value) for name, value in options.flat(given).items()}


def refuse_arguments(flat: Mapping[str, Scalar]) -> None:
    """Raise `RunError` if an argument of `fedapps.run` is among the keys."""
    for name in (key.replace("-", "_") for key in ARGUMENTS if key in flat):
        raise RunError(f"{name} is an argument of run(), not a key: write run(..., {name}=False)")


def _key(name: str) -> str:
    """Return a key of the run-config: `num_rounds` is num-rounds, `fedprox.prox-mu` itself."""
    table, dot, key = name.rpartition(".")
    return table + dot + key.replace("_", "-")


def _value(key: str, value: Any) -> Scalar:
    import numpy as np

    if isinstance(value, os.PathLike):  # also a run
        return str(expanded(os.fsdecode(value), key).absolute())
    if isinstance(value, bool | int | float | str | list | tuple | np.generic):
        return options.scalar(key, value.item() if isinstance(value, np.generic) else value, "run")
    cure = "leave it out" if value is None else _CURES.get(_key(key), "")
    kind = "class" if isinstance(value, type) else type(value).__name__
    raise RunError(
        f"run: {key} is a {kind}; must be a number, true, false or a text"
        + f": {cure}" * bool(cure)
    )
