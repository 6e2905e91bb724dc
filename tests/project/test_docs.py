"""What the documents say is so."""

import re

import pytest

from fedapps import cli
from fedapps.core import config, project, registry
from tests.support import ROOT

README = (ROOT / "README.md").read_text("utf-8")


def test_readme_is_one_sitting():
    assert len(README.splitlines()) <= 160


def test_readme_begins_with_the_two_commands_and_then_says_how_pip_does_it():
    """Flower's hub drops the Makefile, so pip's way is there too."""
    first, second = re.findall(r"^```sh\n(.*?)^```", README, re.M | re.S)[:2]
    assert [line.split("#")[0].strip() for line in first.splitlines()] == ["make run", "make test"]
    assert second.splitlines()[0] == "pip install -e ." and "fedapps serial" in second
    assert "make" not in second
    assert README.count("flwr run . --run-config 'strategy=\"perfreezeclip\"' --stream") == 1


@pytest.mark.parametrize("page", ["README.md", "docs/methods.md"])
def test_readme_and_the_page_of_methods_name_every_method(page):
    text = (ROOT / page).read_text("utf-8")
    rows, one = r"^\| `(\w+)` \|", text.partition("## What")[0]
    if page == "README.md":  # a row for each idea
        one, rows = text.partition("## Methods")[2].partition("[Methods]")[0], r"`(\w+)`"
    assert sorted(re.findall(rows, one, re.M)) == list(registry.names())
    assert f"provides {len(registry.names())} methods" in README


def test_the_citation_is_of_this_version():
    text = (ROOT / "CITATION.cff").read_text("utf-8")
    about = project.pyproject()["project"]
    assert f"\nversion: {about['version']}\n" in text
    assert f'\ntitle: "{about["name"]}: ' in text


def test_every_method_has_a_small_run_config():
    for name in registry.names():
        text = (ROOT / "experiments" / "configs" / f"{name}.toml").read_text("utf-8")
        assert f'strategy = "{name}"' in text


def test_architecture_names_every_package_and_no_file_that_is_not_there():
    text = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    for path in (ROOT / "fedapps").glob("*"):
        if path.name[0] != "_" and (path.suffix == ".py" or path.is_dir()):
            name = path.name if path.suffix else f"{path.name}/"
            assert f"`{name}" in text, f"{name} is not in ARCHITECTURE.md"
    for path in re.findall(r"`(\w+/\w\w+\.py)`", text):  # not the x.py of a method x
        found = [(ROOT / "fedapps" / path).exists(), (ROOT / path).exists()]
        assert any(found), f"ARCHITECTURE.md names {path}"


def test_methods_are_listed_in_a_hundred_columns_with_all_their_keys(capsys):
    assert cli.main(["methods"]) == 0
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert max(map(len, lines)) <= 100
    starts = [line.split()[0] for line in lines[1:] if not line.startswith(" ")]
    assert tuple(starts) == tuple(registry.names())
    words = set(" ".join(lines).replace(",", " ").split())
    parts = (key.partition(".") for key in config.defaults())
    own = {key for name, _, key in parts if name in registry.names()}
    assert own <= words
