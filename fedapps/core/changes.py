"""Which settings a run's results depend on, and which of these differ from the defaults."""

import hashlib
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import chain
from pathlib import Path

from fedapps.core import config
from fedapps.core.data_settings import DEVICE, OF_PARTITIONERS
from fedapps.core.schema import Scalar, literal
from fedapps.core.settings import Settings

# Keys that change the last digits; `cache-limit` also changes how often frozen layers are computed.
LAST_DIGITS = frozenset({
    "cache-limit", "device", "group", "presum", "secure-sum", "threads",
})  # fmt: skip
# Keys that say where and how a run works.
INCIDENTAL = LAST_DIGITS | {
    "channel-address", "channel-nodes", "channel-reach", "channel-tls", "checkpoint-every",
    "data-root", "dp.budget", "federation", "join-timeout", "keep-best", "loggers", "max-failures",
    "max-samples", "metric", "metrics-port", "min-available", "resume", "round-timeout", "run-name",
    "runs-dir", "step-timeout",
}  # fmt: skip
# How clients are personalized and scored: keys that training does not depend on.
PERSONAL = (
    "evaluate-on", "few-shot", "finetune-epochs", "finetune-lr", "finetune-part",
    "score-without-head",
)  # fmt: skip
# Keys that may have other values when a run is resumed: how long it goes on, and what is scored.
GROWING = frozenset({
    "evaluate-clients", "evaluate-every", "evaluate-rounds", "num-rounds", "patience",
})  # fmt: skip
NAMED = ("strategy", "dataset", "seed")  # every name of a run begins and ends with these
# Keys that say what the data are like; the data's name tells most of it, so names have them last.
DESCRIBING = frozenset({
    "class-names", "client-column", "columns", "input-shape", "missing", "num-classes", "split",
    "target-column", "task", "test-fraction", "text-length", "window", "window-step",
})  # fmt: skip
LONGEST = 100  # bytes of a name before its seed: about the limit
DATA_NAME = 60  # bytes of the name of data or a model in that of a folder


def unread(dataset: Scalar, partitioner: Scalar) -> tuple[str, ...]:
    """Return the keys that this partitioner does not read; devices have their data, and need none.

    All are read if there is no such partitioner.
    """
    every = tuple(dict.fromkeys(chain.from_iterable(OF_PARTITIONERS.values())))
    if dataset == DEVICE:
        return ("partitioner", *every)
    read = OF_PARTITIONERS.get(str(partitioner), every)
    return tuple(key for key in every if key not in read)


def counting(flat: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Return the settings that a run's results depend on, with the values for its method, by key.

    They are those of `counted` without the keys that the run's partitioner does not read.
    """
    found = counted(flat)
    without = unread(found["dataset"], found.get("partitioner", ""))
    return {key: value for key, value in found.items() if key not in without}


def counted(flat: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Return the same with the keys of other partitioners, which digests of runs have always had.

    Keys of other methods have no effect on the run, and keys in `INCIDENTAL` have none that
    matters, except that a `metric` decides with `patience` when a run ends. Values that are equal
    are written alike, whatever the user wrote.
    """
    flat = config.typed(flat)
    general, full = config.effective(flat), config.resolved(flat)
    used = config.tables_in_use(flat)
    for key, value in full.items():
        table, _, short = key.partition(".")
        if short and table in used and short not in general:
            general[key] = value
    ends = general.get("patience") and general.get("metric") != "auto"
    return {k: v for k, v in general.items() if k not in INCIDENTAL or (k == "metric" and ends)}


def value_of(key: str, settings: Mapping[str, Scalar]) -> Scalar | None:
    """Return the value of a key among settings of `counting`; None if none of them depends on it.

    A key of the run's method that overrides a general one, such as `fedprox.prox-mu`, is there
    under the general one's name.
    """
    table, _, short = key.partition(".")
    overrides = table == settings["strategy"] and short in settings
    return settings.get(short if overrides else key)


def changed(flat: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Return the settings in which a run differs from its method's defaults.

    Method, data set and seed are left out.
    """
    return _unusual(counting(flat))


def _unusual(found: Mapping[str, Scalar]) -> dict[str, Scalar]:
    by_default = usual(str(found["strategy"])).items()
    return {k: v for k, v in found.items() if k not in NAMED and (k, v) not in by_default}


def usual(strategy: str) -> dict[str, Scalar]:
    """Return all settings of a run that sets nothing but its method, with every method's table."""
    known = config.defaults()
    return config.resolved(known) | counting(known | {"strategy": strategy})


def data_name(dataset: Scalar) -> str:
    """Return a short name for a data set or a model, which can be the path of a file."""
    return re.sub(r"[^\w.-]+", "-", Path(str(dataset)).stem)


def folder_name(dataset: Scalar) -> str:
    """Return a `data_name` for a folder; of a long one the beginning, and a digest of all of it."""
    name = data_name(dataset)
    whole = name.encode()
    if len(whole) <= DATA_NAME:
        return name
    mark = f"-{hashlib.sha256(whole).hexdigest()[:8]}"
    return whole[: DATA_NAME - len(mark)].decode(errors="ignore") + mark


def name_of(flat: Mapping[str, Scalar], unique: bool = False) -> str:
    """Return a name for a run's folder: method, data, changed settings, seed.

    The word `validation` in it means that the run is scored on validation samples. What describes
    the data comes last. If too many settings were changed, the name says how many it leaves out;
    with `unique` it has a digest of all settings instead.
    """
    parts = [f"{flat['strategy']}-{folder_name(flat['dataset'])}"]
    told = 0
    changes = changed(flat)
    for key in sorted(changes, key=lambda key: (key != "evaluate-on", key in DESCRIBING)):
        part = ("" if key == "evaluate-on" else key + "=") + _plain(changes[key])
        if len("".join([*parts, part]).encode()) > LONGEST:
            break
        parts.append(part)
        told += 1
    if told < len(changes):
        parts.append(digest(flat) if unique else f"and-{len(changes) - told}-more")
    return "-".join([*parts, f"s{flat['seed']}"])


def digest(flat: Mapping[str, Scalar], without: Iterable[str] = ()) -> str:
    """Return eight hexadecimal digits that identify the settings of a run that are `counted`."""
    return _digest_of(counted(flat), without)


def _digest_of(values: Mapping[str, Scalar], without: Iterable[str]) -> str:
    found = ((k, str(value)) for k, value in values.items() if k not in without)
    return hashlib.sha256(repr(sorted(found)).encode()).hexdigest()[:8]


def owner(settings: Settings, client: int) -> str:
    """Say whose state a client's is; a run keeps its name if it is resumed or gets more clients.

    Nor does it change with keys that come to be, as only what differs from the defaults counts.
    """
    return f"client {client} of run {_run(settings)}"


@lru_cache(maxsize=8)
def _run(settings: Settings) -> str:
    flat = dict(settings.flat)
    found = _unusual(counted(flat)) | {key: flat[key] for key in NAMED}
    return _digest_of(found, GROWING | {"num-clients", "metric"})


def text_of(changes: Mapping[str, Scalar]) -> str:
    """Return settings as they are written in a run-config: `lr=0.01 split="official"`."""
    return " ".join(f"{key}={literal(value)}" for key, value in changes.items())


def _plain(value: Scalar) -> str:
    return re.sub(r"[^\w.,+-]+", "-", literal(value).strip("\"'"))
