"""Every method does what an independent plain PyTorch implementation of its paper does."""

import re

import pytest

from tests.support import ROOT
from tests.support.marks import THOROUGH
from tests.support.methods import UNLIKE
from tests.twins.harness import SETTINGS, differences, twins

BOTH = (*UNLIKE, "fedamp", "perfedavg")  # whose two settings are two formulas


@pytest.mark.parametrize(("method", "setting"), [
    (THOROUGH if setting == "plain" and method not in BOTH else pytest.param)(method, setting)
    for method in twins()
    for setting in SETTINGS
])  # fmt: skip
def test_a_method_equals_its_twin(method, setting, tmp_path):
    found = differences(method, setting, tmp_path)
    assert max(found.values()) < 1e-5, found


def test_every_method_has_a_twin_and_a_row_in_the_docs():
    methods = {path.stem for path in (ROOT / "strategies").glob("[a-z]*.py")}
    assert methods == {*twins()}
    text = (ROOT / "docs" / "checks.md").read_text("utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (\de-\d\d) \| (\de-\d\d) \|$", text, re.M)
    assert {method for method, *_ in rows} == {*twins()}
    assert all(float(far) < 1e-5 for _, *figures in rows for far in figures)
