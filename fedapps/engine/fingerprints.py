"""Short digests of what a run computes with: its data, its method's code, and its model."""

import ast
import hashlib
import inspect
from collections.abc import Iterable
from pathlib import Path

from fedapps.core import registry
from fedapps.core.config import DEVICE
from fedapps.method.flower import BaseStrategy
from fedapps.models.own import FOLDER
from fedapps.report.about import Fingerprints

NAMES = {
    "data": "the samples",
    "method": "the method's code",
    "model": "the model's code or initial values",
}


def fingerprints(strategy: BaseStrategy) -> Fingerprints:
    """Return the fingerprints of a run by their `NAMES`; devices do not tell that of their data."""
    space = strategy.workspace
    client = registry.client_class(space.settings.strategy)
    modules = {type(module) for module in space.model.modules()}
    found = {
        "method": _code((registry.STRATEGIES, registry.CLIENTS), [type(strategy), client]),
        "model": _short(space.resident.fingerprint, _code((FOLDER,), modules)),
    }
    return found if space.settings.dataset == DEVICE else {"data": space.dataset.digest, **found}


def changed(before: Fingerprints, now: Fingerprints) -> list[str]:
    """Say what differs between fingerprints that both have."""
    both = [name for name in NAMES if name in before and name in now]
    return [NAMES[name] for name in both if before[name] != now[name]]


def _code(packages: Iterable[str], classes: Iterable[type]) -> str:
    """Return a digest of the files of these packages that classes, and their bases, are from.

    Comments and how the code is laid out do not count.
    """
    files = set[Path]()
    for base in {base for cls in classes for base in cls.__mro__}:
        if base.__module__.partition(".")[0] in packages and (path := inspect.getsourcefile(base)):
            files.add(Path(path))
    ordered = sorted(files, key=lambda path: (path.parent.name, path.name))
    return _short(*(ast.unparse(ast.parse(path.read_bytes())) for path in ordered))


def _short(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]
