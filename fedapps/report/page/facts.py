"""The words and tables on a run's page: its state, settings, figures and events."""

import math
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedapps.core import config, data_settings, words
from fedapps.core.privacy_settings import SEEDED, is_seeded
from fedapps.core.schema import literal
from fedapps.report import devices, directory
from fedapps.report.columns import MEASURED, SPREAD, VIRTUAL, Columns
from fedapps.report.page.reading import FAILURE, Row, RunFiles, number
from fedapps.report.summary import unseen_columns
from fedapps.report.units import clock, duration, human, human_bytes
from fedapps.wire.contacts import Contacts

MOST_EVENTS = 200
MOST_ROUNDS = 200
MOST_CLIENTS = 1000
PLACES = ("runs-dir", "data-root", "run-name")  # keys that have no influence on results
FILES = (
    "config.toml", "rounds.csv", "clients.csv", "unseen.csv", "names.csv", "class-names.csv",
    "classes.csv", "samples.csv", "events.csv", "summary.json", "run.json", "log.txt",
    "model.safetensors",
)  # fmt: skip
ENDS = {"run-failed": "failed", "interrupted": "interrupted"}  # events that end a run


@dataclass(frozen=True)
class State:
    """How far a run is; `word` is running, finished, failed, interrupted or unfinished."""

    word: str
    text: str


@dataclass(frozen=True)
class Tile:
    """An important figure, shown at the top of the page."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Table:
    """A table: the first `texts` columns are words, the others numbers."""

    name: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    texts: int = 1
    note: str = ""


def state_of(run: RunFiles, left: float | None) -> State:
    """Say how far a run is.

    `left` are the expected seconds left, infinite if unknown, or None if the run is over.
    """
    last = run.rounds[-1].get("round", "0") if run.rounds else "0"
    rounds = run.config.get("num-rounds")
    of = f"round {last} of {rounds}" if rounds else f"round {last}"
    if left is not None:
        return State("running", of + (f", about {clock(left)} left" if left < math.inf else ""))
    for event in reversed(run.events):  # when a run is resumed, these events are deleted
        if event.get("kind") in ENDS:
            return State(ENDS[event["kind"]], f"after {of}: {event.get('detail', '')}")
    if directory.is_final(run.summary):
        seconds = run.summary.get("seconds")
        return State("finished", f"in {duration(seconds)}" if seconds else "")
    return State("unfinished", f"after {of}")


def title_of(run: RunFiles) -> str:
    """Return the method and the data."""
    data = str(run.config.get("dataset", "")).rpartition("/")[2]
    return f"{run.config.get('strategy', run.folder.name)} on {data}" if data else run.folder.name


def subtitle_of(run: RunFiles) -> str:
    """Return one line on clients, data partition, model, seed and scored samples."""
    c = run.config
    clients = c.get("num-clients") or len(run.names)  # 0: all in the data who can take part
    parts = [
        f"{clients} clients" if clients else "",
        _partition(c),
        f"model {c['model']}" if "model" in c else "",
        f"seed {c['seed']}" if "seed" in c else "",
        f"scored on {c['evaluate-on']} samples" if "evaluate-on" in c else "",
    ]
    return ", ".join(part for part in parts if part)


def tiles_of(run: RunFiles) -> list[Tile]:
    """Return the figures of the last evaluation and the totals so far."""
    found: list[Tile] = []
    if evaluated := run.evaluated(run.rounds):
        last, lead = evaluated[-1], run.lead
        names = (lead.initial, lead.personalized, f"{lead.personalized}_std")
        before, after, spread = (number(last, name) for name in names)
        note = f"± {lead.shown(spread)} over clients" if spread is not None else ""
        found.append(Tile(f"{lead.label} personalized", lead.shown(after or 0.0), note))
        if before is not None:
            told = f"round {last.get('round')}"
            found.append(Tile(f"{lead.label} initial", lead.shown(before), told))
    count, _, after, apart = (run.summary.get(name) for name in unseen_columns(run.lead))
    if count and after is not None:
        difference = "" if apart is None else run.lead.digits(run.lead.factor * apart, "+")
        note = f"difference {difference}" if difference else ""
        label = f"{run.lead.label}, {words.number(count, 'newcomer')}"
        found.append(Tile(label, run.lead.shown(after), note))
    rounds = run.config.get("num-rounds")
    done = run.rounds[-1].get("round", "0") if run.rounds else "0"
    found.append(Tile("rounds", done, f"of {rounds}" if rounds else ""))
    traffic = run.total("bytes_down") + run.total("bytes_up")
    evaluation = run.total("bytes_eval")
    note = f"and {human_bytes(evaluation)} to evaluate" if evaluation else "to train"
    found.append(Tile("traffic", human_bytes(traffic), note))
    found.append(Tile("time", duration(run.total("seconds")), "of all rounds"))
    passed = number(run.rounds[-1], VIRTUAL) if run.rounds else None
    if passed is not None:
        found.append(Tile("virtual time", duration(passed), "of all rounds"))
    if failures := run.total("failures"):
        found.append(Tile("failures", f"{failures:g}", "of clients"))
    return found + _epsilon(run)


def costs_of(run: RunFiles) -> Table:
    """Return the total costs, and the average costs of a round."""
    count = max(1, len({row.get("round") for row in run.rounds}))
    lines = [
        ("sent to clients", run.total("bytes_down"), human_bytes),
        ("sent by clients", run.total("bytes_up"), human_bytes),
        ("sent to evaluate", run.total("bytes_eval"), human_bytes),
        ("multiply-accumulates of training", run.total("train_macs"), human),
        ("trained parameters x batches", run.total("cost_paper"), human),
        ("time", run.total("seconds"), duration),
    ]
    rows = [(label, show(value), show(value / count)) for label, value, show in lines]
    return Table("costs", ("", "in all", "in a round"), rows)


def rounds_of(run: RunFiles) -> Table:
    """Return the last rounds, without columns that are empty."""
    columns = [name for name in (run.rounds[0] if run.rounds else ()) if _used(run.rounds, name)]
    known = run.columns
    rows = [[shown(name, row.get(name, ""), known) for name in columns] for row in run.rounds]
    note = f"The last {MOST_ROUNDS} of {len(rows)}; rounds.csv has all."
    note = note if len(rows) > MOST_ROUNDS else ""
    heads = [head_of(name, known) for name in columns]
    return Table("rounds", heads, rows[-MOST_ROUNDS:], 2, note)


def evaluation_of(rows: Sequence[Row], name: str, columns: Columns) -> Table:
    """Return the clients or classes of the last evaluation; metrics are the first columns."""
    known = [key for key in (rows[0] if rows else ()) if key != "round" and _used(rows, key)]
    first = [key for key in (name, "name") if key in known]
    order = sorted(known, key=lambda key: (key not in first, columns.metric_of(key) is None))
    lines = [
        [shown(key, row.get(key, ""), columns) for key in order] for row in rows[:MOST_CLIENTS]
    ]
    note = f"The first {MOST_CLIENTS} of {len(rows)}." if len(rows) > MOST_CLIENTS else ""
    return Table(name, [head_of(key, columns) for key in order], lines, len(first), note)


def no_class(run: RunFiles) -> str:
    """Say why there is no table of classes."""
    if run.task.has_classes:
        return "No class has been scored yet."
    return f"This run's task is {run.task.name}: its samples have no class."


def events_of(run: RunFiles, drawn: set[str]) -> Table:
    """Return the latest events, without the kinds in `drawn`, which charts show."""
    told = [event for event in run.events if event.get("kind") not in drawn]
    heads = ("round", "client", "kind", "detail")
    latest = [e | {"client": run.called(e.get("client", ""))} for e in told[-MOST_EVENTS:]]
    rows = [[event.get(name, "") for name in heads] for event in reversed(latest)]
    notes = []
    if len(told) > MOST_EVENTS:
        notes.append(f"The latest {MOST_EVENTS} of {len(told)}; events.csv has all.")
    if len(told) < len(run.events):
        notes.append(f"Left out, as they are drawn above: {', '.join(sorted(drawn))}.")
    return Table("events", heads, rows, 4, " ".join(notes))


def devices_of(run: RunFiles, now: float) -> Table:
    """Return the devices with what is known of them at the time `now`; none in a simulation."""
    known = run.contacts or Contacts()
    failed = Counter(e.get("client", "") for e in run.events if e.get("kind") == FAILURE)
    rows = devices.rows_of(known, failed, now)
    return Table("devices", devices.HEADS, rows, len(devices.HEADS), "; ".join(known.left_out))


def differences(flat: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return the keys in which a run differs from its method's defaults: value and default.

    The method is the first of them, if it is not the default one.
    """
    strategy = str(flat.get("strategy", ""))
    known = config.defaults()
    base = known | {"strategy": strategy}
    now, before = _holding(known | dict(flat)), _holding(base)
    own = config.tables_in_use(known | dict(flat))
    usual = str(known["strategy"])
    found = [("strategy", literal(strategy), literal(usual))] if strategy != usual else []
    for key, value in now.items():
        if key in ("strategy", *PLACES) or ("." in key and key.partition(".")[0] not in own):
            continue
        if key not in before:
            found.append((key, literal(value), "(no key of this version)"))
        elif value != before[key]:
            found.append((key, literal(value), literal(before[key])))
    return found


def settings_of(flat: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return all settings with the values that the run used."""
    return [(key, literal(value)) for key, value in _holding(flat).items()]


def commands(run: RunFiles) -> str:
    """Return the commands that repeat a run, outside of its federation, whose runs count."""
    given = f"-c {shlex.quote(str(run.folder / 'config.toml'))}"
    given += """ -c 'federation=""'""" if run.config.get("federation") else ""
    if run.config.get("dataset") == data_settings.DEVICE:
        told = "# on the SuperLink NAME, with devices whose state-dir is empty"
        return f"{told}\nfedapps run --connection NAME {given}"
    return f"# in one process\nfedapps serial {given}\n\n# on Flower's engine\nfedapps run {given}"


def versions(run: RunFiles) -> list[tuple[str, str]]:
    """Return the versions that the figures depend on; none if the run has not recorded them."""
    found = run.about.get("versions") or run.summary.get("versions")
    return [(str(k), str(v)) for k, v in found.items()] if isinstance(found, dict) else []


def head_of(column: str, columns: Columns) -> str:
    """Return the head of a column of a table; the name of the leading metric is left out."""
    known = {column.name: column.head for column in MEASURED if column.head}
    for metric in columns.task.metrics[1:]:
        known |= {metric.initial: f"{metric.label} initial"}
        known |= {metric.personalized: f"{metric.label} personalized"}
    return known.get(column, columns.lead.words(column))


def shown(column: str, text: str, columns: Columns) -> str:
    """Format a cell of a table for readers."""
    value = number({"": text}, "")
    if value is None or column in ("round", "client", "name", "class", "phase"):
        return text
    if column == SPREAD[-1]:
        return f"{100 * value:.1f} %"
    if (metric := columns.metric_of(column)) is not None:
        return metric.shown(value)
    if column.startswith("bytes_"):
        return human_bytes(value)
    if column in ("train_macs", "cost_paper"):
        return human(value)
    return f"{value:.4g}" if "." in text or "e" in text else text


def _holding(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values in force: the method's for general keys, and those of all tables."""
    return config.resolved(flat) | config.effective(flat)


def _epsilon(run: RunFiles) -> list[Tile]:
    """Return the latest epsilon; none without privacy."""
    known = [row for row in run.rounds if row.get("epsilon")]
    value = number(known[-1], "epsilon") if known else None
    note = SEEDED if is_seeded(run.config) else f"delta {run.config.get('dp.delta')}"
    told = "inf" if value is None else f"{value:.4g}"
    return [Tile("epsilon", told, note)] if known else []


def _partition(c: Mapping[str, Any]) -> str:
    if c.get("dataset") == data_settings.DEVICE:
        return "each with data of its own"
    details = {
        "dirichlet": ("alpha", "Dirichlet {}"),
        "shards": ("shards-per-client", "{} shards each"),
        "classes": ("classes-per-client", "classes {}"),
        "sizes": ("sizes", "sizes {}"),
        "natural": ("partitioner", "natural clients"),
    }
    key, text = details.get(str(c.get("partitioner")), ("partitioner", "{}"))
    return text.format(c[key]) if key in c else ""


def _used(rows: Sequence[Row], name: str) -> bool:
    return any(row.get(name) for row in rows)
