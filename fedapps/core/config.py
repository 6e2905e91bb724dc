"""Run-config: from Flower's flat scalars to one frozen, checked `Settings` object.

Flower's run-config holds scalars only. So a list is a comma-separated string, and `""` means that a
key is unset.

Flower merges what the user has set into `[tool.flwr.app.config]` and passes on the result alone, in
which a value of the user's looks like a default. To tell the two apart, a key for which some method
has a default of its own is `""` there, both as a general key and in that method's table. Any other
value was set by the user, and wins. The defaults of such keys are in `[tool.fedapps.defaults]`.
"""

import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import tomli_w

from fedapps.core import flower, options, project, registry
from fedapps.core.errors import RunError
from fedapps.core.options import LATEST
from fedapps.core.paths import APP, absolute, expanded, lies_in, model_file
from fedapps.core.schema import Scalar, convert, literal, table_of
from fedapps.core.settings import TABLES, Settings
from fedapps.core.words import key_meant

NAME_MAX = 255  # bytes of a name, on most file systems
LAST = "last"  # value of the key split: a client's last samples are its test
NATURAL = "natural"  # value of the key partitioner: the data say who the clients are
UNSET = ""  # value of a key whose default is in [tool.fedapps.defaults]
ALL_KEYS = "`fedapps keys` lists all keys"
_COMMAND = "fedapps serial -c <this file> (or flwr run . --run-config <this file>)"


# Values -------------------------------------------------------------------------------------------


def defaults() -> dict[str, Scalar]:
    """Return the run-config of a run that sets nothing, as flat keys (`local.match-compute`)."""
    return options.flat(project.run_config())


def typed(flat: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Return a run-config whose numbers are of the types of their keys: alpha=1 becomes 1.0."""
    known = resolved(defaults())
    floats = {key for key, value in known.items() if isinstance(value, float)}
    return {k: float(v) if k in floats and type(v) is int else v for k, v in flat.items()}


def resolved(flat: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Return a run-config in which every key has a value.

    If a method's key is unset, it takes the value of the general key if that is set, and otherwise
    its own default.
    """
    found = dict(flat)
    for key, default in options.flat(project.defaults()).items():
        if flat.get(key) == UNSET:
            table, _, general = key.rpartition(".")
            is_set = bool(table) and flat.get(general, UNSET) != UNSET
            found[key] = flat[general] if is_set else default
    return found


def effective(flat: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Return the general keys with the values that apply to the run's method."""
    full, name = resolved(flat), str(flat.get("strategy", ""))
    return {key: full.get(f"{name}.{key}", full[key]) for key in full if "." not in key}


def read(flat: Mapping[str, Scalar]) -> Settings:
    """Check a flat run-config and return it as `Settings`, with the method's settings.

    Raises `RunError` with one line: key, value, what is allowed.
    """
    method = registry.method_settings(str(flat.get("strategy", "")), flat)
    settings = read_general(flat)
    return msgspec.structs.replace(settings, method=method, flat=tuple(sorted(typed(flat).items())))


def read_general(flat: Mapping[str, Scalar]) -> Settings:
    """Check everything except the method's own settings, for which its module must be imported.

    Raises `RunError` like `read`.
    """
    registry.check(str(flat.get("strategy", "")))
    tables = {name: convert(table_of(flat, name), cls, f"{name}.") for name, cls in TABLES.items()}
    settings: Settings = convert(effective(flat) | tables, Settings, "")
    _check(settings)
    return settings


# Text ---------------------------------------------------------------------------------------------


def parse(texts: Sequence[str]) -> dict[str, Scalar]:
    """Parse the texts of `--run-config` options and apply them to the defaults.

    If two options set the same key, the later one wins; the other keys of its table stay. (Flower's
    parser would replace the whole table of a method.) If `resume` names a run directory, the
    settings of that run come before the options.
    """
    return applied(options.parse_options(texts), options.named_model(texts))


def applied(changes: Mapping[str, Scalar], trust: str = "") -> dict[str, Scalar]:
    """Apply flat keys to the defaults as `parse` does; raises `RunError` for an unknown key.

    `trust` is as in `check_code`.
    """
    known = defaults()
    for key in changes:
        if key not in known:
            raise RunError(f"unknown key {key}{key_meant(key, known)}; {ALL_KEYS}")
    return known | resumed_from(changes, trust) | dict(changes)


def resumed_from(changes: Mapping[str, Scalar], trust: str = "") -> dict[str, Scalar]:
    """Return the run-config of the run directory that `resume` names; empty if it names none."""
    folder = str(changes.get("resume", ""))
    if folder in ("", LATEST):
        return {}
    check_code(expanded(folder, "resume"), trust)
    return stored(expanded(folder, "resume"))


def stored(folder: Path) -> dict[str, Scalar]:
    """Read the run-config of a run directory as flat keys.

    Raises `RunError` if the folder is not a run directory, or a power cut has emptied the file.
    """
    path = folder / "config.toml"
    if not folder.exists():
        raise RunError(f"{folder} is not a run directory: there is no such folder")
    try:
        found = options.flat(tomllib.loads(path.read_text("utf-8")))
    except (OSError, ValueError) as error:  # ValueError: not TOML or not UTF-8
        reason = getattr(error, "strerror", None) or error
        raise RunError(f"{folder} is not a run directory: {path.name}: {reason}") from error
    if "strategy" not in found and (folder / "rounds.csv").exists():  # not another program's
        told = "names no strategy; put back a whole copy of it, such as resume.toml"
        raise RunError(f"{folder} is not a run directory: {path.name}: {told}")
    return found


def check_code(folder: Path, trust: str = "") -> None:
    """Refuse a run directory whose model's file lies in it or beside it, as if from one sender.

    `trust` is this file, or a value of `model`, as named by whoever uses the run. Raises `RunError`
    if it is another one, and as `stored` does.
    """
    if not (place := code_beside(folder)):
        return
    trusted = APP / expanded((model_file(trust) or (trust, ""))[0])
    if trusted.resolve() != place.resolve():
        raise RunError(
            f"{folder}: model: {place} lies beside the run, so this code can have come with it from"
            f" somebody else; read it, and if it may run, add --trust {place} (to --resume: -c"
            " model=..., in Python: trust=...)"
        )


def code_beside(folder: Path) -> Path | None:
    """Return the file of a run's model if it can have come with the run directory; else None."""
    named = model_file(str(stored(folder).get("model", "")))
    if not named:
        return None
    place = APP / expanded(named[0], "model")
    for run in (Path(os.path.normpath(folder.absolute())), folder.resolve()):
        while (run.parent / "config.toml").exists():  # as of its `best/`
            run = run.parent
        if lies_in(place, run) or (lies_in(place, run.parent) and not lies_in(place, APP)):
            return place
    return None


def to_toml(flat: Mapping[str, Scalar], purpose: str = "repeat") -> str:
    """Return a flat run-config as a TOML file; its first line says with what purpose to use it.

    Method keys are in tables. Keys that were unset stay unset; a comment gives the value that each
    had in the run.
    """
    values = effective(flat)
    unset = [
        f"# {key} is unset; in this run it was {literal(values[key])}\n"
        for key in options.flat(project.defaults())
        if "." not in key and flat.get(key) == UNSET
    ]
    tables = tomli_w.dumps(flower.unflatten_dict(dict(flat)))
    return "".join([f"# To {purpose} this run: {_COMMAND}\n", *unset, tables])


# Checks -------------------------------------------------------------------------------------------


def clients_named(text: str, key: str, count: int) -> list[int]:
    """Return the clients that a key names, such as 3,7,12.

    Raises `RunError` if one of them is not a number from 0 to `count` - 1.
    """
    words = [word.strip() for word in text.split(",")] if text else []
    if not all(word.isdecimal() and int(word) < count for word in words):
        raise RunError(f'{key} = "{text}": must be clients from 0 to {count - 1}, such as 3,7,12')
    return [int(word) for word in words]


def tables_in_use(flat: Mapping[str, Scalar]) -> set[str]:
    """Return the names of the tables whose keys have an effect on a run.

    These are the general tables, the method's own table, and the table of each method that a key in
    the method's own table names, such as `fedseq.base`.
    """
    name = str(flat["strategy"])
    return {name, *TABLES, *map(str, table_of(flat, name).values())}


def foreign_keys(flat: Mapping[str, Scalar]) -> list[str]:
    """Return a warning for each key that was set for a method other than the one that runs."""
    known, used = defaults(), tables_in_use(flat)
    return [
        f"{key} = {value!r} has no effect on {flat['strategy']}"
        for key, value in flat.items()
        if "." in key and key.partition(".")[0] not in used and known.get(key) != value
    ]


def overridden(flat: Mapping[str, Scalar]) -> list[str]:
    """Return a line for each general key that was set although the method's table overrides it."""
    name = str(flat["strategy"])
    return [
        f"{name}.{key} = {literal(value)} overrides {key} = {literal(flat[key])}"
        for key, value in table_of(flat, name).items()
        if UNSET not in (value, flat.get(key, UNSET)) and value != flat[key]
    ]


def _check_name(name: str) -> None:
    if name and (name != Path(name).name or name == ".."):
        raise RunError(f'run-name = "{name}": must be a name without /, for a folder in runs-dir')
    if len(os.fsencode(name)) > NAME_MAX:
        raise RunError(f'run-name = "{name}": is too long for a folder ({NAME_MAX} bytes at most)')


def _check(settings: Settings) -> None:
    """Refuse values that do not fit together."""
    absolute(settings.runs_dir, "runs-dir")
    absolute(settings.data_root, "data-root")
    _check_name(settings.run_name)
    for key in ("initial-model", "federation", "channel-tls"):
        if path := getattr(settings, key.replace("-", "_")):
            absolute(path, key)
    _ = settings.logger_names  # reading it checks it, like the next two
    if settings.on_devices:
        _ = settings.shape, settings.names
        if settings.model.startswith(("/", "~")):
            raise RunError(
                f'model = "{settings.model}": devices use no path from the server;'
                " put the file into models/, and Flower sends it to them"
            )
        if settings.min_available > settings.num_clients:
            raise RunError(
                f"min-available = {settings.min_available}: each device is a client, so it must be"
                f" at most num-clients = {settings.num_clients}"
            )
    _ = settings.further_rounds  # reading it checks it
    if not settings.num_clients and (settings.partitioner != NATURAL or settings.on_devices):
        raise RunError(
            'num-clients = 0: must be at least 1, except with partitioner = "natural", where it'
            " means everybody in the data"
        )
    if settings.dp.shared_out and not settings.secure_sum:
        raise RunError(
            'dp.mode = "distributed": the noise is shared out in a secure sum; use secure-sum=true'
        )
    if settings.evaluate_on == "validation" and not settings.validation_fraction:
        raise RunError('evaluate-on = "validation": needs validation-fraction > 0')
    chooses = "keep-best = true" if settings.keep_best else f"patience = {settings.patience}"
    if settings.evaluate_on == "test" and (settings.keep_best or settings.patience):
        raise RunError(
            f"{chooses}: would choose by test samples; "
            'use validation-fraction=0.2 evaluate-on="validation"'
        )
