"""Marks of tests: those that run only when asked for with `-m`, and what they need to run."""

import sys
from functools import partial

import pytest

THOROUGH = partial(pytest.param, marks=pytest.mark.thorough)
LONG = partial(pytest.param, marks=pytest.mark.long)
# `fedapps serial --workers 2` is refused on other systems.
WORKERS = pytest.mark.skipif(sys.platform != "linux", reason="2026-11-26: workers need Linux")


def extra(module: str):
    """Return a module of an extra, or skip what needs it."""
    reason = f"2026-11-28: {module} is not installed; make test installs it"
    return pytest.importorskip(module, reason=reason)
