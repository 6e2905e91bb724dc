"""Short digests of what a run computes with: its data, its method's code, and its model."""

import ast
import hashlib
import inspect
from collections.abc import Iterable
from pathlib import Path

from fedapps.core import registry
from fedapps.core.config import DEVICE
from fedapps.method.flower import BaseStrategy
from fedapps.models import own
from fedapps.report.about import Fingerprints

NAMES = {
    "data": "the samples",
    "method": "the method's code",
    "model": "the model's code or initial values",
}


def fingerprints(strategy: BaseStrategy) -> Fingerprints:
    """Return the fingerprints of a run by their `NAMES`; devices do not tell that of their data."""
    space = strategy.workspace
    name, model = space.settings.strategy, own.file_of(space.settings.model)
    classes = {*type(strategy).__mro__, *registry.client_class(name).__mro__}
    found = {
        "method": _code(path for cls in classes if (path := _file(cls))),
        "model": _short(space.resident.fingerprint, _code([model] if model else [])),
    }
    return found if space.settings.dataset == DEVICE else {"data": space.dataset.digest, **found}


def changed(before: Fingerprints, now: Fingerprints) -> list[str]:
    """Say what differs between fingerprints that both have."""
    both = [name for name in NAMES if name in before and name in now]
    return [NAMES[name] for name in both if before[name] != now[name]]


def _file(cls: type) -> Path | None:
    """Return the file of a class of a method; None for other classes."""
    if cls.__module__.partition(".")[0] not in (registry.STRATEGIES, registry.CLIENTS):
        return None
    return Path(inspect.getfile(cls))


def _code(files: Iterable[Path]) -> str:
    """Return a digest of Python files; comments and how the code is laid out do not count."""
    return _short(*sorted(ast.unparse(ast.parse(path.read_bytes())) for path in {*files}))


def _short(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]
