"""Grids of runs: parse axes and seeds, and make the run-config of each point."""

import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, product
from typing import Any

from fedapps.core import changes, config, options
from fedapps.core.errors import RunError
from fedapps.core.schema import Scalar, literal
from fedapps.core.words import key_meant, span

MOST_SEEDS = 1000  # in one list of seeds; more are a slip of the finger
OUTPUT = "use --output for the folder"
ITSELF = {  # keys that a sweep sets itself, and what to do instead
    "runs-dir": OUTPUT,
    "run-name": OUTPUT,
    "resume": "the same command goes on with its unfinished runs",
}
EXAMPLE = """lr=0.01,0.1 or model=cnn,lenet5 or 'sizes="0.6,0.4","0.5,0.5"'"""


@dataclass(frozen=True)
class Axis:
    """A key and the values that it takes."""

    key: str
    values: tuple[Scalar, ...]

    @classmethod
    def read(cls, text: str) -> "Axis":
        """Read an axis, for example `lr=0.01,0.1`.

        A text in quotes can contain commas: `sizes="0.6,0.4","0.5,0.5"` has two values. Raises
        `RunError` for an unknown key, and for values that cannot be read.
        """
        key, _, listed = (part.strip() for part in text.partition("="))
        known = config.defaults()
        if key not in known:
            hint = key_meant(key, known) if key else ""
            raise RunError(f"axis {text}: unknown key {key}{hint}; write {EXAMPLE}")
        if key in ITSELF:
            raise RunError(f"axis {text}: the sweep sets {key} itself; {ITSELF[key]}")
        if key == "metric":  # with patience, results depend on it
            raise RunError(f"axis {text}: it says by what runs are compared; make a sweep for each")
        if key in changes.INCIDENTAL:
            last = key in changes.LAST_DIGITS
            what = "only the last digits of results depend" if last else "no result depends"
            raise RunError(f"axis {text}: {what} on {key}; give it one value with -c")
        values = _values(listed)
        if not values or not all(isinstance(value, bool | int | float | str) for value in values):
            raise RunError(f"axis {text}: cannot read its values; write {EXAMPLE}")
        return cls(key, tuple(values))


@dataclass(frozen=True)
class Point:
    """A run of a sweep: the name of its folder, its run-config, and the keys that vary.

    `same` are the run-configs of other combinations that would give the same run.
    """

    name: str
    flat: Mapping[str, Scalar]
    varied: tuple[str, ...] = ()
    same: tuple[Mapping[str, Scalar], ...] = ()

    @property
    def label(self) -> str:
        """The values that distinguish it from other runs: `lr=0.01 strategy="fedper" seed=2`."""
        keys = dict.fromkeys([*self.varied, "seed"])
        return changes.text_of({key: self.flat[key] for key in keys})


def common(texts: Sequence[str]) -> dict[str, Scalar]:
    """Return the run-config that all runs of a sweep have in common, from the texts of `-c`.

    Raises `RunError`, also for the name or the directory of a single run: all runs would be there.
    """
    chosen: dict[str, Scalar] = {"threads": 1, **options.parse_options(texts)}
    for key in ("run-name", "resume"):
        if chosen.get(key):
            raise RunError(
                f"{key} = {literal(chosen[key])}: the sweep sets {key} itself; leave it out, or "
                f"""unset that of a file with -c '{key}=""'; {ITSELF[key]}"""
            )
    return config.applied(chosen)


def read_seeds(text: str) -> list[int]:
    """Read seeds, for example `0-2` or `0,3,7`; raises `RunError` if they cannot be read."""
    try:
        spans = [span(word)[: MOST_SEEDS + 1] for word in text.split(",")]
    except ValueError:
        raise RunError(f"--seeds {text}: must be numbers, for example 0-2 or 0,3,7") from None
    found = list(dict.fromkeys(chain.from_iterable(spans)))
    if len(found) > MOST_SEEDS:
        raise RunError(f"--seeds {text}: at most {MOST_SEEDS} seeds; give fewer")
    return found


def points(axes: Sequence[Axis], base: Mapping[str, Scalar], seeds: Sequence[int]) -> list[Point]:
    """Return all combinations as checked run-configs.

    All combinations with the first seed come first, so that an unfinished grid can be compared.
    Combinations that give the same run (because an axis is a key of another method or partitioner)
    are there only once. Raises `RunError` if an axis is given twice, or a run-config is not valid.
    """
    for key, count in Counter(axis.key for axis in axes).items():
        if count > 1:
            raise RunError(f"axis {key}: given {count} times; give all its values at once")
    if seeds and any(axis.key == "seed" for axis in axes):
        raise RunError("axis seed: give seeds only once, here or with --seeds")
    found: dict[frozenset[tuple[str, Scalar]], list[Mapping[str, Scalar]]] = {}
    for flat in _combinations(axes, base, seeds):
        config.read(flat)
        found.setdefault(frozenset(changes.counting(flat).items()), []).append(flat)
    names = [changes.name_of(flat, unique=True) for flat, *_ in found.values()]
    return [
        Point(
            name if names.count(name) == 1 else f"{name}-{changes.digest(flat)}",
            flat,
            tuple(axis.key for axis in axes),
            tuple(same),
        )
        for name, (flat, *same) in zip(names, found.values(), strict=True)
    ]


def without_effect(points: Iterable[Point]) -> Iterator[str]:
    """Yield a line for each axis with values that gave the same run: which ones, and where."""
    values: dict[str, dict[Scalar, None]] = {}
    causes: dict[str, dict[Scalar, None]] = {}
    for point in points:
        for flat in point.same:
            for key in point.varied:
                if flat[key] != point.flat[key]:
                    values.setdefault(key, {}).update({point.flat[key]: None, flat[key]: None})
                    by_data = key in changes.unread(flat["dataset"], flat["partitioner"])
                    cause = f"partitioner={flat['partitioner']}" if by_data else flat["strategy"]
                    causes.setdefault(key, {})[cause] = None
    for key, found in values.items():
        yield (
            f"{key}={','.join(map(literal, found))} makes no difference with "
            f"{', '.join(map(str, causes[key]))}"
        )


def _combinations(
    axes: Sequence[Axis], base: Mapping[str, Scalar], seeds: Sequence[int]
) -> Iterator[dict[str, Scalar]]:
    for seed in seeds or [int(base["seed"])]:
        for values in product(*(axis.values for axis in axes)):
            chosen = dict(zip((axis.key for axis in axes), values, strict=True))
            yield {**base, "seed": seed, **chosen}


def _values(listed: str) -> list[Any]:
    """Return the values between commas, or none if they cannot be read; words need no quotes."""
    try:
        values: list[Any] = tomllib.loads(f"values = [{listed}]")["values"]
        return values
    except tomllib.TOMLDecodeError:
        try:
            return [options.parse_option(f"x={word.strip()}")["x"] for word in listed.split(",")]
        except (RunError, KeyError):
            return []
