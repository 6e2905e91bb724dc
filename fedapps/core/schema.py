"""Tables of run-config keys: types with ranges, meanings, and how values are checked."""

import math
import os
import threading
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import msgspec
import tomli_w
from msgspec import Meta

from fedapps.core.errors import RunError
from fedapps.core.paths import problem_of

Scalar = bool | int | float | str
Count = Annotated[int, Meta(ge=1)]
NonNegative = Annotated[int, Meta(ge=0)]
Positive = Annotated[float, Meta(gt=0)]
AtLeastZero = Annotated[float, Meta(ge=0)]
Fraction = Annotated[float, Meta(ge=0, le=1)]
BelowOne = Annotated[float, Meta(ge=0, lt=1)]
OpenFraction = Annotated[float, Meta(gt=0, lt=1)]
Share = Annotated[float, Meta(gt=0, le=1)]
T = TypeVar("T")
_ALONE = threading.Lock()  # held by who has msgspec read the types of a class
# A fork has no thread that would go on reading.
os.register_at_fork(
    before=_ALONE.acquire, after_in_parent=_ALONE.release, after_in_child=_ALONE.release
)


def learned(cls: type[T]) -> type[T]:
    """Have msgspec read the types of a class now, before several threads read messages of it.

    It does so for the first message, and another thread's that comes meanwhile crashes the process.
    """
    msgspec.json.Decoder(cls)
    return cls


def doc(text: str) -> Meta:
    """Attach the meaning of a key, which docs/configuration.md shows."""
    return Meta(description=text)


class MethodSettings(
    msgspec.Struct, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True
):
    """Base class of a table of keys, general or of a method: frozen, with keys in kebab-case.

    A key that the class does not define is refused.
    """


def table_of(flat: Mapping[str, Scalar], name: str) -> dict[str, Scalar]:
    """Return the keys of table `name` in a flat run-config, without the name of the table."""
    return {k.partition(".")[2]: v for k, v in flat.items() if k.startswith(name + ".")}


def convert(values: Mapping[str, Any], cls: type[MethodSettings], prefix: str) -> Any:
    """Check the values of a table's keys, and return them as an object of the table's class.

    Raises `RunError` with key (after `prefix`, such as `fedrep.`), value and what is allowed.
    """
    for key, value in values.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise RunError(f"{prefix}{key} = {value}: must be finite")
        if isinstance(value, str) and (problem := problem_of(value)):
            raise RunError(f"{prefix}{key} = {value!r}: {problem}")
    try:
        with _ALONE:
            return msgspec.convert(dict(values), cls)
    except msgspec.ValidationError as error:
        reason, _, path = str(error).partition(" - at `$.")
        key = path.rstrip("`")
        if key:
            allowed = kind_of(fields(cls)[key]) + _spelling(values[key], fields(cls)[key])
            raise RunError(f"{prefix}{key} = {literal(values[key])}: must be {allowed}") from error
        missing = reason.partition("required field ")[2].strip("`")
        if missing:
            table = f"[tool.flwr.app.config{'.' * bool(prefix)}{prefix.rstrip('.')}]"
            where = f"has no default in pyproject.toml, add it to {table}"
            raise RunError(f"{prefix}{missing}: {where}") from error
        raise RunError(f"run-config: {reason.replace('`', '')}") from error


def fields(cls: type[MethodSettings]) -> dict[str, dict[str, Any]]:
    """Return the JSON schema of each key of a table."""
    _, components = msgspec.json.schema_components([cls])
    found: dict[str, dict[str, Any]] = components[cls.__name__]["properties"]
    return found


def kind_of(field: Mapping[str, Any]) -> str:
    """Describe a JSON-schema type for readers: `float > 0`, `one of a, b`."""
    if "anyOf" in field:
        options = (option for option in field["anyOf"] if option != {"type": "null"})  # not in TOML
        return " or ".join(map(kind_of, options))
    if "enum" in field:
        words = [str(word) or '""' for word in field["enum"]]
        return words[0] if len(words) == 1 else "one of " + ", ".join(words)
    names = {"number": "float", "integer": "int", "boolean": "true or false", "string": "text"}
    signs = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
    limits = [f"{sign} {field[word]}" for word, sign in signs.items() if word in field]
    return " ".join([names[field["type"]], " and ".join(limits)]).strip()


def _spelling(value: Scalar, field: Mapping[str, Any]) -> str:
    """Return how to write a value that TOML reads as another type.

    A number as a text, or the other way round: `"0.2"` for `0.2`; 0.1 for `.1`, 0.05 for `0,05`.
    """
    if not isinstance(value, str) and field.get("type") == "string":
        return f', in quotes: "{literal(value)}"'
    if not isinstance(value, str) or field.get("type") != "number":
        return ""
    try:
        number = float(value.replace(",", "."))
    except ValueError:
        return ""
    return f", written as {number}" if math.isfinite(number) else ""


def literal(value: Scalar) -> str:
    """Return a value as it is written in a run-config: `"text"`, `true`, `0.1`."""
    return tomli_w.dumps({"x": value}).partition(" = ")[2].strip()
