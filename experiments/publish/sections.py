"""What both pages of results say about a table: rows, comparisons, claims and charts."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from experiments.figures import costs
from experiments.figures.communication import sent
from experiments.figures.curves import curves_of, reached
from experiments.outcomes import claims, newcomers, yardstick
from experiments.outcomes.cells import HEADS, Outcome, best_scale, outcomes, words
from experiments.outcomes.claims import Judgement
from experiments.papers.table import Table
from experiments.publish import charts
from experiments.run import tuning
from experiments.run.estimate import at_work
from experiments.run.rescoring import is_trained
from experiments.run.store import Run, Store
from fedapps.core.errors import RunError
from fedapps.core.words import number
from fedapps.drawing.intervals import interval_chart
from fedapps.drawing.svg import Chart

COSTS = (
    "FedSeq, Tables 5 and 6 and Fig. 8. A cost is the number of parameters that a round trains, "
    "times the batches of a client, summed over clients and rounds. The published costs follow "
    "exactly from this rule with the model for images of 1x28x28, 50 batches of a client in a "
    "round (500 samples in batches of 10, one epoch), and all 100 clients in each of 300 rounds. "
    "The paper calls the cost FLOPs, but a parameter counts once per batch, however many samples "
    "and pixels it is multiplied with. In the paper's experiments only 10 clients train in a "
    "round, so with one local epoch they cost a tenth. The paper gives no cost for unfreezing at "
    "rounds 0, 50 and 100, and of the layers' parameters we know only the two published sums."
)
COSTS_CAPTION = (
    "Cost of each round for one client, in millions of parameters x batches (Fig. 8; FedSeq "
    "unfreezes at rounds 0, 100 and 200)"
)


@dataclass
class Section:
    """What the pages say about a table: its rows, comparisons, claims and charts."""

    name: str
    title: str
    about: str
    command: str
    state: str
    base: str = ""  # the file of the run-config from which all rows start, and the scale
    scale: str = ""
    lacks: str = ""  # how many rows have run, unless all have
    spent: str = ""  # how long its runs took
    heads: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)
    figures: list[Chart] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)  # by row
    said: str = ""  # what the comparison with the yardstick says
    left_out: str = ""  # of this comparison
    chosen: list[list[str]] = field(default_factory=list)
    reached_heads: list[str] = field(default_factory=list)
    reached: list[list[str]] = field(default_factory=list)  # lines about curves over rounds
    newcomers_said: str = ""  # "" if no client came after the training
    newcomers_heads: list[str] = field(default_factory=list)
    newcomers: list[list[str]] = field(default_factory=list)
    judged: list[Judgement] = field(default_factory=list)  # claims about its rows

    @property
    def claims(self) -> list[list[str]]:
        """The lines under `claims.HEADS`."""
        return [*claims.lines(self.judged)]

    def without(self, head: str) -> tuple[list[str], list[list[str]]]:
        """Return the heads and rows without a column that only the other page shows."""
        kept = [place for place, name in enumerate(self.heads) if name != head]
        return [self.heads[place] for place in kept], [[row[p] for p in kept] for row in self.rows]


def section(store: Store, table: Table) -> Section:
    """Return the section about a table, from its runs at the largest scale that has any."""
    scale = best_scale(store, table)
    ran = [o for o in outcomes(store, table, scale) if o.runs or o.diverged]
    done = [outcome for outcome in ran if outcome.runs]
    total = len(table.cells(scale))
    state = f"{len(ran)} of {total} rows have run"
    part = Section(
        name=table.name,
        title=table.title,
        about=table.about,
        command=f"fedapps experiments run {table.name} --scale {scale}",
        state=f"{state} at scale {scale}",
        base=table.base_file.name,
        scale=scale,
        lacks=state if len(ran) < total else "",
    )
    if not ran:
        return part
    part.spent, part.judged = _spent(store, table, scale), claims.judged(store, table)
    if table.side_by_side:
        _side_by_side(part, table, ran)
        return part
    if table.yardstick:
        _compared(part, table, ran)
        part.chosen = [*tuning.texts(store, (outcome.cell for outcome in done))]
    if not part.rows:
        _listed(part, ran)
    if later := newcomers.newcomers(done):
        counts = sorted({count for line in later for count in line.few})  # of samples
        part.newcomers_said = newcomers.sentence(later)
        part.newcomers_heads = [*newcomers.HEADS, *(f"few-shot {count}" for count in counts)]
        part.newcomers = [line.texts(counts) for line in later]
    if table.follows:
        part.reached_heads, part.reached = reached(store, table, scale)
    part.figures += [*_curves(store, table, scale), *charts.of_clients(table, done)]
    part.figures += charts.of_newcomers(table, later)
    part.figures += [*charts.over_columns(table, done), *_bytes(done)]
    return part


def _spent(store: Store, table: Table, scale: str) -> str:
    """Say how long the trainings of a table took, with those of the trials; "" without its own."""
    runs = [run for run in store.runs() if (run.table, run.scale) == (table.name, scale)]
    trained = [run for run in runs if is_trained(run)]
    # The others have the seconds of the training whose model they score; it can be elsewhere.
    known = {_clock(run) for run in trained}
    trained += {_clock(run): run for run in runs if _clock(run) not in known}.values()
    if not trained:
        return ""
    hours = sum(map(at_work, trained)) / 3600
    return f"Its {number(len(trained), 'training')} took {hours:.1f} hours together."


def _clock(run: Run) -> tuple[int, float, float]:
    return run.seed, run.seconds, run.seconds_per_round


def _side_by_side(part: Section, table: Table, ran: list[Outcome]) -> None:
    """Fill in a line for each row and reading, with the columns side by side, and their chart."""
    part.heads = ["row", "seeds", "reading", *table.columns]
    found = {(outcome.cell.row.name, outcome.cell.column): outcome for outcome in ran}
    for row in table.rows:
        those = [found.get((row.name, column)) for column in table.columns]
        if not any(those):
            continue
        seeds = {seed for o in those if o for seed in (*o.diverged, *(run.seed for run in o.runs))}
        about = [row.name, ",".join(map(str, sorted(seeds)))]
        for reading in row.readings:
            texts = [outcome.text(reading) if outcome else "" for outcome in those]
            part.rows.append([*about, words(reading.reads), *texts])
            about = ["", ""]
    part.figures += charts.of_worst_columns(table, found)


def _listed(part: Section, ran: list[Outcome]) -> None:
    """Fill in the readings of each row, next to the published figures."""
    part.heads = [*HEADS, "s/round", "note"]
    for outcome in ran:
        times = [run.seconds_per_round for run in outcome.runs]
        row = outcome.cell.row
        last = [f"{sum(times) / len(times):.2f}" if times else "", row.note]
        for line in outcome.lines():
            part.rows.append([*line, *last])
            last = ["", ""]
        if row.note:
            part.notes[row.name] = row.note
    if not part.notes:
        part.heads, part.rows = part.without("note")
    part.figures += _held_against([outcome for outcome in ran if outcome.runs])


def _held_against(done: list[Outcome]) -> Iterator[Chart]:
    """Yield a chart of the rows' main figures next to the published ones."""
    rows = []
    for outcome in done:
        if figure := outcome.figure(outcome.cell.row.readings[0]):
            said = (figure.mean, figure.span, figure.published)
            rows.append(charts.interval(outcome.cell.name, *said))
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
    caption = f"{words(table.follows).capitalize()} accuracy over rounds, each row's first seed, %"
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


def _compared(part: Section, table: Table, ran: list[Outcome]) -> None:
    """Fill in the comparison with the yardstick, if the rows that it needs have run."""
    found = yardstick.compare(ran, table.yardstick, table.alone)
    if not found:
        both = f"{table.yardstick} and {table.alone}"
        part.state += f"; the comparison needs a seed that both {both} have run with"
        return
    part.said, part.left_out = found.sentence(), found.left_out(ran)
    part.heads, part.rows = found.heads, [*found.rows()]
    rows = []
    for line in found.lines:
        if line.name != table.yardstick:
            rows.append(charts.interval(line.name, line.gap.mean, line.gap.span))
    if rows:
        title = f"Difference from {table.yardstick}, with its 95 % interval over seeds"
        part.figures.append(interval_chart(Chart("", title, "points"), rows, zero=True))


def costs_section() -> Section:
    """Return the section: the table, and a chart of the cost per round."""
    found = costs.costs(costs.PAPER)
    curves = {name: cost.corners() for name, cost in costs.with_first_list(found).items()}
    return Section(
        name="fedseq-costs",
        title="FedSeq: parameters and costs",
        about=COSTS,
        command="fedapps experiments costs --plot costs.png",
        state="These figures are computed and need no run",
        heads=[*costs.HEADS],
        rows=[*costs.lines(costs.PAPER, found)],
        figures=[charts.over_x(COSTS_CAPTION, "round", "million", curves)],
    )
