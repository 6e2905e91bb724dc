"""Finds names in a method's classes that look like misspelt hooks, which nothing would call."""

import inspect
from collections.abc import Iterator
from types import CodeType

from fedapps.core.words import nearest

SIMILAR = 0.8  # a name this similar to that of a hook is probably meant to be the hook


def misspelt(cls: type, base: type, *hooks: type) -> Iterator[tuple[str, str]]:
    """Yield the names that a method's class adds to its base class and that resemble a hook's.

    The classes `hooks` define the hooks. A name that begins with the hook's, such as a plural, is
    meant to be another one if it is no function, or if the method itself uses it.
    """
    known = [name for cls in hooks for name in vars(cls) if not name.startswith("_")]
    own = {name for name in dir(cls) if not name.startswith("_")} - {*dir(base)}
    used = set(_names_used(cls, base))
    for name in sorted(own):
        hook = nearest(name, known, SIMILAR)
        longer = hook and name.startswith(hook)
        serves = name in used or not inspect.isfunction(inspect.getattr_static(cls, name))
        if hook and not (longer and serves):
            yield name, hook


def _names_used(cls: type, base: type) -> Iterator[str]:
    """Yield the names that the functions of a class use, and of those between it and its base."""
    for part in cls.__mro__:
        if part in base.__mro__:
            continue
        for value in vars(part).values():
            for function in (value, getattr(value, "fget", None), getattr(value, "__func__", None)):
                if inspect.isfunction(function):
                    yield from _names_in(function.__code__)


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names_in(inner)
