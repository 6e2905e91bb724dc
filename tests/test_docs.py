"""What the documents say is so."""

import re
import subprocess
import sys
from pathlib import Path

from fedapps import cli
from fedapps.cli.keys import markdown
from fedapps.core import config, registry

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")


def test_readme_has_the_table_of_keys_that_the_code_makes():
    inside = README.partition("<!-- keys: python -m fedapps keys -->\n")[2]
    assert inside.partition("\n<!-- end of keys -->")[0] == "\n".join(markdown())


def test_readme_names_every_method():
    table = README.partition("## Methods")[2].partition("## What comes out")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.M)) == set(registry.names())


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


def test_whoever_reads_only_the_first_line_sees_no_traceback():
    command = f'"{sys.executable}" -m fedapps keys --markdown | head -n 1'
    done = subprocess.run(command, shell=True, capture_output=True, text=True, cwd=ROOT)
    assert (done.stdout, done.stderr) == ("| key | type | default | meaning |\n", "")
