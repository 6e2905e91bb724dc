"""Runs of the engine's tests are on 120 images of 8x8 pixels, a fraction of a second each."""

import pytest


@pytest.fixture
def flat_config(flat_config, tiny_npz):
    """Return flat(*run_config): the tiny run-config on less data; later options win."""
    return lambda *run_config: flat_config(tiny_npz, *run_config)
