"""Finds names in a method's classes that look like misspelt hooks, which nothing would call."""

import ast
import inspect
import sys
from collections.abc import Iterator
from contextlib import suppress

from fedapps.core.words import nearest

SIMILAR = 0.8  # a name this similar to that of a hook is probably meant to be the hook


def misspelt(cls: type, base: type, *hooks: type) -> Iterator[tuple[str, str]]:
    """Yield the names that a method's class adds to its base class and that resemble a hook's.

    The classes `hooks` define the hooks. A name that begins with the hook's, such as a plural, is
    meant to be another one if it is no function, or if the method's own files use it.
    """
    known = [name for cls in hooks for name in vars(cls) if not name.startswith("_")]
    own = {name for name in dir(cls) if not name.startswith("_")} - {*dir(base)}
    for name in sorted(own):
        hook, value = nearest(name, known, SIMILAR), getattr(cls, name)
        is_function = callable(value) and not inspect.isclass(value)
        longer = hook and name.startswith(hook)
        if hook and not (longer and (not is_function or name in _attributes_read(cls, base))):
            yield name, hook


def _attributes_read(cls: type, base: type) -> set[str]:
    """Return all `x.name` in the files of a class, and of those between it and its base."""
    names = set[str]()
    for module in {part.__module__ for part in cls.__mro__ if part not in base.__mro__}:
        with suppress(KeyError, OSError, TypeError, SyntaxError):  # no file, or it has changed
            for node in ast.walk(ast.parse(inspect.getsource(sys.modules[module]))):
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                    names.add(node.attr)
    return names
