"""Personalized federated learning on Flower: the application that all methods use.

    import fedapps

    run = fedapps.run(strategy="fedper", dataset="digits", num_rounds=3)
    run.rounds, run.summary, run.predict(0, images)
    fedapps.compare([run, "~/fedapps-runs/other"]).table

docs/python.md explains these names, which are imported when they are first used.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if sys.platform == "win32":  # before the first import that fails there
    sys.exit("error: fedapps needs Linux or macOS; on Windows, use WSL")

if TYPE_CHECKING:
    from fedapps.compare.in_python import Comparison as Comparison
    from fedapps.core.errors import RunError as RunError
    from fedapps.engine.failed_clients import ClientError as ClientError
    from fedapps.python_api import Run as Run
    from fedapps.python_api import compare as compare
    from fedapps.python_api import load as load
    from fedapps.python_api import run as run

_HOMES = {
    "ClientError": "fedapps.engine.failed_clients",
    "Comparison": "fedapps.compare.in_python",
    "RunError": "fedapps.core.errors",
}
__all__ = ["ClientError", "Comparison", "Run", "RunError", "compare", "load", "run"]


class _Package(ModuleType):
    """Keeps the function `fedapps.compare`, although there is a package of the same name."""

    def __setattr__(self, name: str, value: object) -> None:
        if name not in __all__ or not isinstance(value, ModuleType):  # Python sets subpackages
            super().__setattr__(name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        return import_module, (self.__name__,)


sys.modules[__name__].__class__ = _Package

if not TYPE_CHECKING:  # otherwise mypy would accept any name

    def __getattr__(name: str) -> Any:
        """Import a public name."""
        if name not in __all__:
            raise AttributeError(f"module {__name__} has no attribute {name}")
        value = globals()[name] = getattr(
            import_module(_HOMES.get(name, "fedapps.python_api")), name
        )
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
