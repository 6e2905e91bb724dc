"""What charts are made of: marks, ticks and titles in a box of fixed size, and scales.

Everything that is drawn is a path: a line, an area, bars, or dots (points of no length with round
ends), so a chart of a thousand clients stays small. On top lie invisible boxes with titles, which
a browser shows where the pointer is.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

WIDTH, HEIGHT = 480.0, 270.0
LEFT, RIGHT, TOP, BOTTOM = 60.0, 16.0, 14.0, 42.0  # the margins around the plot
Point = tuple[float, float]
Show = Callable[[float], str]


@dataclass(frozen=True)
class Series:
    """Values to draw, in the colour `colour` (a class of the style sheet)."""

    label: str
    colour: str
    points: Sequence[Point]
    spread: Sequence[float] = ()  # half the height of a band around it


@dataclass(frozen=True)
class Mark:
    """A path: `kind` is line, area, bars, dots or tie, as the style sheet knows them."""

    d: str
    colour: str
    kind: str
    width: float = 0.0  # of dots


@dataclass(frozen=True)
class Tick:
    """A line of the grid, or a place on the x axis, with what is written beside it."""

    at: float
    label: str


@dataclass(frozen=True)
class Hit:
    """A box in which a title is shown."""

    x: float
    y: float
    width: float
    height: float
    title: str


@dataclass
class Chart:
    """One figure of the page."""

    name: str
    title: str
    x_label: str
    y_label: str
    note: str = ""
    plain: bool = False  # without the lines of a grid
    legend: list[tuple[str, str, str]] = field(default_factory=list)  # label, colour, kind
    marks: list[Mark] = field(default_factory=list)
    x_ticks: list[Tick] = field(default_factory=list)
    y_ticks: list[Tick] = field(default_factory=list)
    hits: list[Hit] = field(default_factory=list)


@dataclass(frozen=True)
class Scale:
    """From values to places of one axis; `first` and `last` are the places of `low` and `high`."""

    low: float
    high: float
    first: float
    last: float

    def __call__(self, value: float) -> float:
        """Return the place of a value."""
        share = (value - self.low) / (self.high - self.low or 1.0)
        return round(self.first + share * (self.last - self.first), 1)


def steps(low: float, high: float, most: int, whole: bool = False) -> list[float]:
    """Return at most so many round numbers from `low` to `high`; `whole` ones if asked for."""
    span = high - low
    if span <= 0 or not math.isfinite(span):
        return [low]
    power = 10.0 ** math.floor(math.log10(span / most))
    sizes = [power * factor for factor in (1, 2, 5, 10, 20)]
    step = next(size for size in sizes if span / size <= most)
    if whole:
        step = max(1.0, step)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [step * place for place in range(first, last + 1)]


def line_path(places: Iterable[Point]) -> str:
    """Return a path through places."""
    return "M" + "L".join(f"{written(x)} {written(y)}" for x, y in places)


def dot_path(places: Iterable[Point]) -> str:
    """Return a path of dots at places."""
    return "".join(f"M{written(x)} {written(y)}h0" for x, y in places)


def written(value: float) -> str:
    """Write a place with at most one digit behind the point."""
    return f"{value:.1f}".removesuffix(".0")
