"""Parameters of tests that run only when asked for with `-m`; pyproject.toml says which."""

from functools import partial

import pytest

THOROUGH = partial(pytest.param, marks=pytest.mark.thorough)
LONG = partial(pytest.param, marks=pytest.mark.long)
