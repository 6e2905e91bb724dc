"""What a method needs to run, or to run within seconds, for tests of all methods."""

from fedapps.core import registry


def needed(method: str) -> str:
    """Return the run-config that a method needs beside a tiny one."""
    if method == "pfedme":
        return "pfedme.local-rounds=3"
    if method == "pfedhn":  # its server trains a hundred weights for each one of the model
        return 'model="lenet5"'
    return 'model="lenet5"' if registry.strategy_class(method).needs_norms else ""
