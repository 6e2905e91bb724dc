"""Marks of tests: those that run only when asked for with `-m`, and where workers are needed."""

import sys
from functools import partial

import pytest

THOROUGH = partial(pytest.param, marks=pytest.mark.thorough)
LONG = partial(pytest.param, marks=pytest.mark.long)
# `fedapps serial --workers 2` is refused on other systems (2026-11-26).
WORKERS = pytest.mark.skipif(sys.platform != "linux", reason="workers need Linux")
