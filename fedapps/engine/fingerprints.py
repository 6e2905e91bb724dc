"""Short digests of what a run computes with: its data, its method's code, and its model."""

import ast
import hashlib
from collections.abc import Iterable
from pathlib import Path

from fedapps.core import registry
from fedapps.core.errors import RunError
from fedapps.method.flower import BaseStrategy
from fedapps.models import own
from fedapps.report.about import Fingerprints, fingerprints_of
from fedapps.training import sketch

NAMES = {
    "data": "the samples",
    "code": "the method's code",  # earlier versions: "method", another one for each Python
    "model": "the model's code or initial values",
    "own-model": "the model's code or initial values",  # earlier versions: "model", as above
}
MODEL = ("model", "own-model")
SKETCH = "sketch"  # of the initial values, then a digest of the model's code

_DESCRIBED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def fingerprints(strategy: BaseStrategy) -> Fingerprints:
    """Return the fingerprints of a run by their `NAMES`; devices do not tell that of their data."""
    space = strategy.workspace
    model = own.file_of(space.settings.model)
    about_model = _code([model.read_bytes()] if model else [])
    found = {
        "code": _code(map(registry.loaded, _modules(strategy))),
        "own-model" if model else "model": _short(space.resident.fingerprint, about_model),
        SKETCH: f"{space.resident.sketch} {about_model}",
    }
    return found if space.settings.on_devices else {"data": space.dataset.digest, **found}


def changed(before: Fingerprints, now: Fingerprints) -> list[str]:
    """Say what differs between fingerprints that both have, and not only in last digits."""
    both = [name for name in NAMES if name in before and name in now]
    ours = [name for name in both if before[name] != now[name]]
    return [NAMES[name] for name in ours if name not in MODEL or not _alike(before, now)]


def told(before: Fingerprints, now: Fingerprints) -> str:
    """Say in words what has `changed`, as in `the samples have changed`; "" if nothing has."""
    found = changed(before, now)
    has = "has" if found == [NAMES["code"]] else "have"
    return f"{' and '.join(found)} {has} changed" if found else ""


def last_digits(before: Fingerprints, now: Fingerprints) -> bool:
    """Tell whether the models differ, but only in last digits, as on another type of processor."""
    differ = any(before.get(name) != now.get(name) for name in MODEL)
    return differ and _alike(before, now)


def _alike(before: Fingerprints, now: Fingerprints) -> bool:
    then, here = (found.get(SKETCH, "").rpartition(" ")[0] for found in (before, now))
    return model_code(before) == model_code(now) and sketch.alike(here, then)


def model_code(found: Fingerprints) -> str:
    """Return the digest of the code of a model of one's own, whatever the seed; "" if not known."""
    return found.get(SKETCH, "").rpartition(" ")[2]


def check(folder: Path, strategy: BaseStrategy) -> None:
    """Raise `RunError` if the run began with other data, code or initial values.

    Warns if only last digits of the initial values differ.
    """
    then, now = fingerprints_of(folder), fingerprints(strategy)
    if found := told(then, now):
        raise RunError(
            f"{folder}: {found} since the run began; put back what was there, or start a new run"
        )
    if last_digits(then, now):
        sketch.tell("those with which the run began")


def outdated(strategy: BaseStrategy) -> list[str]:
    """Say which files of a method are others now than those that this process has loaded."""
    names = sorted(_modules(strategy))
    return [
        f"{file} has changed since this process loaded it, and the run uses, and records, what was"
        " loaded; to use the file, restart the process (in a notebook, the kernel)"
        for name in names
        if (file := registry.file_of(name)).is_file() and file.read_bytes() != registry.loaded(name)
    ]


def _modules(strategy: BaseStrategy) -> set[str]:
    client = registry.client_class(strategy.settings.strategy)
    return registry.modules_of(type(strategy), client)


def _code(files: Iterable[bytes]) -> str:
    """Return a digest of Python files; comments, docstrings and the layout do not count."""
    return _short(*sorted(_tree(ast.parse(file)) for file in files))


def _tree(node: object) -> str:
    """Write a syntax tree as a text that is the same in each version of Python."""
    if isinstance(node, ast.AST):
        fields = dict(ast.iter_fields(node))
        if isinstance(node, _DESCRIBED) and ast.get_docstring(node, clean=False) is not None:
            fields["body"] = node.body[1:]
        if isinstance(node, ast.JoinedStr):  # Python 3.12.1 adds an empty text to a format
            fields["values"] = [part for part in node.values if getattr(part, "value", 0) != ""]
        words = [f"{name}={_tree(of)}" for name, of in fields.items() if of not in (None, [])]
        return f"{type(node).__name__}({','.join(words)})"
    if isinstance(node, list):
        return f"[{','.join(map(_tree, node))}]"
    return repr(node)


def _short(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]
