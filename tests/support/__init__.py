"""What several test files share: fakes, references and helpers. Fixtures are in conftest.py."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]  # of the repository

# their assertions say as much as those of tests
pytest.register_assert_rewrite(
    *(f"{__name__}.{file.stem}" for file in Path(__file__).parent.glob("[a-z]*.py"))
)
