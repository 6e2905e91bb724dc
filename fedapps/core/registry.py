"""Finds methods: `strategies/x.py` and its twin `clients/x.py` are method x.

Each of the two modules defines one class, a `BaseStrategy` or a `BaseClient`. The strategy's module
can also define `Settings`, with the keys of the method's run-config table.
"""

import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from fedapps.core import project
from fedapps.core.errors import RunError
from fedapps.core.schema import MethodSettings, Scalar, convert, literal, table_of
from fedapps.core.words import did_you_mean

# Packages above this one: methods are found in them by name.
STRATEGIES, CLIENTS = "strategies", "clients"
ONE_VALUE = "; must be one value: an int, a float, a text, true or false"
# Of each module in them: its spec, which is another one once it is reloaded, and what its file was.
_loaded: dict[str, tuple[object, bytes]] = {}


@cache
def names() -> tuple[str, ...]:
    """Return the names of all methods, sorted; raises `RunError` as `check_packages` does."""
    check_packages(STRATEGIES, CLIENTS)
    found = (
        module.name for module in pkgutil.iter_modules(importlib.import_module(STRATEGIES).__path__)
    )
    return tuple(sorted(name for name in found if not name.startswith("_")))


def check_packages(*packages: str) -> None:
    """Refuse packages that are not beside `fedapps`, or modules that are found in their place.

    They are an old checkout in the working directory, or files of a user with the same names. No
    code of them is run.
    """
    mine = Path(__file__).parents[2]
    for name in packages:
        spec = find_spec(name)
        places = (spec.submodule_search_locations or [str(spec.origin)]) if spec else ["nowhere"]
        if (parent := Path(places[0]).parent) != mine:
            what = f"fedapps comes from {mine} but {name} from {parent}"
            raise RunError(f"{what}: remove one of them, or rename {Path(places[0]).name}")


def strategy_class(name: str) -> Any:
    """Return the strategy class of method `name`; raises `RunError` if there is no such method."""
    module = _module(STRATEGIES, name)
    from flwr.serverapp.strategy import Strategy  # slow, and a wrong name does not need it

    return _own_class(module, Strategy, "BaseStrategy")


def client_class(name: str) -> Any:
    """Return the client class of method `name`; raises `RunError` if there is no such method."""
    module = _module(CLIENTS, name)
    from flwr.client import NumPyClient

    return _own_class(module, NumPyClient, "BaseClient")


def settings_class(name: str) -> Any:
    """Return the settings class of method `name` (`MethodSettings` if it has no keys).

    Raises `RunError` if the class and the method's table in pyproject.toml do not fit together.
    """
    module = _module(STRATEGIES, name)
    own = getattr(module, "Settings", MethodSettings)
    cls = own if own.__module__ == module.__name__ else MethodSettings
    _check_keys(name, cls)
    return cls


def _check_keys(name: str, cls: type[MethodSettings]) -> None:
    """Refuse a default in the class, and keys in pyproject.toml that nobody would read."""
    file, table = f"{STRATEGIES}/{name}.py", f"[tool.flwr.app.config.{name}]"
    for field in msgspec.structs.fields(cls):
        if not field.required:
            fits = isinstance(field.default, Scalar)
            value, rule = (literal(field.default), "") if fits else ("...", ONE_VALUE)
            raise RunError(
                f"{file}: {field.name} has a default in the class Settings; its default belongs in "
                f"pyproject.toml: {field.encode_name} = {value} in {table}{rule}"
            )
    general, known = project.run_config(), cls.__struct_encode_fields__
    for key in general.get(name, {}):
        is_general = not isinstance(general.get(key, {}), dict)  # and this a default for it
        if key not in known and not is_general:
            what = f"{table} has {key}, but {file} has no such key{did_you_mean(key, known)}"
            raise RunError(f"pyproject.toml: {what}; rename it, or remove it")


def method_settings(name: str, flat: Mapping[str, Scalar]) -> Any:
    """Check the settings that a flat run-config has for method `name`, and return them."""
    cls = settings_class(name)
    own = {k: v for k, v in table_of(flat, name).items() if k in cls.__struct_encode_fields__}
    return convert(own, cls, name + ".")


def unused(name: str, flat: Mapping[str, Scalar]) -> tuple[str, ...]:
    """Return the keys that method `name` does not read, as far as its own keys tell.

    There are none where it depends on the model, or if the method is not here or does not work.
    """
    try:
        cls = strategy_class(name)
        strategy = cls.__new__(cls)  # not made, for which it needs data and a model
        strategy.options = method_settings(name, flat)
        return tuple(strategy.unused)
    except Exception:  # the author's code can raise anything
        return ()


def plots(name: Any) -> tuple[Any, ...]:
    """Return the event plots that method `name` declares.

    There are none if the method is not here, as for a run of another project, or does not work.
    """
    try:
        return tuple(strategy_class(name).plots)
    except Exception:  # the author's code can raise anything
        return ()


def check(name: str) -> None:
    """Raise `RunError` if there is no method `name`."""
    if name not in names():
        close = did_you_mean(name.casefold(), names())
        hint = f"unknown{close}; " if close else ""
        raise RunError(f'strategy = "{name}": {hint}must be one of {", ".join(names())}')


def file_of(module: str) -> Path:
    """Return the file of a loaded module."""
    return Path(str(sys.modules[module].__file__))


def remember(cls: type) -> None:
    """Remember the files that a method's class comes from; called as Python makes the class."""
    for module in modules_of(cls):
        with suppress(OSError):  # its file is gone
            loaded(module)


def modules_of(*classes: type) -> set[str]:
    """Return the modules of a method's classes, and of the methods' classes they are made from."""
    names = {base.__module__ for cls in classes for base in cls.__mro__}
    return {name for name in names if name.partition(".")[0] in (STRATEGIES, CLIENTS)}


def loaded(module: str) -> bytes:
    """Return the file of a method's module as this process has loaded it.

    A notebook keeps the code that it has loaded, whatever is written into the file afterwards.
    """
    spec = sys.modules[module].__spec__
    if module not in _loaded or _loaded[module][0] is not spec:
        _loaded[module] = spec, file_of(module).read_bytes()
    return _loaded[module][1]


def _module(package: str, name: str) -> ModuleType:
    check(name)
    path = f"{package}.{name}"
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name != path:
            raise
        raise RunError(f"{path}: no such module; method {name} needs it") from error
    except TypeError as error:  # of msgspec, as it makes the class: `_check_keys` comes too late
        if not (told := re.match("Required field '(.*)' cannot follow", str(error))):
            raise
        raise RunError(
            f"{STRATEGIES}/{name}.py: a key before {told[1]} has a default in the class Settings; "
            f"its default belongs in pyproject.toml, in [tool.flwr.app.config.{name}]"
        ) from error


def _own_class(module: ModuleType, base: type, name: str) -> type:
    """Return the only class of the module that derives from Flower's class `base`.

    `name` is our own base class, for the error message: packages above this one define it, so it
    cannot be imported here.
    """
    own = [
        value
        for value in vars(module).values()
        if inspect.isclass(value)
        and value.__module__ == module.__name__
        and issubclass(value, base)
    ]
    if len(own) != 1:
        raise RunError(f"{module.__name__}: must define one subclass of {name}, has {len(own)}")
    return own[0]
