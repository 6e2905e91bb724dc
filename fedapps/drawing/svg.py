"""The elements of SVG charts: marks, ticks and titles in a box of fixed size, and scales.

Everything is drawn as a path: a line, an area, bars, or dots (lines of length 0 with round ends).
So a chart of a thousand clients is still a small file. On top are invisible boxes with titles, and
a browser shows the title of the box under the pointer.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

Point = tuple[float, float]
Show = Callable[[float], str]


@dataclass(frozen=True)
class Box:
    """The size of a chart, the edges of the plot in it, and how much is marked there."""

    width: float = 480.0
    height: float = 270.0
    left: float = 60.0
    right: float = 464.0
    top: float = 14.0
    bottom: float = 228.0
    x_grid: bool = False  # whether the ticks of the x axis have grid lines
    y_grid: bool = True
    dot: float = 5.0  # diameter
    dotted: int = 30  # points of a line, up to which each has a dot


BOX = Box()


@dataclass(frozen=True)
class Series:
    """Values to draw; `colour` is a class of the style sheet."""

    label: str
    colour: str
    points: Sequence[Point]
    spread: Sequence[float] = ()  # half the height of a band around each point
    titles: Sequence[str] = ()  # of the points; if none has any, each x has a title


@dataclass(frozen=True)
class Mark:
    """A path to draw; `kind` is a class of the style sheet: line, area, bars, dots, tie, ..."""

    d: str
    colour: str
    kind: str
    width: float = 0.0  # diameter of dots


@dataclass(frozen=True)
class Tick:
    """A grid line of the y axis, or a position on the x axis, with its label."""

    at: float
    label: str


@dataclass(frozen=True)
class Hit:
    """An invisible box with a title, which a browser shows under the pointer.

    With a colour, it appears there as a dot.
    """

    x: float
    y: float
    width: float
    height: float
    title: str
    colour: str = ""


@dataclass
class Chart:
    """One chart of a page."""

    name: str
    title: str
    x_label: str
    y_label: str = ""
    note: str = ""
    box: Box = BOX
    span: Sequence[float] = ()  # values that the y axis covers, besides those that are drawn
    legend: list[tuple[str, str, str]] = field(default_factory=list)  # label, colour, kind
    marks: list[Mark] = field(default_factory=list)
    x_ticks: list[Tick] = field(default_factory=list)
    y_ticks: list[Tick] = field(default_factory=list)
    hits: list[Hit] = field(default_factory=list)


@dataclass(frozen=True)
class Scale:
    """Maps the values of an axis to positions: `low` to `first`, and `high` to `last`."""

    low: float
    high: float
    first: float
    last: float

    def __call__(self, value: float) -> float:
        """Return the position of a value."""
        share = (value - self.low) / (self.high - self.low or 1.0)
        return round(self.first + share * (self.last - self.first), 1)


def steps(low: float, high: float, most: int, whole: bool = False) -> list[float]:
    """Return about `most` round numbers from `low` to `high`; only integers if `whole`."""
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
    """Return a path through positions."""
    return "M" + "L".join(f"{written(x)} {written(y)}" for x, y in places)


def dot_path(places: Iterable[Point]) -> str:
    """Return a path of dots at positions."""
    return "".join(f"M{written(x)} {written(y)}h0" for x, y in places)


def written(value: float) -> str:
    """Write a position with at most one decimal digit."""
    return f"{value:.1f}".removesuffix(".0")
