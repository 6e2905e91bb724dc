"""Write results.html: every table with our and the published figures, and charts, in one file."""

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from markupsafe import Markup, escape

from experiments.figures.communication import sent
from experiments.figures.curves import curves_of, reached
from experiments.outcomes import claims, yardstick
from experiments.outcomes.cells import HEADS, Outcome, best_scale, outcomes, words
from experiments.papers.files import tables
from experiments.papers.table import Table
from experiments.publish import charts
from experiments.publish.page_template import STYLE, TEMPLATE
from experiments.run import tuning
from experiments.run.store import Store
from fedapps.core.errors import RunError
from fedapps.core.files import write_whole
from fedapps.drawing import html
from fedapps.drawing.intervals import interval_chart
from fedapps.drawing.svg import Chart

MARKED = re.compile(r"`([^`]+)`|\*([^*]+)\*")
PAPERS = {  # by the first word of their tables' names
    "benchmark": "All methods compared",
    "fedbabu": "FedBABU",
    "fedcmd": "FedCMD",
    "fedfc": "FedFC",
    "fedseq": "FedSeq",
    "perfreezeclip": "PerFreezeClip",
}
COLORS = {  # CSS classes of verdicts
    claims.YES: "yes",
    claims.REVERSE: "no",
    claims.ONE_SEED: "soft",
    yardstick.BETTER: "yes",
    yardstick.WORSE: "no",
}


@dataclass
class Section:
    """A table on the page: its header and rows, and charts with captions."""

    name: str
    title: str
    about: str
    command: str
    state: str
    heads: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)
    figures: list[Chart] = field(default_factory=list)
    said: str = ""
    chosen: list[list[str]] = field(default_factory=list)
    reached_heads: list[str] = field(default_factory=list)
    reached: list[list[str]] = field(default_factory=list)  # lines about curves over rounds
    claims: list[list[str]] = field(default_factory=list)  # lines under `claims.HEADS`
    counts: list[list[str]] = field(default_factory=list)  # of their verdicts


def write(store: Store, path: Path, computed: Iterable[Section] = ()) -> None:
    """Write the page; `computed` are sections beside those of the tables."""
    found = {name: section(store, table) for name, table in tables().items()}
    found |= {part.name: part for part in computed}
    groups = {
        title: [part for name, part in found.items() if name.startswith(prefix) and part.rows]
        for prefix, title in PAPERS.items()
    }
    environment = html.environment()
    environment.filters["inline"] = inline
    runs = store.runs()
    page = environment.from_string(TEMPLATE).render(
        groups={title: parts for title, parts in groups.items() if parts},
        waiting=[part for part in found.values() if not part.rows],
        chosen_heads=tuning.HEADS,
        claim_heads=claims.HEADS,
        count_heads=claims.COUNTS,
        counts=[[_link(part), *line] for part in found.values() for line in part.counts],
        colors=COLORS,
        head=Markup(html.HEAD),
        style=Markup(html.STYLE + STYLE),
        done=len(runs),
        scales=", ".join(dict.fromkeys(run.scale for run in runs)) or "none yet",
    )
    write_whole(path, page.encode())


def _link(part: Section) -> Markup:
    return Markup('<a href="#{}">{}</a>').format(part.name, part.title)


def inline(text: str) -> Markup:
    """Return a text whose `code` and *emphasis* are marked, as in Markdown."""
    return Markup(MARKED.sub(_mark, str(escape(text))))


def _mark(found: re.Match[str]) -> str:
    code, emphasis = found.groups()
    return f"<code>{code}</code>" if code else f"<em>{emphasis}</em>"


def section(store: Store, table: Table) -> Section:
    """Return the section of the page about a table."""
    scale = best_scale(store, table)
    known = [outcome for outcome in outcomes(store, table, scale)]
    done = [outcome for outcome in known if outcome.runs]
    total = len(table.cells(scale))
    part = Section(
        name=table.name,
        title=table.title,
        about=table.about,
        command=f"python -m experiments run {table.name} --scale {scale}",
        state=f"{len(done)} of {total} rows have run at scale {scale}",
    )
    if not done:
        return part
    if table.yardstick:
        _compared(part, table, done)
        part.chosen = [*tuning.texts(store, (outcome.cell for outcome in done))]
    if not part.rows:
        _listed(part, done)
    if table.follows:
        part.reached_heads, part.reached = reached(store, table, scale)
    part.figures += [*_curves(store, table, scale), *charts.of_clients(table, done)]
    part.figures += [*charts.over_columns(table, done), *_bytes(done)]
    judged = [*claims.judged(store, table)]
    part.claims, part.counts = [*claims.lines(judged)], [*claims.counts(judged)]
    return part


def _listed(part: Section, done: list[Outcome]) -> None:
    """Fill in the readings of each row, next to the published figures."""
    part.heads = [*HEADS, "note"]
    part.rows = [row for outcome in done for row in _rows(outcome)]
    if not any(note for *_, note in part.rows):
        part.heads, part.rows = part.heads[:-1], [row[:-1] for row in part.rows]
    part.figures += _held_against(done)


def _rows(outcome: Outcome) -> Iterator[list[str]]:
    """Yield the lines of a cell; the first ends with the row's note."""
    note = outcome.cell.row.note
    for line in outcome.lines():
        yield [*line, note]
        note = ""


def _held_against(done: list[Outcome]) -> Iterator[Chart]:
    """Yield a chart of the rows' main figures next to the published ones."""
    rows = []
    for outcome in done:
        if figure := outcome.figure(outcome.cell.row.readings[0]):
            half = figure.half or 0.0
            span = (figure.mean - half, figure.mean + half)
            rows.append(charts.interval(outcome.cell.name, figure.mean, span, figure.published))
    if rows:
        title = "Our figure (dot, with its interval over seeds) and the published one (diamond)"
        yield interval_chart(Chart("", title, "accuracy, %"), rows)


def _curves(store: Store, table: Table, scale: str) -> Iterator[Chart]:
    """Yield charts of accuracy over rounds, with one line per row (its first seed)."""
    columns: dict[str, dict[str, list[charts.Point]]] = {}
    for (name, _), curve in (curves_of(store, table, scale) if table.follows else {}).items():
        row, _, column = name.partition("@")
        line: list[charts.Point] = [(r, 100 * value) for r, value in sorted(curve.items())]
        columns.setdefault(column, {}).setdefault(row, line)
    caption = f"{words(table.follows).capitalize()} accuracy over rounds, %"
    for column, lines in columns.items():
        titled = charts.captioned(caption, column)
        yield from charts.drawn(table, lines, titled, "round")


def _bytes(done: list[Outcome]) -> Iterator[Chart]:
    """Yield a chart of the bytes of training, in percent of FedAvg's bytes in the same column."""
    shares: dict[str, float] = {}
    with suppress(RunError):  # FedAvg has not run
        both = sent({o.cell.name: o.runs[0].costs for o in done if o.runs[0].costs})
        shares = {name: 100 * sum(directions) for name, directions in both.items()}
    if len(shares) > 2:
        rows = [charts.interval(*item) for item in sorted(shares.items(), key=lambda i: i[1])]
        yield interval_chart(Chart("", "Bytes sent in training, % of FedAvg's", "%"), rows)


def _compared(part: Section, table: Table, done: list[Outcome]) -> None:
    """Fill in the comparison with the yardstick, if the rows that it needs have run."""
    found = yardstick.compare(done, table.yardstick, table.alone)
    if not found:
        both = f"{table.yardstick} and {table.alone}"
        part.state += f"; the comparison needs a seed that both {both} have run with"
        return
    part.said = " ".join(filter(None, [found.sentence(), found.left_out(done)]))
    part.heads, part.rows = found.heads, [*found.rows()]
    rows = [
        charts.interval(line.name, line.difference, (line.difference_low, line.difference_high))
        for line in found.lines
        if line.name != table.yardstick
    ]
    title = f"Difference from {table.yardstick}, client by client, with its 95 % interval"
    part.figures.append(interval_chart(Chart("", title, "points"), rows, zero=True))
