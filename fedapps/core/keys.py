"""The table of all keys with type, default and meaning; docs/configuration.md shows it."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from fedapps.core import config, registry
from fedapps.core.schema import Scalar, fields, kind_of, literal
from fedapps.core.settings import TABLES, Settings

# Title and first line of each section. A section begins at the key or table that stands for it.
SECTIONS = {
    "strategy": ("Method and data", "[Data](data.md) explains what the partitioners do."),
    "model": (
        "Model",
        "A model is a list of layers: the last ones are its head, the others its body.",
    ),
    "num-rounds": ("Training", "[Notation](notation.md) explains the symbols and the rules."),
    "evaluate-every": (
        "Evaluation and personalization",
        "[Results and figures](results-and-figures.md#the-metrics) says what each score means.",
    ),
    "devices": ("Virtual time", "[Virtual time](time.md) explains these keys."),
    "server-optimizer": (
        "The server's mean, and attackers",
        "[Robust means](robust.md) says what protects against what, and what it costs.",
    ),
    "device": ("Computing", "[Engines](engines.md) explains where a run computes."),
    "max-failures": (
        "Failures and limits",
        "[Engines](engines.md#when-a-client-fails) says what happens when a client fails.",
    ),
    "channel-address": (
        "Split learning",
        "[Split learning](split-learning.md) explains these keys; most runs do not need them.",
    ),
    "min-available": (
        "SuperNodes and output",
        "These keys say how many SuperNodes a run needs, and where it writes its results.",
    ),
    "checkpoint-every": (
        "Stop and resume",
        "[Stop, resume, look again](resume.md) explains how to resume a killed run.",
    ),
    "loggers": ("Loggers", "[Results and figures](results-and-figures.md#loggers) has an example."),
    "metrics-port": (
        "Prometheus",
        "[Devices](devices.md#prometheus-and-grafana) says what Prometheus gets, and how.",
    ),
    "dp": ("Differential privacy", "[Differential privacy](privacy.md) says what is guaranteed."),
    "methods": (
        "Methods",
        "A method reads only the table with its own name and, if it builds on another method, that "
        "method's table. The symbols are those of its paper; the docstring of its module in "
        "`strategies/` explains them.",
    ),
}


class Key(NamedTuple):
    """A row of the table; `default` is written as in a run-config."""

    name: str
    kind: str
    default: str
    meaning: str


def table() -> list[Key]:
    """Return a row for every key."""
    known = config.resolved(config.defaults())
    return [
        Key(name, kind_of(field), literal(known[name]), field.get("description", ""))
        for name, field in _fields(known)
    ]


def markdown() -> Iterator[str]:
    """Yield the lines of all sections with their tables, as docs/configuration.md shows them."""
    section = ""
    for key in table():
        before, section = section, _section(key.name, section)
        if section != before:
            title, about = SECTIONS[section]
            yield from ("", f"## {title}", "", about, "")
            yield from ("| key | type | default | meaning |", "|---|---|---|---|")
        meaning = key.meaning.replace("|", r"\|")
        yield f"| `{key.name}` | {key.kind} | `{key.default}` | {meaning} |"


def _section(key: str, before: str) -> str:
    """Return the section of a key; `before` is the section of the key before it."""
    name, dot, _ = key.partition(".")
    if name in SECTIONS:
        return name
    return "methods" if dot else before


def _fields(known: Mapping[str, Scalar]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each key with its schema: general keys, then general tables, then methods' tables."""
    general = fields(Settings)
    yield from ((key, field) for key, field in general.items() if key in known)
    for name, cls in TABLES.items():
        yield from ((f"{name}.{short}", field) for short, field in fields(cls).items())
    for name in registry.names():
        own = fields(registry.settings_class(name))
        for key in (key for key in known if key.startswith(name + ".")):
            short = key.partition(".")[2]
            yield key, own.get(short) or general[short] | {"description": f"overrides {short}"}
