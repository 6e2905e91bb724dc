"""Run-config: from Flower's flat scalars to one frozen, checked `Settings` object.

A list is a comma-separated string, and `""` means unset, because Flower's run-config holds scalars
only. Flower lays what the user set over `[tool.flwr.app.config]` and hands on the sum. So a general
key that some method has a default of its own for is `""` there, in the method's table too; what is
set is then seen to be set, and wins. The defaults of such keys are in `[tool.fedapps.defaults]`.
"""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import tomli_w

from fedapps.core import flower, options, project, registry
from fedapps.core.errors import RunError
from fedapps.core.options import LATEST, parse_option
from fedapps.core.paths import absolute, expanded
from fedapps.core.privacy_settings import PrivacySettings
from fedapps.core.schema import (
    Count,
    MethodSettings,
    Scalar,
    convert,
    doc,
    literal,
    table_of,
)
from fedapps.core.settings import TABLES, Settings
from fedapps.core.words import did_you_mean

__all__ = [  # all that others need to know of settings
    "DEVICE",
    "LATEST",
    "TABLES",
    "UNSET",
    "Count",
    "MethodSettings",
    "PrivacySettings",
    "Scalar",
    "Settings",
    "defaults",
    "doc",
    "effective",
    "foreign_keys",
    "numbers",
    "overridden",
    "parse",
    "parse_option",
    "read",
    "read_general",
    "resolved",
    "resumed_from",
    "stored",
    "tables_in_use",
    "to_toml",
]

DEVICE = "device"  # as dataset: every client is a device with data of its own
UNSET = ""  # value of a key with a default in [tool.fedapps.defaults]
ALL_KEYS = "`fedapps keys` lists all keys"
_REPEAT = "To repeat this run: flwr run . --run-config <this file>"


# Values -------------------------------------------------------------------------------------------


def defaults() -> dict[str, Scalar]:
    """Return the run-config of a run that sets nothing, flat (`local.match-compute`)."""
    return options.flat(project.run_config())


def resolved(flat: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Return a run-config in which every key has a value.

    A method's key that is unset takes the general key if that is set, else its own default.
    """
    found = dict(flat)
    for key, default in options.flat(project.defaults()).items():
        if flat.get(key) == UNSET:
            table, _, general = key.rpartition(".")
            is_set = bool(table) and flat.get(general, UNSET) != UNSET
            found[key] = flat[general] if is_set else default
    return found


def effective(flat: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Return the general keys with the values that hold for the run's method."""
    full, name = resolved(flat), str(flat.get("strategy", ""))
    return {key: full.get(f"{name}.{key}", full[key]) for key in full if "." not in key}


def read(flat: Mapping[str, Scalar]) -> Settings:
    """Check a flat run-config and turn it into `Settings`, method settings included.

    Raises `RunError` with one line: key, value, what is allowed.
    """
    method = registry.method_settings(str(flat.get("strategy", "")), flat)
    return msgspec.structs.replace(
        read_general(flat), method=method, flat=tuple(sorted(flat.items()))
    )


def read_general(flat: Mapping[str, Scalar]) -> Settings:
    """Check all but the method's own settings, for which its module would have to be loaded.

    Raises `RunError` as `read` does.
    """
    registry.check(str(flat.get("strategy", "")))
    tables = {name: convert(table_of(flat, name), cls, f"{name}.") for name, cls in TABLES.items()}
    settings: Settings = convert(effective(flat) | tables, Settings, "")
    _check(settings)
    return settings


# Text ---------------------------------------------------------------------------------------------


def parse(texts: Sequence[str]) -> dict[str, Scalar]:
    """Parse `--run-config` options and lay them over the defaults.

    A later option wins key by key (Flower's parser would replace a whole method table).
    """
    changes: dict[str, Scalar] = {}
    for option in texts:
        changes |= parse_option(option)
    known = defaults()
    for key in changes:
        if key not in known:
            raise RunError(f"unknown key {key}{did_you_mean(key, known)}; {ALL_KEYS}")
    return known | resumed_from(changes) | changes


def resumed_from(changes: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Return the run-config of the run directory that `resume` names; empty if it names none."""
    folder = str(changes.get("resume", ""))
    return {} if folder in ("", LATEST) else stored(expanded(folder, "resume"))


def stored(folder: Path) -> dict[str, Scalar]:
    """Read the run-config of a run directory, flat; raises `RunError` if it is none."""
    path = folder / "config.toml"
    if not folder.exists():
        raise RunError(f"{folder} is no run directory: there is no such folder")
    try:
        return options.flat(tomllib.loads(path.read_text("utf-8")))
    except (OSError, ValueError) as error:  # of TOML and of UTF-8, too
        reason = getattr(error, "strerror", None) or error
        raise RunError(f"{folder} is no run directory: {path.name}: {reason}") from error


def to_toml(flat: Mapping[str, Scalar]) -> str:
    """Write a flat run-config as the TOML file that repeats the run, method keys as tables.

    What was unset stays so; a comment tells the values that those keys had in the run.
    """
    values = effective(flat)
    unset = [
        f"# {key} is unset; in this run it was {literal(values[key])}\n"
        for key in options.flat(project.defaults())
        if "." not in key and flat.get(key) == UNSET
    ]
    return "".join([f"# {_REPEAT}\n", *unset, tomli_w.dumps(flower.unflatten_dict(dict(flat)))])


# Checks -------------------------------------------------------------------------------------------


def numbers(text: str, key: str, count: int) -> list[int]:
    """Return the clients that a key names, as 3,7,12; raises `RunError` for others than 0..N-1."""
    words = [word.strip() for word in text.split(",")] if text else []
    if not all(word.isdecimal() and int(word) < count for word in words):
        raise RunError(f'{key} = "{text}": must be clients from 0 to {count - 1}, as 3,7,12')
    return [int(word) for word in words]


def tables_in_use(flat: Mapping[str, Scalar]) -> set[str]:
    """Return the tables whose keys have an effect on a run: its method's, its base method's, ..."""
    name = str(flat["strategy"])
    return {name, *TABLES, *map(str, table_of(flat, name).values())}


def foreign_keys(flat: Mapping[str, Scalar]) -> list[str]:
    """Warn of keys that were set for another method than the one that runs."""
    known, used = defaults(), tables_in_use(flat)
    return [
        f"{key} = {value!r} belongs to {key.partition('.')[0]}, no effect on {flat['strategy']}"
        for key, value in flat.items()
        if "." in key and key.partition(".")[0] not in used and known.get(key) != value
    ]


def overridden(flat: Mapping[str, Scalar]) -> list[str]:
    """Tell which general keys were set although the method's own table sets them otherwise."""
    name = str(flat["strategy"])
    return [
        f"{name}.{key} = {literal(value)} overrides {key} = {literal(flat[key])}"
        for key, value in table_of(flat, name).items()
        if UNSET not in (value, flat.get(key, UNSET)) and value != flat[key]
    ]


def _check(settings: Settings) -> None:
    """Refuse values that do not fit each other."""
    absolute(settings.runs_dir, "runs-dir")
    absolute(settings.data_root, "data-root")
    if settings.channel_tls:
        absolute(settings.channel_tls, "channel-tls")
    _ = settings.logger_names  # it is checked as it is read, like the next two
    if settings.dataset == DEVICE:
        _ = settings.shape, settings.names
        if settings.min_available > settings.num_clients:
            raise RunError(
                f"min-available = {settings.min_available}: each device is a client, so it must be"
                f" at most num-clients = {settings.num_clients}"
            )
    _ = settings.further_rounds  # checked as it is read
    if settings.evaluate_on == "validation" and not settings.validation_fraction:
        raise RunError('evaluate-on = "validation": needs validation-fraction > 0')
    chooses = "keep-best = true" if settings.keep_best else f"patience = {settings.patience}"
    if settings.evaluate_on == "test" and (settings.keep_best or settings.patience):
        raise RunError(
            f"{chooses}: would choose by test samples; "
            'use validation-fraction=0.2 evaluate-on="validation"'
        )
