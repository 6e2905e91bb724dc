"""Paths that people give: `~` is expanded, and what no file can be called is refused."""

from pathlib import Path

from fedapps.core.errors import RunError


def problem_of(text: str) -> str:
    """Say why a text cannot be that of a setting, a path or a line; empty if it can."""
    if "\0" in text:
        return "must be without NUL characters"
    try:
        text.encode()
    except UnicodeEncodeError:  # bytes of a command line that are no UTF-8, or half a character
        return "must be text in UTF-8"
    return ""


def expanded(text: str, name: str = "") -> Path:
    """Return a path with its `~` or `~user` expanded; `name` is that of the key or option.

    Raises `RunError` if there is no such user, or if no path is called so.
    """
    where = f'{name} = "{text}"' if name else text
    if problem := problem_of(text):
        raise RunError(f"{where}: {problem}")
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        what = f"no home folder of {Path(text).parts[0]} is known; write the whole path"
        raise RunError(f"{where}: {what}") from error


def absolute(text: str, name: str) -> Path:
    """Return the path of a key; a relative one is refused, as each process would resolve its own.

    Raises `RunError`.
    """
    path = expanded(text, name)
    if not path.is_absolute():
        raise RunError(f'{name} = "{text}": must be absolute or start with ~, as ~/{text}')
    return path
