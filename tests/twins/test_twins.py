"""Every method does what an independent plain PyTorch implementation of its paper does."""

import pytest

from fedapps.core import registry
from tests.twins.harness import SETTINGS, differences, twins

# As of 2026-11-25: their twins are to be written from their pages (docs/papers).
WAITING = {"fedas", "feddbe", "fedproto", "moon", "scaffold"}


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("method", twins())
def test_a_method_equals_its_twin(method, setting, tmp_path):
    found = differences(method, setting, tmp_path)
    assert max(found.values()) < 1e-5, found


def test_every_method_has_a_twin():
    assert {*registry.names()} - {*twins()} == WAITING
