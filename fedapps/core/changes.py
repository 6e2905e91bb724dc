"""What a run's settings say of it: what its numbers depend on, and what is not as by default."""

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

from fedapps.core import config
from fedapps.core.schema import Scalar, literal

# Where and how a run works. Some of them move the last digit (threads, presum, device).
INCIDENTAL = frozenset(
    {
        "cache-limit",
        "channel-address",
        "channel-nodes",
        "channel-reach",
        "channel-tls",
        "checkpoint-every",
        "data-root",
        "device",
        "join-timeout",
        "keep-best",
        "loggers",
        "max-failures",
        "max-samples",
        "min-available",
        "presum",
        "resume",
        "round-timeout",
        "run-name",
        "runs-dir",
        "step-timeout",
        "threads",
    }
)
NAMED = ("strategy", "dataset", "seed")  # what every name of a run begins and ends with
LONGEST = 100  # characters of a name that tell what was changed


def counting(flat: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Return what a run's numbers depend on: the values that hold for its method, by key.

    Keys of other methods have no effect on it, and `INCIDENTAL` ones no effect that matters.
    """
    general, full = config.effective(flat), config.resolved(flat)
    used = config.tables_in_use(flat)
    for key, value in full.items():
        table, _, short = key.partition(".")
        if short and table in used and short not in general:
            general[key] = value
    return {key: value for key, value in general.items() if key not in INCIDENTAL}


def changed(flat: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Return what a run does otherwise than its method by default, method, data and seed apart."""
    by_default, found = usual(str(flat["strategy"])), counting(flat).items()
    return {key: v for key, v in found if key not in NAMED and (key, v) not in by_default.items()}


def usual(strategy: str) -> dict[str, Scalar]:
    """Return what `counting` is of a run that sets nothing but its method, and other tables."""
    known = config.defaults()
    return config.resolved(known) | counting(known | {"strategy": strategy})


def data_name(dataset: Scalar) -> str:
    """Return a short name of a data set, which may be the path of a file."""
    return re.sub(r"[^\w.-]+", "-", Path(str(dataset)).stem)


def name_of(flat: Mapping[str, Scalar], unique: bool = False) -> str:
    """Return a name for a run's folder: method, data, what was changed, seed.

    `validation` stands there for samples that are not test samples. Where very much was changed,
    the name says how much it leaves out, or with `unique` has a digest of all.
    """
    parts = [f"{flat['strategy']}-{data_name(flat['dataset'])}"]
    told = 0
    changes = changed(flat)
    for key in sorted(changes, key=lambda key: key != "evaluate-on"):  # the rest in their order
        part = ("" if key == "evaluate-on" else key + "=") + _plain(changes[key])
        if sum(map(len, parts)) + len(part) > LONGEST:
            break
        parts.append(part)
        told += 1
    if told < len(changes):
        parts.append(digest(flat) if unique else f"and-{len(changes) - told}-more")
    return "-".join([*parts, f"s{flat['seed']}"])


def digest(flat: Mapping[str, Scalar]) -> str:
    """Return eight digits that differ where what a run's numbers depend on does."""
    text = repr(sorted((key, str(value)) for key, value in counting(flat).items()))
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def text_of(changes: Mapping[str, Scalar]) -> str:
    """Return settings as they stand in a run-config: `lr=0.01 split="official"`."""
    return " ".join(f"{key}={literal(value)}" for key, value in changes.items())


def _plain(value: Scalar) -> str:
    return re.sub(r"[^\w.,+-]+", "-", literal(value).strip("\"'"))
