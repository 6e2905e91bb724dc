"""Paths that users give: `~` is expanded, and texts that cannot be paths are refused."""

import os
import re
from pathlib import Path

from fedapps.core.errors import RunError

_MODEL = re.compile(r"(.+\.py)(?::(\w+))?")
APP = Path(__file__).parents[2]  # the folder of the app: a checkout, or what Flower bundles


def problem_of(text: str) -> str:
    """Say why a text cannot be a setting, a path or a line; return an empty text if it can."""
    if "\0" in text:
        return "must be without NUL characters"
    try:
        text.encode()
    except UnicodeEncodeError:  # the command line had bytes that are not UTF-8
        return "must be text in UTF-8"
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return "this system's locale has not all of these characters; set LC_ALL=C.UTF-8"
    return ""


def model_file(name: str) -> tuple[str, str] | None:
    """Return path and function ("": none) that a value of `model` names; None if it is no path."""
    found = _MODEL.fullmatch(name)
    return (found[1], found[2] or "") if found else None


def lies_in(path: Path, folder: Path) -> bool:
    """Tell whether a path leads to something inside a folder, however both are written."""
    return any(p.exists() and p.samefile(folder) for p in path.resolve().parents)


def expanded(text: str, name: str = "") -> Path:
    """Return a path with its `~` or `~user` expanded.

    `name` is the key or option that holds the path; error messages begin with it. Raises `RunError`
    if there is no such user, or if the text cannot be a path.
    """
    where = f'{name} = "{text}"' if name else text
    if problem := problem_of(text):
        raise RunError(f"{where}: {problem}")
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        what = f"the home folder of {Path(text).parts[0]} is not known; write the full path"
        raise RunError(f"{where}: {what}") from error


def absolute(text: str, name: str) -> Path:
    """Return the path that a key holds; a relative path is refused.

    Each process would resolve a relative path against its own working directory. Raises `RunError`.
    """
    path = expanded(text, name)
    if not path.is_absolute():
        there = path.absolute() if path.exists() else f"~/{text}"
        raise RunError(f'{name} = "{text}": must be absolute or start with ~, for example {there}')
    return path
