"""Marks of tests: those that run only when asked for with `-m`, and what they need to run."""

import sys
from functools import partial
from pathlib import Path

import pytest

THOROUGH = partial(pytest.param, marks=pytest.mark.thorough)
LONG = partial(pytest.param, marks=pytest.mark.long)
# `fedapps serial --workers 2` is refused on other systems.
WORKERS = pytest.mark.skipif(sys.platform != "linux", reason="2026-11-26: workers need Linux")
FULL = Path("/dev/full")  # a device that takes nothing
FULL_DISK = pytest.mark.skipif(not FULL.exists(), reason="2026-11-28: only Linux has /dev/full")


def extra(module: str):
    """Return a module of an extra, or skip what needs it."""
    reason = f"2026-11-28: {module} is not installed; make test installs it"
    return pytest.importorskip(module, reason=reason)
