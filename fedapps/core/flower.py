"""The one place that imports modules of Flower which can change with every version.

Flower promises to keep `flwr.app`, `flwr.client`, `flwr.clientapp`, `flwr.serverapp`,
`flwr.serverapp.strategy` and `flwr.simulation`. Any other module of Flower that we import from is
named here, with the names that we take from it (`device/warm.py` is the exception, and explains
why). A module in which we only replace something is named where that is done. A name is imported
when it is first used, because few processes need all of them, and some take seconds.

For speed, we replace some functions of Flower while it runs. Code that does so first checks that
the module is still the one that we know (`Known.load`). If it is not, the code leaves the module as
it is and says so (`leave_as_it_is`).
"""

import ast
import functools
import importlib
import importlib.metadata
import importlib.util
import inspect
import operator
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from fedapps.core import log as log_lines

if TYPE_CHECKING:
    from flwr.app.message import make_message as make_message
    from flwr.common.config import unflatten_dict as unflatten_dict
    from flwr.common.constant import ErrorCode as ErrorCode
    from flwr.common.logger import log as log
    from flwr.supercore.constant import SYSTEM_MESSAGE_TYPE as SYSTEM_MESSAGE_TYPE
    from flwr.supercore.exit import ExitCode as ExitCode
    from flwr.supercore.exit import add_exit_handler as add_exit_handler
    from flwr.supercore.exit import flwr_exit as flwr_exit
    from flwr.supercore.privacy_accounting import GaussianPrivacyEvent as GaussianPrivacyEvent
    from flwr.supercore.privacy_accounting import NeighboringRelation as NeighboringRelation
    from flwr.supercore.privacy_accounting import PrivacyConfig as PrivacyConfig
    from flwr.supercore.privacy_accounting import SamplingMethod as SamplingMethod
    from flwr.supercore.task_identity import TaskIdentity as TaskIdentity
    from flwr.superlink.grid.http_grid import HttpGrid as HttpGrid

CLOCK_AHEAD, CLOCK_BEHIND = 5, 305  # seconds; Flower refuses a device whose clock is off by more
SILENT = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
TESTED = "1.41"  # the version in requirements.lock, which is known to work
_MODULES = {
    "flwr.app.message": ("make_message",),
    "flwr.common.config": ("unflatten_dict",),
    "flwr.common.constant": ("ErrorCode",),
    "flwr.common.logger": ("log",),
    "flwr.supercore.constant": ("SYSTEM_MESSAGE_TYPE",),
    "flwr.supercore.exit": ("ExitCode", "add_exit_handler", "flwr_exit"),
    "flwr.supercore.privacy_accounting": (
        "GaussianPrivacyEvent",
        "NeighboringRelation",
        "PrivacyConfig",
        "SamplingMethod",
    ),
    "flwr.supercore.task_identity": ("TaskIdentity",),
    "flwr.superlink.grid.http_grid": ("HttpGrid",),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}

if not TYPE_CHECKING:  # otherwise mypy would accept any name

    def __getattr__(name: str) -> Any:
        """Import a name from Flower; raises an `ImportError` of one line if it is missing."""
        if name not in _HOMES:
            raise AttributeError(f"module {__name__} has no attribute {name}")
        try:
            value = getattr(importlib.import_module(_HOMES[name]), name)
        except (ImportError, AttributeError) as error:
            raise ImportError(
                f"Flower {version()} has no {_HOMES[name]}.{name} ({error}); "
                f"install one that is known to work: pip install 'flwr=={TESTED}.*'"
            ) from error
        globals()[name] = value  # this function is not called for it again
        return value


def renyi(accountant: Any) -> tuple[Any, Any]:
    """Return the orders of an `RdpAccountant`, and the RDP of its releases at each: arrays [k]."""
    backend = accountant._backend
    return backend.orders, backend.rdp


def version() -> str:
    """Return the version of the installed Flower, or "?" if it cannot be found out."""
    for package in ("flwr", "flwr-nightly"):
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "?"


def bin_dir() -> Path:
    """Return the folder of this interpreter's programs (not resolved: each venv has its own)."""
    return Path(sys.executable).parent


def environment() -> dict[str, str]:
    """Return the environment for Flower's programs, for a process before it loads Flower.

    In PATH, this interpreter's programs come first: Flower starts its own by their names. Flower
    reports nothing to its makers (`SILENT`), if the user has not said whether it may.
    """
    path = os.pathsep.join([str(bin_dir()), os.environ.get("PATH", "")])
    return SILENT | dict(os.environ) | {"PATH": path}


def command(name: str) -> Callable[[], None]:
    """Return the function that Flower's command `name` runs, wherever this version defines it.

    Raises `ImportError` if there is no such command.
    """
    for entry in importlib.metadata.entry_points(group="console_scripts", name=name):
        function: Callable[[], None] = entry.load()
        return function
    raise ImportError(f"Flower {version()} has no command {name}; is flwr installed?")


@functools.cache  # once in a process
def leave_as_it_is(what: str, why: str, cost: str) -> None:
    """Report in one line which function of Flower is not replaced, why, and what that costs."""
    log_lines.info(
        "note: Flower %s: %s is left as it is, because %s; %s", version(), what, why, cost
    )


class ChangedError(Exception):
    """Flower is not what we know; the text says in one line what is different."""


@dataclass(frozen=True)
class Known:
    """What we know about a module of Flower in which we replace something while it runs."""

    module: str
    # modules that it imports, by their names in it
    holds: Mapping[str, ModuleType] = field(default_factory=dict)
    # for each pattern, all matches in its source
    finds: Mapping[str, set[str]] = field(default_factory=dict)
    parameters: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # by function
    has: tuple[str, ...] = ()  # what else is used of it

    def load(self) -> ModuleType:
        """Return the module; raises `ChangedError` if it is not as we know it."""
        try:
            module = importlib.import_module(self.module)
            source = inspect.getsource(module)
            found = {name: getattr(module, name) for name in self.holds}
            functions = {name: operator.attrgetter(name)(module) for name in self.parameters}
            parameters = {name: tuple(_parameters(f)) for name, f in functions.items()}
            for name in self.has:
                operator.attrgetter(name)(module)
        except (ImportError, AttributeError, OSError, TypeError, ValueError) as error:
            raise ChangedError(f"{self.module}: {error}") from error
        for name, expected in self.holds.items():
            if found[name] is not expected:
                raise ChangedError(f"{self.module}.{name} is not the module {name}")
        for name, known in self.parameters.items():
            if parameters[name] != known:
                raise ChangedError(f"{name} takes {parameters[name]}, not {known}")
        for pattern, texts in self.finds.items():
            if (new := set(re.findall(pattern, source))) != texts:
                raise ChangedError(f"{self.module} has {sorted(new)}, not {sorted(texts)}")
        return module


def check_source(module: str, parameters: Mapping[str, tuple[str, ...]]) -> None:
    """Check functions of a module without loading it; raises `ChangedError`."""
    try:
        spec = importlib.util.find_spec(module)
        tree = ast.parse(Path(str(spec and spec.origin)).read_text("utf-8"))
    except (ImportError, OSError, ValueError, SyntaxError) as error:
        raise ChangedError(f"{module}: {error}") from error
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    found = {node.name: tuple(arg.arg for arg in node.args.args) for node in functions}
    for name, known in parameters.items():
        if found.get(name) != known:
            raise ChangedError(f"{module}.{name} takes {found.get(name)}, not {known}")


class Overlay:
    """Stands in for a module: has the attributes that it is given, and all others of the module."""

    def __init__(self, module: ModuleType, **own: Any) -> None:
        self._module = module
        vars(self).update(own)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(function).parameters
