"""Which keys work with which method: the page has what the code finds, and runs agree with it."""

import pytest

from fedapps import cli
from fedapps.core import log
from fedapps.core.errors import RunError
from fedapps.core.schema import literal
from fedapps.engine import combinations
from fedapps.engine.combinations import COLUMNS, NO
from tests.support import ROOT


@pytest.mark.slow
def test_the_page_of_methods_has_the_table_that_the_code_makes(capsys):
    try:
        assert cli.main(["methods", "--keys", "--markdown"]) == 0
    finally:
        log.set_level("info")
    text = (ROOT / "docs" / "methods.md").read_text("utf-8")
    below = text.partition("<!-- fedapps methods --keys --markdown -->\n")[2]
    assert below == capsys.readouterr().out, "put what it prints below the marker"


@pytest.mark.slow
@pytest.mark.parametrize("method", ["ditto", "feddyn"])
@pytest.mark.parametrize("column", [column for column in COLUMNS if column != "group"])
def test_a_run_does_what_its_cell_says(method, column, serial_run):
    keys = COLUMNS[column]
    options = " ".join(f"{key}={literal(value)}" for key, value in keys.items())
    found, why = combinations.cell(method, keys)
    try:
        serial_run(f'strategy="{method}" num-rounds=1 {options}')
    except RunError as error:
        assert found == NO and why in str(error).replace(method, "the method")
    else:
        assert found != NO
