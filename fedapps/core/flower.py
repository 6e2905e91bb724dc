"""The one place that imports what Flower does not promise to keep from version to version.

What it promises are `flwr.app`, `flwr.client`, `flwr.clientapp`, `flwr.serverapp`,
`flwr.serverapp.strategy` and `flwr.simulation`; every other module of Flower is named here, with
what we take of it, and nowhere else (`device/warm.py` says why it is the exception). A name is
imported when it is first used: few processes need all of them, and some take seconds.

Some of Flower is replaced while it runs, for speed. Whoever does that asks first whether it still
is what we know (`Known.load`), and else leaves it as it is and says so (`leave_as_it_is`).
"""

import functools
import importlib
import importlib.metadata
import inspect
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
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
    from flwr.supercore.run import Run as Run
    from flwr.supercore.task_identity import TaskIdentity as TaskIdentity
    from flwr.superlink.grid.http_grid import HttpGrid as HttpGrid

TESTED = "1.41"  # the version that requirements.lock has and that is known to work
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
    "flwr.supercore.run": ("Run",),
    "flwr.supercore.task_identity": ("TaskIdentity",),
    "flwr.superlink.grid.http_grid": ("HttpGrid",),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}

if not TYPE_CHECKING:  # else every name would be one of this module

    def __getattr__(name: str) -> Any:
        """Import a name of Flower; raises `ImportError` in one line if this Flower lacks it."""
        if name not in _HOMES:
            raise AttributeError(f"module {__name__} has no attribute {name}")
        try:
            value = getattr(importlib.import_module(_HOMES[name]), name)
        except (ImportError, AttributeError) as error:
            raise ImportError(
                f"Flower {version()} has no {_HOMES[name]}.{name} ({error}); "
                f"install one that is known to work: pip install 'flwr=={TESTED}.*'"
            ) from error
        globals()[name] = value  # not asked for again
        return value


def version() -> str:
    """Return the version of the Flower that is installed, "?" if that cannot be told."""
    for package in ("flwr", "flwr-nightly"):
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "?"


def command(name: str) -> Callable[[], None]:
    """Return what Flower's command `name` runs, wherever this version has it.

    Raises `ImportError` if there is no such command.
    """
    for entry in importlib.metadata.entry_points(group="console_scripts", name=name):
        function: Callable[[], None] = entry.load()
        return function
    raise ImportError(f"Flower {version()} has no command {name}; is flwr installed?")


@functools.cache  # once in a process
def leave_as_it_is(what: str, why: str, cost: str) -> None:
    """Say in one line that a part of this Flower is not replaced, why, and what that costs."""
    log_lines.info("note: Flower %s: %s is left as it is, as %s; %s", version(), what, why, cost)


class ChangedError(Exception):
    """Flower is not what we know; the text says in one line what differs."""


@dataclass(frozen=True)
class Known:
    """What we know of a module of Flower of which we replace something while it runs."""

    module: str
    holds: Mapping[str, ModuleType]  # modules that it has imported, by the name in it
    finds: Mapping[str, set[str]]  # all that a pattern finds in its source
    parameters: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # of its functions

    def load(self) -> ModuleType:
        """Return the module; raises `ChangedError` if it is not as we know it."""
        try:
            module = importlib.import_module(self.module)
            source = inspect.getsource(module)
            found = {name: getattr(module, name) for name in self.holds}
            functions = {name: operator.attrgetter(name)(module) for name in self.parameters}
            parameters = {name: tuple(_parameters(f)) for name, f in functions.items()}
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


class Overlay:
    """Stands for a module in another one: has what it is given, and all else is the module's."""

    def __init__(self, module: ModuleType, **own: Any) -> None:
        self._module = module
        vars(self).update(own)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(function).parameters
