"""Repeat the papers' experiments: hand the words on to `python -m experiments`."""

import ast
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

HEAD = "usage: fedapps experiments COMMAND ...   (the same as python -m experiments COMMAND ...)\n"


def hand_on(words: Sequence[str]) -> int:
    """Do what the words say; the overview is read from the source, as importing it takes long."""
    if words and words[0] not in ("-h", "--help"):
        from experiments.__main__ import main

        return main(words)
    spec = find_spec("experiments.__main__")
    assert spec is not None and spec.origin is not None
    source = Path(spec.origin).read_text("utf-8")
    print(f"{HEAD}\n{ast.get_docstring(ast.parse(source))}")
    return 0
