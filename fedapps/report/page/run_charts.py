"""The charts on a run's page, drawn from its tables; a chart without data is left out."""

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from math import ceil
from statistics import fmean

import numpy as np

from fedapps.core import words
from fedapps.core.privacy_settings import SEEDED, is_seeded
from fedapps.drawing.charts import (
    ANY,
    POSITIVE,
    bar_chart,
    column_hits,
    heat_chart,
    line_chart,
    pair_chart,
    scatter_chart,
)
from fedapps.drawing.quantiles import HUNDRED, MOST, percentiles
from fedapps.drawing.svg import Chart, Series, Tick
from fedapps.method.figures import EventPlot
from fedapps.report.columns import VIRTUAL
from fedapps.report.page.event_charts import COLOURS, declared
from fedapps.report.page.reading import Row, RunFiles, number
from fedapps.report.units import byte_unit, human_bytes, time_unit
from fedapps.tasks import Metric

LETTERS = 58  # of names that fit on an axis, all together
LEAST = 6  # letters of a name; if there is less room, only some names stand there
LETTERS_BESIDE = 7  # of the name of a class that fit beside an axis
FEW, SOME = 25, 14  # up to FEW columns, each has its number below it; of more, about SOME have
MOST_CELLS = 60_000  # cells of the chart of samples per client and class
Known = tuple[Row, float | None, float]  # a row, its initial and its personalized value


def curves(run: RunFiles) -> list[Chart]:
    """Draw the leading metric, training loss and epsilon over the rounds."""
    evaluated = run.evaluated(run.rounds)
    found = [_scores(run.lead, evaluated)] if len(evaluated) > 1 else []
    loss = Chart("loss", "Training loss", "round", "mean loss over trained samples")
    found += _over_rounds(loss, run, "train_loss", ANY)
    note = SEEDED.capitalize() if is_seeded(run.config) else ""
    spent = Chart("epsilon", "Privacy spent", "round", "epsilon so far", note)
    return found + _over_rounds(spent, run, "epsilon", POSITIVE)


def clients(run: RunFiles) -> list[Chart]:
    """Draw the clients of the last evaluation, and the samples that each client holds."""
    rows, lead = run.evaluated(run.clients), run.lead
    found: list[Chart] = []
    if rows:
        title = f"{_head(lead)} of every client (round {rows[0].get('round')})"
        order = f"client, in the order of {lead.label}"
        chart = Chart("clients", title, order, f"{lead.label} on its own")
        found.append(_changes(chart, rows, "client", lead))
    sizes = [(size, row) for row in rows if (size := number(row, "num_train")) is not None]
    every = -(-len(sizes) // MOST)
    if len(sizes) > 1:
        title, axis = f"{_head(lead)} by number of samples", f"personalized {lead.label}"
        chart = Chart("sizes", title, "training samples", axis)
        chart.note = f"One in {every} is drawn." if every > 1 else ""
        sizes = sizes[::every]
        points = [(size, number(row, lead.personalized) or 0.0) for size, row in sizes]
        titles = [_title(row, "client", lead) for _, row in sizes]
        found.append(scatter_chart(chart, points, titles, "personalized", lead.shown, lead.bounds))
    if holdings := _holdings(run):
        found.append(holdings)
    return found


def classes(run: RunFiles) -> list[Chart]:
    """Draw the classes of the last evaluation."""
    metric = run.columns.of_class
    rows = run.evaluated(run.classes, metric)
    if not rows:
        return []
    few = len(rows) <= 25
    label = "class" if few else f"class, in the order of {metric.label}"
    scored = f"{metric.label} over all {run.config.get('evaluate-on', 'scored')} samples"
    chart = Chart("classes", f"{_head(metric)} of every class", label, scored)
    return [_changes(chart, rows, "class", metric, ordered=not few)]


def costs(run: RunFiles) -> list[Chart]:
    """Draw the traffic and time of the rounds, and the metric over traffic and virtual time."""
    found: list[Chart] = []
    evaluated = run.evaluated(run.rounds)
    if len(evaluated) > 1:
        found += _virtual_time(run.lead, evaluated)
        found += _traffic(run.lead, run.rounds, evaluated)
    names = (("bytes_down", "down"), ("bytes_up", "up"), ("bytes_eval", "evaluation"))
    lines = []
    for (column, label), colour in zip(names, COLOURS, strict=False):
        points = _points(run.rounds, column)
        if len(points) > 1 and any(y for _, y in points):
            xs, ys = zip(*points, strict=True)
            lines.append(Series(label, colour, [*zip(xs, accumulate(ys), strict=True)]))
    if lines:
        chart = Chart("traffic", "Traffic so far", "round", "of all clients together")
        found.append(line_chart(chart, lines, human_bytes, bounds=POSITIVE))
    seconds = Chart("seconds", "Time of every round", "round", "seconds")
    return found + _over_rounds(seconds, run, "seconds", POSITIVE)


def events(run: RunFiles, plots: Iterable[EventPlot]) -> list[Chart]:
    """Draw failures, and the event plots that the method declares."""
    found: list[Chart] = []
    failures: dict[float, float] = {}  # the last round can have two rows
    for round_, count in _points(run.rounds, "failures"):
        failures[round_] = failures.get(round_, 0.0) + count
    if any(failures.values()):
        chart = Chart("failures", "Clients that failed", "round", "in every round")
        bars = Series("", "initial", [*failures.items()])
        found.append(bar_chart(chart, [bars]))
    for plot in plots:
        found += declared(run.events, plot)
    return found


def _scores(lead: Metric, evaluated: Sequence[Row]) -> Chart:
    chart = Chart(lead.name, _head(lead), "round", "mean over clients")
    lines = _means(lead, evaluated, lambda row: number(row, "round") or 0.0)
    personalized = lines[-1]
    spreads = [number(row, f"{lead.personalized}_std") or 0.0 for row in evaluated]
    lines[-1] = Series(personalized.label, personalized.colour, personalized.points, spreads)
    return line_chart(chart, lines, lead.shown, bounds=lead.bounds)


def _head(metric: Metric) -> str:
    """Return the label with a capital letter: `Accuracy`, `Mean absolute error`."""
    return metric.label[0].upper() + metric.label[1:]


def _traffic(lead: Metric, rounds: Sequence[Row], evaluated: Sequence[Row]) -> list[Chart]:
    """Draw the metric over traffic; nothing if there was none."""
    sent = ((number(r, "bytes_down") or 0.0) + (number(r, "bytes_up") or 0.0) for r in rounds)
    so_far = {id(row): total for row, total in zip(rounds, accumulate(sent), strict=True)}
    if not (total := so_far[id(rounds[-1])]):
        return []
    size, unit = byte_unit(total)
    chart = Chart("communication", f"{_head(lead)} by traffic", f"{unit} of training, up and down")
    return [_spent(chart, lead, evaluated, lambda row: so_far[id(row)] / size)]


def _virtual_time(lead: Metric, evaluated: Sequence[Row]) -> list[Chart]:
    """Draw the metric over virtual time; nothing if the run has none."""
    if (last := number(evaluated[-1], VIRTUAL)) is None:
        return []
    size, unit = time_unit(last)
    chart = Chart("virtual-time", f"{_head(lead)} by virtual time", f"virtual time in {unit}")
    return [_spent(chart, lead, evaluated, lambda row: (number(row, VIRTUAL) or 0.0) / size)]


def _spent(
    chart: Chart, lead: Metric, evaluated: Sequence[Row], x: Callable[[Row], float]
) -> Chart:
    """Draw the means of the metric over what the rounds have spent."""
    chart.y_label = "mean over clients"
    lines = _means(lead, evaluated, x)
    return line_chart(chart, lines, lead.shown, "{:.3g}".format, lead.bounds, 0.0, whole_x=False)


def _means(lead: Metric, rows: Sequence[Row], x: Callable[[Row], float]) -> list[Series]:
    """Return the curves of the metric's means; the personalized one is the last."""
    same = all(row[lead.initial] == row[lead.personalized] for row in rows)
    further = [n for n in lead.means(rows[0]) if n not in (lead.initial, lead.personalized)]
    names = [] if same else [(lead.initial, "initial", "initial")]
    for name, colour in zip(further, COLOURS * len(further), strict=False):
        names.append((name, lead.words(name), colour))
    label = "initial = personalized" if same else "personalized"
    names.append((lead.personalized, label, "personalized"))
    lines = [
        Series(label, colour, [(x(row), y) for row in rows if (y := number(row, name)) is not None])
        for name, label, colour in names
    ]
    return [line for line in lines if line.points]


def _changes(
    chart: Chart, rows: Sequence[Row], what: str, lead: Metric, ordered: bool = True
) -> Chart:
    """Draw the initial and the personalized value of each client or class, the worst one first."""
    known: list[Known] = [
        (row, number(row, lead.initial), number(row, lead.personalized) or 0.0) for row in rows
    ]
    if ordered:
        sign = 1 if lead.more_is_better else -1
        known.sort(key=lambda entry: (sign * entry[2], number(entry[0], what) or 0.0))
    names = _fitting([(row.get(what, ""), row.get("name", "")) for row, *_ in known])
    if (count := len(known)) > MOST:
        chart.note = f"Means of hundredths of {count}."
        chart.x_label = f"{chart.x_label}, in percent"
        known = [
            _mean(known[i * count // HUNDRED : (i + 1) * count // HUNDRED]) for i in range(HUNDRED)
        ]
        names = _fitting([(str(i), "") for i in range(HUNDRED)])
    before = [(float(i), y) for i, (_, y, _) in enumerate(known) if y is not None]
    after = [(float(i), y) for i, (*_, y) in enumerate(known)]
    if before == after:
        series = [Series("initial = personalized", "personalized", after)]
    else:
        series = [Series("initial", "initial", before)]
        series.append(Series("personalized", "personalized", after))
    drawn = [line for line in series if line.points]
    pair_chart(chart, names, drawn, lead.shown, lead.bounds)
    if count <= MOST:
        chart.hits = column_hits(count, lambda i: _title(known[i][0], what, lead))
    return chart


def _mean(part: Sequence[Known]) -> Known:
    """Return the means of some clients or classes, as if they were one."""
    before = [value for _, value, _ in part if value is not None]
    return {}, fmean(before) if before else None, fmean(value for *_, value in part)


def _fitting(called: Sequence[tuple[str, str]]) -> list[str]:
    """Return the names of (number, name) as far as they fit, or the numbers if there are no names.

    If there is no room for all, there is "" in place of most of them.
    """
    count, room = len(called), LETTERS
    if any(name for _, name in called):
        every = ceil(count / (LETTERS // (LEAST + 1)))
        room = LETTERS // ceil(count / every) - 1
    else:
        every = ceil(count / SOME) if count > FEW else 1
    texts = [words.shortened(name or number, room) for number, name in called]
    return [text if place % every == 0 else "" for place, text in enumerate(texts)]


def _title(row: Row, what: str, lead: Metric) -> str:
    before, change = number(row, lead.initial), lead.shown(number(row, lead.personalized) or 0.0)
    if before is not None:
        change = f"{lead.shown(before)}, personalized {change}"
    train, test = row.get("num_train"), row.get("num_test")
    held = f"{train} training samples, {test} to score"
    told = held if what == "client" else f"{test} samples to score"
    name = f" ({row['name']})" if row.get("name") else ""
    return f"{what} {row.get(what)}{name}\n{change}\n{told}"


def _holdings(run: RunFiles) -> Chart | None:
    """Draw how many training samples of each class each client holds."""
    cells = [
        (int(number(row, "client") or 0), int(number(row, "class") or 0), number(row, "num_train"))
        for row in run.samples
    ]
    known = [(client, label, count) for client, label, count in cells if count]
    chart = Chart("holdings", "Who holds which classes", "client", "class, upwards")
    if len(clients := sorted({client for client, *_ in known})) > MOST:
        rows, labels, held = np.array(known).T.astype(int)
        counts = np.zeros((len(clients), 1 + labels.max()), int)
        counts[np.searchsorted(clients, rows), labels] = held
        found = percentiles(counts)
        chart.x_label = f"percentile of {len(clients)} clients, for each class by itself"
        known = [(int(i), int(k), float(found[i, k])) for i, k in np.argwhere(found)]
    if not known or len(known) > MOST_CELLS:
        return None
    size = 1 + max(client for client, *_ in known), 1 + max(label for _, label, _ in known)
    most = max(count for *_, count in known)
    chart.note = f"The stronger the colour, the more training samples: up to {most:g}."
    heat_chart(chart, known, size)
    called = {row["class"]: row["name"] for row in run.classes if row.get("name")}
    beside = (words.shortened(called.get(t.label, t.label), LETTERS_BESIDE) for t in chart.y_ticks)
    chart.y_ticks = [Tick(t.at, label) for t, label in zip(chart.y_ticks, beside, strict=True)]
    if len(clients) > MOST:
        return chart
    labels = _fitting([(tick.label, run.names.get(tick.label, "")) for tick in chart.x_ticks])
    chart.x_ticks = [
        Tick(tick.at, label) for tick, label in zip(chart.x_ticks, labels, strict=True) if label
    ]
    of: dict[int, list[str]] = {}
    for client, label, count in known:
        name = f" ({called[str(label)]})" if str(label) in called else ""
        of.setdefault(client, []).append(f"class {label}{name}: {count:g}")
    if size[0] <= MOST:
        chart.hits = column_hits(
            size[0], lambda i: "\n".join([f"client {run.called(str(i))}", *of.get(i, [])[:25]])
        )
    return chart


def _over_rounds(
    chart: Chart, run: RunFiles, column: str, bounds: tuple[float, float]
) -> list[Chart]:
    """Draw a column of rounds.csv over the rounds; nothing if fewer than two have a value."""
    points = _points(run.of_training, column)
    line = Series("", "personalized", points)
    return [line_chart(chart, [line], "{:.3g}".format, bounds=bounds)] if len(points) > 1 else []


def _points(rows: Iterable[Row], column: str) -> list[tuple[float, float]]:
    """Return the values of a column over the rounds; rounds without a value are left out."""
    known = ((number(row, "round"), number(row, column)) for row in rows)
    return [(x, y) for x, y in known if x is not None and y is not None]
