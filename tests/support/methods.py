"""What a method cannot do without, for tests of all methods."""

from fedapps.core import registry


def needed(method: str) -> str:
    """Return the run-config that a method needs beside a tiny one."""
    return 'model="lenet5"' if registry.strategy_class(method).needs_norms else ""
