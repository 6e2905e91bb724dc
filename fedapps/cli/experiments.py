"""Repeat the papers' experiments: hand the words on to `python -m experiments`."""

import ast
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

MODULE = "experiments.__main__"  # above this package, and found by name
HEAD = "usage: fedapps experiments COMMAND ...   (the same as python -m experiments COMMAND ...)\n"


def hand_on(words: Sequence[str]) -> int:
    """Do what the words say; the overview is read from the source, as importing it takes long."""
    if words and words[0] not in ("-h", "--help"):
        return int(import_module(MODULE).main(words))
    spec = find_spec(MODULE)
    assert spec is not None and spec.origin is not None
    source = Path(spec.origin).read_text("utf-8")
    print(f"{HEAD}\n{ast.get_docstring(ast.parse(source))}")
    return 0
