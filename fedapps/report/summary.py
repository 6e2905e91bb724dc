"""The summary of a run: summary.json, and the table that is printed at its end."""

import math
import platform
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.table import Table

from fedapps.core import changes, log, project
from fedapps.core.privacy_settings import SEEDED
from fedapps.core.settings import Settings
from fedapps.core.words import number, shortened
from fedapps.report.columns import VIRTUAL, Columns
from fedapps.report.console import console, readable
from fedapps.report.rows import NEWCOMERS, RoundRow, is_counted
from fedapps.report.units import duration, human, human_bytes
from fedapps.tasks import Metric

NEAR = 0.02  # a balanced accuracy that differs less from that of guesses is no better
OFTEN = 0.9  # share of a class that a model recognizes if it says this class nearly always
LONGEST = 200  # letters of a setting in the table; config.toml has all of them
EPSILONS = ("epsilon", "epsilon_of_federation")
TOTALS = ("failures", "bytes_down", "bytes_up", "bytes_eval", "train_macs", "cost_paper")


def summarize(
    settings: Settings,
    rows: Sequence[RoundRow],
    columns: Columns,
    seconds: float,
    newcomers: Sequence[Mapping[str, str]] = (),
) -> dict[str, Any]:
    """Return the content of summary.json; `seconds` is the time of the whole run.

    All other costs are those of the last round, and their sums are `total_...`.

    `newcomers` are the rows of unseen.csv.

    In it, `evaluate_on` says which samples were scored, and `changed` has the settings that differ
    from the defaults.
    """
    summary: dict[str, Any] = {
        name: getattr(settings, name) for name in ("strategy", "dataset", "seed", "evaluate_on")
    }
    summary["task"] = columns.task.name
    summary["changed"] = changes.changed(dict(settings.flat))
    if rows:
        last = rows[-1]
        if last.phase == NEWCOMERS:  # the means alone are those of the clients that trained
            last = replace(rows[-2], means=last.means)
        summary |= {name: last.flat().get(name) for name in columns.rounds}
        summary |= unseen(newcomers, rows[-1].means.personalized, columns.lead)
    for name in TOTALS:
        costs = (getattr(row, name) for row in rows if is_counted(name, row.phase))
        summary[f"total_{name}"] = sum(costs)
    summary |= best_rounds(rows, columns.of_lead, columns.lead)
    return plain(summary | {"versions": versions(), "cpu": cpu(), "seconds": seconds})


def unseen(
    newcomers: Sequence[Mapping[str, Any]], seen: float | None, metric: Metric
) -> dict[str, float | None]:
    """Return the means over newcomers, and their difference from the mean of the `seen` clients.

    They are means over those who have the metric. Without a mean of the others, such as devices
    that tell no scores, the difference is None.
    """
    values = [
        [float(cell) for row in newcomers if (cell := row[name]) not in (None, "")]
        for name in (metric.initial, metric.personalized)
    ]
    if not all(values):
        return {}
    before, after = (float(np.mean(those)) for those in values)
    found = (len(newcomers), before, after, None if seen is None else after - seen)
    return dict(zip(unseen_columns(metric), found, strict=True))


def unseen_columns(metric: Metric) -> tuple[str, str, str, str]:
    """Return the names of what summary.json says about newcomers."""
    difference = f"{metric.name}_difference_unseen"
    means = (f"{metric.initial}_unseen", f"{metric.personalized}_unseen")
    return ("evaluated_unseen", *means, difference)


def best_rounds(
    rows: Sequence[RoundRow], names: Iterable[str], metric: Metric
) -> dict[str, float | int]:
    """Return `best_*` and the round of each, for columns with values of the leading metric.

    They are chosen by the scores themselves, mostly on test samples, so do not report them as
    results.
    """
    best: dict[str, float | int] = {}
    values = [(row.round, row.flat()) for row in rows]
    for name in names:
        given = [(flat.get(name), round_) for round_, flat in values]
        known = [(v, round_) for v, round_ in given if v is not None and not math.isnan(v)]
        if known:
            value = metric.best([value for value, _ in known])
            round_ = next(round_ for other, round_ in known if other == value)
            best |= {f"best_{name}": value, f"best_{name}_round": round_}
    return best


@cache  # packages say theirs in long files
def versions() -> dict[str, str]:
    """Return the versions of Python and packages that a result depends on."""
    packages = {name: metadata.version(name) for name in ("torch", "flwr", "numpy")}
    return {"python": platform.python_version(), **packages, "fedapps": project.version()}


@cache
def cpu() -> str:
    """Return the model of the CPU, and the instructions that PyTorch uses: both change roundings.

    For example, `AMD EPYC 9V74 80-Core Processor, AVX512`.
    """
    import torch  # here, because the page of a run needs this module, but no torch

    return f"{cpu_model()}, {torch.backends.cpu.get_cpu_capability()}"


def cpu_model() -> str:
    """Return the model of the CPU; of those that tell none, as ARM on Linux, their kind."""
    model = platform.processor() or platform.machine()
    with suppress(OSError, ValueError):  # not Linux
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
        named = (line.partition(": ")[2] for line in lines if line.startswith("model name"))
        model = next(named, model)
    return model


def plain(value: Any) -> Any:
    """Convert values to types of JSON; NaN and infinity, which JSON lacks, become null.

    Only an epsilon without limit is the text `inf`, because null means that there is no noise.
    """
    if isinstance(value, Mapping):
        spent = [key for key, item in value.items() if key in EPSILONS and item == math.inf]
        return {str(key): plain(item) for key, item in value.items()} | dict.fromkeys(spent, "inf")
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, str | int | float | None) else str(value)


def print_summary(
    summary: Mapping[str, Any],
    settings: Settings,
    columns: Columns,
    classes: Sequence[Sequence[int]] = (),
) -> None:
    """Print a summary as a table of at most 100 columns, if the log is printed, too.

    A line follows if accuracy leads, and the counts of the `classes`, as those of `class_sums`, say
    that it is that of the most frequent class.
    """
    if log.is_printed():
        _print_table(summary, settings, columns)
    by_class = classes and columns.task.has_classes and columns.lead is columns.task.of_class
    if by_class and (found := _said_always(classes)) is not None:
        name = columns.class_names[found] if columns.class_names else found
        alike = [metric.name for metric in columns.task.metrics if metric.by_class]
        cure = "; metric=%s counts classes alike" if alike else ""
        line = f"note: the models nearly always say the most frequent class, %s{cure}"
        log.info(line, name, *alike[:1])


def _said_always(classes: Sequence[Sequence[int]]) -> int | None:
    """Return the most frequent class if the models say it nearly always; None otherwise.

    Where all classes are about as frequent, None, because accuracy itself tells it.
    """
    counts, _, right = np.array(classes)
    if not counts.any():
        return None
    there, most = counts > 0, int(counts.argmax())
    recalls, chance = right[there] / counts[there], 1 / there.sum()
    hidden = right.sum() <= counts[most] and counts[most] / counts.sum() > chance + NEAR
    guessed = abs(recalls.mean() - chance) <= NEAR and right[most] >= OFTEN * counts[most]
    return most if hidden and guessed else None


def _print_table(summary: Mapping[str, Any], settings: Settings, columns: Columns) -> None:
    screen = console()
    table = Table(show_header=False, box=box.HORIZONTALS)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for label, value in _table_rows(summary, settings, columns):
        table.add_row(label, readable(value, screen))
    with log.expendable():
        screen.print(table)


def _table_rows(
    summary: Mapping[str, Any], settings: Settings, columns: Columns
) -> list[tuple[str, str]]:
    lead = columns.lead

    def shown(name: str) -> str:
        if metric := columns.metric_of(name):
            return metric.digits(summary.get(name), places=4)
        return f"{summary[name]:.4f}"  # a figure in a unit of its own

    initial, personalized, std, *together = map(shown, columns.means)
    counted, of = summary.get("evaluated") or 0, summary.get("evaluated_of", 0)
    over = f"{counted} of {number(of, 'client')}" if counted < of else "clients"
    part = f"{settings.evaluate_on} samples"
    down, up, evaluation = (
        human_bytes(summary[f"total_bytes_{name}"]) for name in ("down", "up", "eval")
    )
    virtual = summary.get(VIRTUAL)
    passed = [] if virtual is None else [("virtual time", duration(virtual))]
    given = [f for f in columns.figures if f.label and summary.get(f.name) is not None]
    names = unseen_columns(lead)
    count, *new = map(summary.get, names)
    before, after, apart = (lead.digits(value, places=4) for value in new)
    told = f"{before} initial, {after} personalized"
    told += f", difference {apart}" if new[2] is not None else ""
    come = [(f"{lead.label} of {number(count, 'newcomer')}", told)] if count else []
    further = [
        (m.label, f"{shown(m.initial)} initial, {shown(m.personalized)} personalized")
        for m in columns.task.metrics[1:]
    ]
    changed = [changes.text_of({key: value}) for key, value in summary["changed"].items()]
    return [
        ("method", settings.strategy),
        ("data", settings.dataset),
        ("changed settings", " ".join(shortened(text, LONGEST) for text in changed) or "none"),
        *([("layers", summary["layers"])] if summary.get("layers") else []),
        ("scored on", part),
        ("clients", f"{settings.num_clients}, {summary.get('clients', 0)} in the last round"),
        ("rounds", str(summary.get("round", 0))),
        (f"{lead.label} initial", initial),
        *((f"{lead.label} {f.label}" if f.of_metric else f.label, shown(f.name)) for f in given),
        (f"{lead.label} personalized", f"{personalized} ± {std} over {over}"),
        *come,
        (f"over all {part}", "{} initial, {} personalized".format(*together)),
        *further,
        ("bytes", f"{down} down, {up} up, {evaluation} for evaluation"),
        ("training MACs", human(summary["total_train_macs"])),
        ("paper cost", f"{human(summary['total_cost_paper'])} (trained parameters x batches)"),
        ("time", duration(summary["seconds"])),
        *passed,
        ("failures", str(summary["total_failures"])),
        *_privacy(summary, settings),
    ]


def _privacy(summary: Mapping[str, Any], settings: Settings) -> list[tuple[str, str]]:
    """Return lines about privacy, if there is any: secure sums, epsilon of run and federation."""
    rows = []
    if settings.secure_sum:  # it changes last digits only, so `changed` is without it
        rows.append(("secure sum", "the server saw only the sum of each round's updates"))
    note = f"; {SEEDED}" if settings.dp.seeded else ""
    spent, of_federation = (summary.get(name) for name in EPSILONS)
    if spent is not None:
        rows.append(("epsilon spent", f"{float(spent):.4g}{note}"))
    if of_federation is not None:
        runs = number(summary["runs_of_federation"], "run")
        rows.append(("epsilon of the federation", f"{float(of_federation):.4g} in {runs}{note}"))
    return rows
