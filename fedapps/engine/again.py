"""Evaluate a saved run again with other personalization settings, without training it again."""

import os
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

import torch

from fedapps.core import config, log
from fedapps.core.changes import PERSONAL, text_of
from fedapps.core.errors import RunError
from fedapps.core.files import in_turn, write_whole, writing
from fedapps.core.schema import Scalar, literal
from fedapps.core.words import key_meant
from fedapps.engine import evaluations, unused
from fedapps.engine.finished import FinishedRun, settings_of
from fedapps.engine.metrics import MetricChecks
from fedapps.method.flower import BaseStrategy
from fedapps.report import cells, directory
from fedapps.report.columns import Columns, columns_of
from fedapps.report.rows import ClientEval, client_rows, means
from fedapps.report.summary import unseen, unseen_columns

# Keys that may differ from those of the run: how and where clients are personalized and scored.
ALLOWED = {*PERSONAL, "evaluate-clients", "threads", "device", "data-root"}


def evaluate(run: Path, changes: Mapping[str, Scalar], trust: str = "") -> Path:
    """Score every client of a finished or interrupted simulation; return the path of the table.

    If `evaluate-clients` is among the changes, only so many are scored, drawn as in the run.
    Newcomers are scored, too; their means are in `evaluations.csv`.

    `changes` are run-config keys with new values; all other keys keep the values of the run. The
    scores go into `evaluation-1.csv` (or the next free number; columns as in clients.csv), and one
    line is added to `evaluations.csv`. Raises `RunError` if a change is not in `ALLOWED` (the run
    would have to be trained again), or is overridden, and if the clients are devices. `trust` is as
    in `config.check_code`.
    """
    before = config.defaults() | config.stored(run)
    check_changes(before, changes, ALLOWED)
    settings = settings_of(run, changes)
    if settings.on_devices:
        raise RunError(f"{run}: its clients are devices; their state is on the devices, not here")
    torch.set_num_threads(settings.threads)
    finished = FinishedRun.open(run, changes, trust)
    _tell_effect(finished.strategy, before, changes)
    with _claimed(run) as (number, path):
        line = {"evaluation": number, "round": finished.round, "settings": text_of(changes)}
        columns = columns_of(finished.space.task, directory.names(run))
        some = "evaluate-clients" in changes
        strategy = finished.strategy
        clients = evaluations.evaluated(strategy) if some else evaluations.honest(strategy)
        seen = _scores(finished, clients)
        new = _scores(finished, evaluations.newcomers(strategy))
        _write(path, seen, new, columns, line, settings.evaluate_on)
    return path


def check_changes(
    before: Mapping[str, Scalar], changes: Mapping[str, Scalar], allowed: Set[str]
) -> None:
    """Raise `RunError` for a change of the settings `before` that is not `allowed` any more."""
    for key in changes:
        if key not in before:
            raise RunError(f"unknown key {key}{key_meant(key, before)}")
    own = f"{before['strategy']}."  # the table whose keys override general ones
    foreign = [
        f"{key} = {literal(changes[key])} (the run has {literal(before[key])})"
        for key in sorted(changes)
        if key.removeprefix(own) not in allowed and changes[key] != before[key]
    ]
    if foreign:
        those = ", ".join(sorted(allowed))
        raise RunError(f"{', '.join(foreign)}: needs another training run; allowed: {those}")
    tables = {key: value for key, value in before.items() if key == "strategy" or "." in key}
    if lines := config.overridden(tables | dict(changes)):
        raise RunError(f"no effect: {', '.join(lines)}")


def _tell_effect(
    strategy: BaseStrategy, before: Mapping[str, Scalar], changes: Mapping[str, Scalar]
) -> None:
    """Warn of a change that nothing reads, as a run does."""
    for key, why in unused.told(strategy):
        if changes.get(key, before[key]) != before[key]:
            log.warning(f"{key} = {literal(changes[key])} has no effect {why}")


def _scores(finished: FinishedRun, clients: Sequence[int]) -> list[ClientEval]:
    """Personalize and score clients one after the other, as the engine does in a round."""
    checks, scores = MetricChecks(finished.strategy), []
    for number in clients:
        _, update, plan = finished.evaluate(number)
        scores.append(checks.evaluation(update, plan).scores)
        log.debug("client %s: %s", number, scores[-1].personalized)
    return scores


def _write(
    path: Path,
    scores: list[ClientEval],
    newcomers: list[ClientEval],
    columns: Columns,
    line: dict[str, object],
    samples: str,
) -> None:
    """Write the table of clients, and add a line with their means to `evaluations.csv`."""
    rows = client_rows(line["round"], scores, columns)
    write_whole(path, cells.csv_text([columns.clients, *rows]).encode())
    mean = means(scores, columns)
    of_figures = (name for figure in columns.figures for name in figure.columns)
    for name in (*columns.means, *of_figures, *columns.spread):
        line[name] = mean.columns.get(name)
    new = unseen([score.flat() for score in newcomers], mean.personalized, columns.lead)
    line |= dict.fromkeys(unseen_columns(columns.lead)) | new
    overview = path.with_name(directory.EVALUATIONS)
    with in_turn(overview):
        if not overview.stat().st_size:
            directory.append(overview, [line.keys()])
        known = directory.columns_of(overview)  # an earlier version wrote fewer columns
        directory.append(overview, [[line.get(name) for name in known]])
    given = f" with {line['settings']}" if line["settings"] else ""
    what = f"evaluation {line['evaluation']} of round {line['round']} on {samples} samples{given}"
    change = columns.lead.change(mean.initial, mean.personalized)
    log.info("%s: %s %s", what, columns.lead.label, change)
    log.info("%s", os.fspath(path))


@contextmanager
def _claimed(run: Path) -> Iterator[tuple[int, Path]]:
    """Create the file of the next free table, so that another process takes the number after it.

    The file is deleted again if the block that fills it fails. Raises `RunError` if the file cannot
    be written.
    """
    for number in count(1):
        path = directory.evaluation(run, number)
        with writing(path), suppress(FileExistsError):
            path.open("x").close()
            break
    try:
        yield number, path
    except BaseException:  # Ctrl-C, too
        with suppress(OSError):
            path.unlink()
        raise
