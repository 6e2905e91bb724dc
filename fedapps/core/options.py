"""Options that several commands share, and a reader of `-c` that does not need Flower.

`-c` reads all that `flwr run --run-config` reads. In addition, a text without spaces needs no
quotes here, as in `strategy=fedper`, because a shell removes the quotes from `-c
strategy="fedper"`.
"""

import argparse
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import date, time
from pathlib import Path
from typing import Any

from fedapps.core.errors import RunError
from fedapps.core.paths import expanded

Flat = dict[str, bool | int | float | str]
NAME = "--run-config"
LATEST = "latest"  # value of `resume`: the newest unfinished run with the same settings
_PAIR = re.compile(r"""(\S+?)=('[^']*'|"[^"]*"|\S+)""")  # as in Flower's parse_config_args
_BARE = re.compile(r"""[^\s'"\\\[\]{}]+""")  # such a word is a text if TOML cannot read it


def add_run_config(parser: argparse.ArgumentParser) -> None:
    """Add `-c`, which can be repeated; for each key the last value wins."""
    parser.add_argument(
        "-c",
        NAME,
        action="append",
        default=[],
        metavar="KEYS|FILE",
        help="settings as 'KEY=VALUE KEY=VALUE', or a .toml file of them; can be repeated, and the "
        "last value of a key wins. `fedapps keys` lists all keys",
    )


def add_trust(parser: argparse.ArgumentParser) -> None:
    """Add `--trust`, for a run whose model's file lies beside it."""
    parser.add_argument(
        "--trust",
        type=lambda text: str(expanded(text).absolute()),
        default="",
        metavar="MODEL.py",
        help="the file of the run's own model, if it lies beside the run: its code runs",
    )


def add_resume(parser: argparse.ArgumentParser) -> None:
    """Add `--resume`, which is short for the key `resume`; see `chosen`."""
    parser.add_argument(
        "--resume",
        nargs="?",
        const=LATEST,
        default="",
        metavar="RUN",
        help="resume the run in this directory; without a directory, resume the newest unfinished "
        "run with these settings",
    )


def chosen(options: argparse.Namespace) -> list[str]:
    """Return the texts of all `-c` options, and one more text if `--resume` is given.

    Raises `RunError`.
    """
    if options.resume in ("", LATEST):
        folder = options.resume
    else:  # a relative path starts at the working directory
        folder = str(expanded(options.resume, "--resume").absolute())
    from fedapps.core.schema import literal  # imports msgspec, which --help does not need

    return [*options.run_config, *[f"resume={literal(folder)}"] * bool(folder)]


def add_home(parser: argparse.ArgumentParser) -> None:
    """Add `--home`, which says whose SuperLink is meant."""
    parser.add_argument("--home", type=Path, help="home of the SuperLink [FLWR_HOME or ~/.flwr]")


def parse_option(option: str, name: str = NAME) -> Flat:
    """Parse the value of the option `name` into flat keys; raises `RunError`.

    Two things that Flower skips silently are refused: words that belong to no pair, and keys that
    occur twice.
    """
    if _is_file(option):
        return _read_file(option, name)
    pairs = _PAIR.findall(option)
    rest = " ".join(_PAIR.sub(" ", option).split())
    if rest:
        file = ", or the path of a .toml file" if _exists(option) else ""
        raise RunError(
            f"{name} {option}: cannot read {rest}; write key=value pairs without spaces around ="
            f", and a text with spaces in double quotes{file}"
        )
    for key, count in Counter(key for key, _ in pairs).items():
        if count > 1:
            later = "; in a later -c, the new value wins" if name == NAME else ""
            raise RunError(f"{name} {option}: {key} is set {count} times; set it once{later}")
    where = f"{name} {option}"
    return {key: scalar(key, _value(key, text, where), where) for key, text in pairs}


def parse_options(texts: Iterable[str]) -> Flat:
    """Parse the texts of all `-c` options; for each key the last value wins. Raises `RunError`."""
    return {key: value for text in texts for key, value in parse_option(text).items()}


def named_model(texts: Iterable[str]) -> str:
    """Return the `model` among key=value pairs: files can be somebody else's, and do not count."""
    return str(parse_options(text for text in texts if not _is_file(text)).get("model", ""))


def _is_file(option: str) -> bool:
    return option.endswith(".toml") and ("=" not in option or _exists(option))


def quoted(option: str) -> str:
    """Return an option's text with quotes around values that lack them, as Flower needs them."""

    def quote(match: re.Match[str]) -> str:
        key, text = match.groups()
        return f'{key}="{text}"' if _is_bare(text) else match[0]

    return _PAIR.sub(quote, option)


def _is_bare(text: str) -> bool:
    """Tell whether a value is a text that is written without quotes."""
    try:
        tomllib.loads(f"x = {text}")
    except (ValueError, RecursionError):  # a number with thousands of digits, [[[[...
        return _BARE.fullmatch(text) is not None
    return False


def _value(key: str, text: str, where: str) -> object:
    if _is_bare(text):
        return text
    try:
        return tomllib.loads(f"x = {text}")["x"]
    except (ValueError, RecursionError) as error:
        what = f"{key} is not a number, true, false or a text; write a text in quotes"
        raise RunError(f"""{where}: {what}, such as '{key}="..."'""") from error


def scalar(key: str, value: object, where: str) -> bool | int | float | str:
    """Return the value of a key; raises `RunError`, beginning with `where`, if it can be none."""
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, date | time):  # 2024-01-01 is a date in TOML
        what = f"{key} is a date or a time; must be a number, true, false or a text"
        raise RunError(f"""{where}: {what}: write it in quotes, such as '{key}="{value}"'""")
    raise RunError(
        f"{where}: {key} must be a number, true, false or a text; for a run of each of several"
        ' values use `fedapps sweep`; a list that is one value, such as sizes, is a text: "0.6,0.4"'
    )


def _read_file(option: str, name: str) -> Flat:
    """Read a TOML file; the keys of its tables become keys such as `fedper.personal-layers`."""
    try:
        values = tomllib.loads(expanded(option, name).read_text("utf-8"))
    except UnicodeDecodeError as error:
        raise RunError(f"{name} {option}: is not a text file; must be TOML in UTF-8") from error
    except (ValueError, RecursionError) as error:
        raise RunError(f"{name} {option}: is not a TOML file ({error})") from error
    except OSError as error:
        reason = error.strerror or error
        raise RunError(f"{name} {option}: cannot be read ({reason})") from error
    return {key: scalar(key, value, f"{name} {option}") for key, value in flat(values).items()}


def _exists(text: str) -> bool:
    try:
        return expanded(text).exists()
    except (RunError, OSError):  # such as a name that is too long
        return False


def flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested tables as one table, with keys such as `fedper.personal-layers`."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        inner = isinstance(value, Mapping)
        found |= flat(value, f"{prefix}{key}.") if inner else {f"{prefix}{key}": value}
    return found
