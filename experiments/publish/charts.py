"""The charts of the page of results: lines over x, and intervals.

A chart has a line per row, up to eight; the row that the table is about is in all.
"""

from collections.abc import Iterator, Mapping, Sequence

from experiments.outcomes.cells import Figure, Outcome, over_key
from experiments.outcomes.newcomers import Newcomers
from experiments.papers.table import Table
from fedapps.drawing.charts import line_chart
from fedapps.drawing.intervals import Interval, interval_chart
from fedapps.drawing.svg import Box, Chart, Series

FEWEST = 4  # clients that make a line
COLOURS = ("first", "second", "c1", "c2", "c3", "c4", "c5", "c7")
BOX = Box(640, 300, 52, 620, 8, 260, x_grid=True, dot=8.0, dotted=12)
Point = tuple[float, float] | tuple[float, float, str]  # x, y, and a title other than the usual
Lines = Mapping[str, Sequence[Point]]


def interval(
    name: str, value: float, span: Sequence[float] = (), published: float | None = None
) -> Interval:
    """Return the row of a chart: a figure, its interval if it has one, and the published one."""
    title = f"{name}: {value:.2f}"
    low, high = span if span and span[0] < span[1] else (None, None)
    if low is not None:
        title += f" (95 %: {low:.2f} to {high:.2f})"
    if published is not None:
        title += f", published {published:.2f}"
    return Interval(name, value, title, low, high, published)


def over_x(title: str, x_label: str, unit: str, lines: Lines, span: Sequence[float] = ()) -> Chart:
    """Draw a line for each name; the vertical axis also covers the values of `span`."""
    series = []
    for (name, line), colour in zip(lines.items(), COLOURS, strict=False):
        told = ["".join(said) or f"{name}, {x_label} {x:g}: {y:.2f} {unit}" for x, y, *said in line]
        series.append(Series(name, colour, [(x, y) for x, y, *_ in line], titles=told))
    chart = Chart("", title, x_label, box=BOX, span=span)
    return line_chart(chart, series, "{:g}".format, whole_x=False)


def of_clients(table: Table, done: Sequence[Outcome]) -> Iterator[Chart]:
    """Yield charts of the clients' accuracies, worst first, with one line per row."""
    for column in dict.fromkeys(outcome.cell.column for outcome in done):
        lines = {o.cell.row.name: _ranked(o) for o in done if o.cell.column == column}
        caption = "Accuracy of each client at the end (first seed of each row), worst first, %"
        yield from drawn(table, lines, captioned(caption, column), "client, worst first")


def _ranked(outcome: Outcome) -> list[Point]:
    """Return the ranks and accuracies of the clients, with the first seed that has them."""
    run = next((run for run in outcome.runs if len(run.clients.get("client", ())) >= FEWEST), None)
    if not run:
        return []
    kind = "personalized" if "personalized" in outcome.cell.row.reads else "initial"
    clients, sizes = run.clients["client"], run.clients["num_test"]
    found = sorted(zip(run.clients[f"accuracy_{kind}"], clients, sizes, strict=True))
    return [
        (
            float(rank),
            100 * value,
            f"{outcome.cell.name}, seed {run.seed}, client {client:g}: {100 * value:.2f} % "
            f"of {size:g} test samples, rank {rank} of {len(found)}",
        )
        for rank, (value, client, size) in enumerate(found, 1)
    ]


def over_columns(table: Table, done: Sequence[Outcome]) -> Iterator[Chart]:
    """Yield charts of the rows' figures over the numbers that the columns set for `table.over`."""
    for common, rows in over_key(table, done).items():
        several = {
            name: [_told(table.over, name, value, figure) for value, figure in line]
            for name, line in rows.items()
            if len(line) > 1
        }
        caption = captioned(f"Mean over the seeds, by {table.over}, %", common)
        yield from drawn(table, several, caption, table.over)


def _told(key: str, name: str, value: float, figure: Figure) -> Point:
    said = f"{name}, {key} {value:g}: {figure.text()} %"
    if figure.published is not None:
        said += f", published {figure.published:.2f} %"
    return value, figure.mean, said


def of_worst_columns(table: Table, found: Mapping[tuple[str, str], Outcome]) -> Iterator[Chart]:
    """Yield a chart of each row's figure in the first column, and the worst of its others.

    A column in which the training of any seed diverged counts as 0. `found` is by row and column.
    """
    first = next(iter(table.columns))
    rows = []
    for row in table.rows:
        means: dict[str, float] = {}
        for column in table.columns:
            outcome = found.get((row.name, column))
            if outcome and (figure := outcome.figure(row.readings[0])):
                means[column] = figure.mean
            if outcome and outcome.diverged:
                means[column] = 0.0
        if first in means and len(means) > 1:
            worst = min(means.keys() - {first}, key=lambda column: (means[column], column))
            lost = ", training diverged" if found[row.name, worst].diverged else ""
            said = f"{row.name}: {first} {means[first]:.1f}, {worst} {means[worst]:.1f}{lost}"
            rows.append(Interval(row.name, means[worst], said, other=means[first]))
    if rows:
        title = f"The worst column of each row (dot), and the column {first} (diamond)"
        if "diverged" in "".join(row.title for row in rows):
            title += "; where a training diverged, 0"
        yield interval_chart(Chart("", title, "accuracy, %"), rows)


def of_newcomers(table: Table, lines: Sequence[Newcomers]) -> Iterator[Chart]:
    """Yield charts of newcomers beside clients that trained, and of newcomers by their samples."""
    rows = [
        Interval(
            line.name,
            line.unseen,
            f"{line.name}: newcomers {line.unseen:.1f}, those that trained {line.seen:.1f}",
            other=line.seen,
        )
        for line in lines
    ]
    if rows:
        title = "Newcomers (dot) and the clients that trained (diamond)"
        yield interval_chart(Chart("", title, "accuracy, %"), rows)
    few = {line.name: [(float(k), v) for k, v in sorted(line.few.items())] for line in lines}
    caption = "Newcomers by the training samples of each class that they have, %"
    yield from drawn(table, few, caption, "samples of each class")


def drawn(table: Table, lines: Lines, caption: str, x_label: str) -> Iterator[Chart]:
    """Yield charts of `lines` by row, all with the same vertical axis."""
    lines = {name: line for name, line in lines.items() if line}
    span = [point[1] for line in lines.values() for point in line]
    main = table.yardstick or next((claim.better for claim in table.claims), "")
    parts = shared_out([*lines], main)
    for number, names in enumerate(parts, 1):
        part = {name: lines[name] for name in names}
        which = f"{number} of {len(parts)}" if len(parts) > 1 else ""
        yield over_x(captioned(caption, which), x_label, "%", part, span)


def shared_out(names: Sequence[str], main: str) -> list[list[str]]:
    """Share names out over lists of one per colour at most; `main` is the first in each."""
    first = [name for name in names if name == main]
    others = [name for name in names if name != main]
    most = len(COLOURS) - len(first)
    starts = range(0, max(len(others), len(first)), most)
    return [first + others[start : start + most] for start in starts]


def captioned(text: str, about: str) -> str:
    """Return a caption that also says what a chart is about, if there is something to say."""
    return f"{text} ({about})" if about else text
