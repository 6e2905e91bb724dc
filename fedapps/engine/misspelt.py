"""Finds hooks in a method's classes that nothing calls: misspelt ones, and setups left out."""

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


def last_setup(cls: type, base: type) -> str:
    """Return which class, of `cls` and those between it and `base`, calls no setup above its own.

    If all seem to, it is the last one that has a setup.
    """
    above = cls.__mro__[: cls.__mro__.index(base)]
    own = [each for each in above if "setup" in vars(each)]
    for each in own:
        code = getattr(inspect.unwrap(vars(each)["setup"]), "__code__", None)
        if code and "setup" not in code.co_names:
            return each.__name__
    return own[-1].__name__


def _attributes_read(cls: type, base: type) -> set[str]:
    """Return all `x.name` in the files of a class, and of those between it and its base."""
    names = set[str]()
    for module in {part.__module__ for part in cls.__mro__ if part not in base.__mro__}:
        with suppress(KeyError, OSError, TypeError, SyntaxError):  # no file, or it has changed
            for node in ast.walk(ast.parse(inspect.getsource(sys.modules[module]))):
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                    names.add(node.attr)
    return names
