"""Charts for the page of results, as SVG without scripts; values show on hover."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from fedapps.report.page.plot import steps

WIDTH = 640
RIGHT, TOP, ROW, BOTTOM = 20, 8, 24, 40
LETTER = 9  # width of a letter in a row's name on small screens, where letters are widest
COLOURS = 8  # classes c0 to c7 of the style sheet
FEW = 12  # points of a line, up to which each is marked
Point = tuple[float, float] | tuple[float, float, str]  # x, y, and a title other than the usual


@dataclass(frozen=True)
class Bar:
    """One line of a chart of rows: a value, its interval, and a value to compare it with."""

    name: str
    value: float
    low: float
    high: float
    against: float | None = None


def rows_chart(title: str, unit: str, bars: Sequence[Bar], zero: bool = False) -> Markup:
    """Draw a dot and an interval for each row, and a diamond for its published figure.

    With `zero`, values are differences, and a line marks 0.
    """
    values = [v for b in bars for v in (b.low, b.high, b.against) if v is not None]
    low, high = min(values), max(values)
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    low, high = low - 0.04 * (high - low or 1.0), high + 0.04 * (high - low or 1.0)
    left = 16 + LETTER * max(len(shortened(b.name)) for b in bars)

    def x(value: float) -> float:
        return left + (value - low) / (high - low) * (WIDTH - left - RIGHT)

    bottom = TOP + ROW * len(bars)
    parts = [_x_axis(low, high, x, bottom, unit)]
    if zero:
        parts.append(Markup('<path class="zero" d="M{:.1f} {}V{}"/>').format(x(0), TOP, bottom))
    for place, bar in enumerate(bars):
        y = TOP + ROW * (place + 0.5)
        title_ = f"{bar.name}: {bar.value:.2f}"
        if bar.high > bar.low:
            title_ += f" (95 %: {bar.low:.2f} to {bar.high:.2f})"
        if bar.against is not None:
            title_ += f", published {bar.against:.2f}"
        parts.append(
            Markup('<text x="{}" y="{:.1f}" text-anchor="end">{}</text>').format(
                left - 8, y + 4, shortened(bar.name)
            )
        )
        if bar.high > bar.low:
            span = (x(bar.low), y, x(bar.high))
            parts.append(Markup('<path class="interval" d="M{:.1f} {:.1f}H{:.1f}"/>').format(*span))
        dot = Markup('<circle class="ours" cx="{:.1f}" cy="{:.1f}" r="4.5"/>')
        parts.append(dot.format(x(bar.value), y))
        if bar.against is not None:
            diamond = '<path class="published" d="M{:.1f} {:.1f}l5 5l-5 5l-5 -5z"/>'
            parts.append(Markup(diamond).format(x(bar.against), y - 5))
        parts.append(_hit(0, y - ROW / 2, WIDTH, ROW, title_))
    return _svg(title, bottom + BOTTOM, parts)


def lines_chart(
    title: str,
    x_label: str,
    unit: str,
    lines: Mapping[str, Sequence[Point]],
    span: Sequence[float] = (),
) -> Markup:
    """Draw a line for each name; the vertical axis also covers the values of `span`."""
    height, left = 300, 52
    points = [point for line in lines.values() for point in line]
    x_low, x_high = min(p[0] for p in points), max(p[0] for p in points)
    heights = [*span, *(p[1] for p in points)]
    y_low, y_high = min(heights), max(heights)
    y_low, y_high = y_low - 0.05 * (y_high - y_low or 1), y_high + 0.05 * (y_high - y_low or 1)

    def x(value: float) -> float:
        return left + (value - x_low) / (x_high - x_low or 1) * (WIDTH - left - RIGHT)

    def y(value: float) -> float:
        return height - BOTTOM - (value - y_low) / (y_high - y_low) * (height - BOTTOM - TOP)

    parts = [_x_axis(x_low, x_high, x, height - BOTTOM, x_label)]
    for tick in steps(y_low, y_high, 6):
        grid = '<path class="grid" d="M{} {:.1f}H{}"/><text x="{}" y="{:.1f}" {}>{:g}</text>'
        end = Markup('text-anchor="end"')
        place = (left, y(tick), WIDTH - RIGHT, left - 6, y(tick) + 4, end, tick)
        parts.append(Markup(grid).format(*place))
    for number, (name, line) in enumerate(lines.items()):
        path = "M" + "L".join(f"{x(a):.1f} {y(b):.1f}" for a, b, *_ in line)
        spots = "spots seen" if len(line) <= FEW else "spots"
        parts.append(Markup('<g class="{} c{}">').format(spots, number % COLOURS))
        parts.append(Markup('<path class="line" d="{}"/>').format(path))
        for a, b, *said in line:
            what = "".join(said) or f"{name}, {x_label} {a:g}: {b:.2f} {unit}"
            spot = Markup('<circle cx="{:.1f}" cy="{:.1f}" r="4">{}</circle>')
            parts.append(spot.format(x(a), y(b), _title(what)))
        parts.append(Markup("</g>"))
    return _svg(title, height, parts)


def legend(names: Iterable[str]) -> Markup:
    """Return the legend of a chart of lines."""
    items = (
        Markup('<li class="c{}"><i></i>{}</li>').format(number % COLOURS, name)
        for number, name in enumerate(names)
    )
    return Markup('<ul class="legend">{}</ul>').format(Markup("").join(items))


def shortened(name: str, most: int = 28) -> str:
    """Return a name, shortened to `most` characters so that it fits the margin."""
    return name if len(name) <= most else name[: most - 1] + "…"


def _x_axis(low: float, high: float, x, bottom: float, label: str) -> Markup:  # type: ignore[no-untyped-def]
    parts = []
    for tick in steps(low, high, 8):
        line = '<path class="grid" d="M{0:.1f} {1}V{2:.1f}"/>'
        text = '<text x="{0:.1f}" y="{3:.1f}" text-anchor="middle">{4:g}</text>'
        parts.append(Markup(line + text).format(x(tick), TOP, bottom, bottom + 16, tick))
    end = Markup('<text x="{}" y="{:.1f}" text-anchor="end">{}</text>')
    parts.append(end.format(WIDTH - RIGHT, bottom + 33, label))
    return Markup("").join(parts)


def _hit(x: float, y: float, width: float, height: float, title: str) -> Markup:
    rect = '<rect class="hit" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}">{}</rect>'
    return Markup(rect).format(x, y, width, height, _title(title))


def _title(text: str) -> Markup:
    return Markup("<title>{}</title>").format(text)


def _svg(title: str, height: float, parts: Iterable[Markup]) -> Markup:
    head = f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(title)}">'
    return Markup(head) + Markup("").join(parts) + Markup("</svg>")
