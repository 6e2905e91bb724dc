"""Resume a run: find its directory, and check that its settings are the ones asked for."""

import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from itertools import filterfalse, islice
from pathlib import Path

import msgspec

from fedapps.core import config, files, log
from fedapps.core.changes import GROWING, INCIDENTAL, LAST_DIGITS
from fedapps.core.data_settings import DEVICE
from fedapps.core.errors import RunError, without_lines
from fedapps.core.options import LATEST
from fedapps.core.paths import expanded
from fedapps.core.schema import Scalar, literal
from fedapps.core.scored_rounds import is_due
from fedapps.core.settings import Settings
from fedapps.core.words import number
from fedapps.engine import checkpoint, evaluations, failed_clients, fingerprints
from fedapps.engine.checkpoint import Checkpoint, Progress
from fedapps.engine.recovery import Recovery
from fedapps.engine.rounds import Rounds
from fedapps.method.flower import BaseStrategy
from fedapps.report import directory
from fedapps.report.about import FLOWER, About, command, fingerprints_of
from fedapps.report.report import Report

# Keys that must not change when a run is resumed: some change its last digits; in another
# federation, or in none, it would not count what the earlier runs have spent; and its tables have
# the columns of one leading metric.
FIXED = LAST_DIGITS | {"federation", "metric"}
# Keys that may change: where it runs and how long, not what it computes.
FREE = (INCIDENTAL - FIXED) | GROWING
BUDGET = "dp.budget"  # may be another one, but not be left out
MOST_LOOKED_AT = 100  # only so many of the newest unfinished runs are looked at


def restore(folder: Path, rounds: Rounds) -> Progress:
    """Restore a run from its last checkpoint, without changing any file: it can still be refused.

    The caller must hold the folder (`alone`). Raises `RunError` if there is no checkpoint, if the
    run has already done more than `num-rounds` rounds or would have exchanged other layers in them,
    or if checkpoints are off: the old checkpoint would then be mistaken for the end of the run.
    """
    found, settings = checkpoint.load(folder), rounds.settings
    if not settings.checkpoint_every:
        raise RunError(
            "checkpoint-every = 0: a resumed run must write checkpoints, because evaluate, predict "
            "and export read the last one; give 1 or more"
        )
    if settings.num_rounds < (done := found.progress.round):
        raise RunError(
            f"num-rounds = {settings.num_rounds}: the run has done {done} rounds; give more"
        )
    if settings.num_rounds == done and not _has_end(folder, rounds.strategy):
        found = _before_end(folder, done)
    done = found.progress.round
    fingerprints.check(folder, rounds.strategy)
    check_dependence(folder, rounds.strategy, done)
    rounds.recovery.restore(folder, found, rounds.strategy)
    if found.progress.clients < settings.num_clients:
        _tell_of_others(rounds.strategy, done)
    return found.progress


def _tell_of_others(strategy: BaseStrategy, done: int) -> None:
    """Warn that clients are scored who were not before, because they are drawn among more."""
    some, clients = strategy.settings.evaluate_clients, len(strategy.workspace.population.training)
    if 0 < some < clients:
        log.warning(
            f"evaluate-clients = {some}: drawn anew among {clients} clients, so from round"
            f" {done + 1} on means are over others than before, also for keep-best and patience"
        )


def _has_end(folder: Path, strategy: BaseStrategy) -> bool:
    """Tell whether the tables end as those of a run with so many rounds.

    They do not if it was to have more rounds, or was made longer and lost its end.
    """
    rounds, lead = strategy.settings.num_rounds, strategy.workspace.task.lead
    if directory.has_finished(folder) and config.stored(folder).get("num-rounds") == rounds:
        return True
    last = [r for r in directory.lines(folder / directory.ROUNDS) if r["round"] == str(rounds)]
    ends = len(last) == 1 + bool(evaluations.final_phase(strategy, rounds))
    if not ends or last[-1][lead.personalized]:
        return ends
    untold = int(last[-1]["bytes_eval"]) and not last[-1][lead.initial]  # devices can keep scores
    return bool(untold) and is_due(config.read(config.defaults() | config.stored(folder)), rounds)


def _before_end(folder: Path, done: int) -> Checkpoint:
    """Return the checkpoint from which the last of the `done` rounds are repeated as an end."""
    if checkpoint.rounds(folder)[0] == done:
        raise RunError(
            f"num-rounds = {done}: round {done} was not the end of this run, and no earlier"
            " checkpoint is left from which to repeat it; give more rounds"
        )
    found = checkpoint.load(folder, done)
    first = found.progress.round + 1
    those = f"round {done} is" if first == done else f"rounds {first} to {done} are"
    log.info("num-rounds = %s: %s repeated as the end of the run", done, those)
    return found


def how_far(recovery: Recovery) -> str:
    """Say where a resumed run goes on, or how to extend it if it is at its end."""
    s, done = recovery.settings, recovery.done
    if recovery.left:
        return f"goes on after round {done}"
    if done == s.num_rounds:
        return f"has all its {number(done, 'round')}; a larger num-rounds extends it"
    when = f"after round {done} of {s.num_rounds}"
    return f"was ended by patience = {s.patience} {when}; a larger patience extends it"


def tell_of_repeated_sums(folder: Path, settings: Settings, done: int) -> None:
    """Warn if two secure sums of a round could differ by one client's update, without noise.

    Training from the same state gives the same update. Of a run that has finished, no round is
    repeated, unless it goes on from an earlier one than its last.
    """
    repeats = not directory.has_finished(folder) or checkpoint.rounds(folder)[-1] > done
    if settings.secure_sum and not settings.dp.protects and repeats:
        log.warning(
            "secure-sum: if a device is missing from a round that is repeated, the server can"
            " subtract the two sums and has its update; begin a new run with another seed, or with"
            ' dp.mode="distributed" and dp.secret-noise=true'
        )


def find(settings: Settings) -> Path | None:
    """Return the run directory that `resume` names, or None if it is empty.

    Raises `RunError` if there is no such run, or if its settings are different.
    """
    if not settings.resume:
        return None
    if settings.resume == LATEST:
        folder = next(unfinished(settings), None)
        if folder is None:
            raise RunError(
                f'resume = "{LATEST}": no unfinished run with these settings is in '
                f"{settings.runs_dir}; name its directory, or start a new run without resume"
            )
    else:
        folder = expanded(settings.resume, "resume")
        if not folder.is_absolute():
            raise RunError(f'resume = "{folder}": must be absolute, start with ~, or be {LATEST}')
        _check_settings(folder, dict(settings.flat))
        if directory.whole(folder) != folder:
            raise RunError(f"{folder}: holds the best round of a run; resume the run itself")
    return folder


def unfinished(settings: Settings) -> Iterator[Path]:
    """Yield the unfinished runs with the same settings in `runs-dir`, newest first."""
    flat, runs = dict(settings.flat), expanded(settings.runs_dir, "runs-dir")
    folders = [path.parent for path in runs.glob(f"*/{directory.CHECKPOINTS}")]
    folders.sort(key=_changed, reverse=True)
    for folder in islice(filterfalse(directory.has_finished, folders), MOST_LOOKED_AT):
        try:
            old = _stored(folder, flat) if checkpoint.rounds(folder) else {}
        except RunError:  # one of another user, too
            continue
        same_rounds = old.get("num-rounds") == flat["num-rounds"]
        if same_rounds and not differences(old, flat) and files.is_free(folder):
            yield folder


def _changed(folder: Path) -> float:
    """Return when a folder was last changed; 0 if somebody has just deleted it."""
    try:
        return folder.stat().st_mtime
    except OSError:
        return 0.0


def offer(strategy: BaseStrategy) -> None:
    """Tell the user if an unfinished run, with the same settings and code, could be resumed."""
    if (folder := next(unfinished(strategy.settings), None)) is None:
        return
    if not fingerprints.changed(fingerprints_of(folder), fingerprints.fingerprints(strategy)):
        done = checkpoint.rounds(folder)[-1]
        told = f"{folder} with the same settings stopped after round {done}"
        log.info(f"note: {told}; --resume goes on with it")


def alone(folder: Path) -> AbstractContextManager[None]:
    """Lock the directory of a run, so that no other process resumes the run meanwhile.

    Raises `RunError` if the run is going on in another process.
    """
    told = f"{folder}: this run is going on in another process; stop it first"
    return files.alone(folder, told)


def interrupted(report: Report) -> str:
    """Say what an interrupted run has left, and how to resume it."""
    settings, done = report.settings, report.last_round
    total = settings.num_rounds
    if report.pending:
        when = f"before round {done + 1} of {total}" if done < total else "with nothing left to do"
        return f"interrupted {when}: {report.folder} is as it was"
    if checkpoint.rounds(report.folder):
        devices, least = settings.on_devices, settings.min_available
        nodes = f" --num-supernodes {least}" if least > 1 and not devices else ""
        going = "" if failed_clients.is_raising() else " --keep-going"
        how = f"fedapps serial --resume {shlex.quote(str(report.folder))}{nodes}{going}"
        if config.code_beside(report.folder):
            how += f" -c {shlex.quote('model=' + literal(settings.model))}"
        same = " with the same --node-config options" if devices else ""
        return f"interrupted after round {done} of {total}; to resume{same}: {how}"
    there = f"model and figures of {number(done, 'round')}" if done else "no results yet"
    return f"interrupted in round {done + 1} of {total}: {report.folder} has {there}; begin anew"


def check_dependence(folder: Path, strategy: BaseStrategy, done: int) -> None:
    """Warn if the `done` rounds would have been different with the new number of rounds.

    Raises `RunError` if the last of them would have exchanged or kept other layers. The method's
    schedule would then have to go back: clients would freeze layers that they have already trained,
    or share layers that have become personal. The same holds if only with the new number it would
    have been the last before other layers, because at its end a method may prepare for these.
    """
    new = strategy.settings
    before = config.read(config.defaults() | config.stored(folder)).num_rounds
    if before == new.num_rounds:
        return
    with without_lines(log.logger.name, lambda _: True):  # its warnings are about the old value
        old = type(strategy)(strategy.workspace, msgspec.structs.replace(new, num_rounds=before))
    client = strategy.workspace.population.some_client
    (was, next_was), (would_be, next_would_be) = (
        [msgspec.structs.replace(s.plan(r, client), round=0, stages=()) for r in (done, done + 1)]
        for s in (old, strategy)
    )
    told = f"num-rounds = {new.num_rounds}: with so many rounds, round {done} would"
    if was != would_be:
        raise RunError(
            f"{told} exchange or keep other layers than it did in this run; start a new run"
        )
    if next_was == was and next_would_be != was:
        raise RunError(
            f"{told} be the last before other layers are exchanged or kept, but in this run it was"
            " not; start a new run"
        )
    for round_ in range(1, done + 1):
        rates = {s.round_lr(round_) for s in (old.settings, new)}  # of a server that trains, too
        if len(rates) > 1 or old.plan(round_, client) != strategy.plan(round_, client):
            start = f"a run of {new.num_rounds} rounds from the start would not be the same"
            log.warning(f"round {round_} depends on the number of rounds: {start}")
            return


def differences(old: Mapping[str, Scalar], new: Mapping[str, Scalar]) -> list[str]:
    """Return the keys with different values in two run-configs, except those in `FREE`."""
    free = FREE if new[BUDGET] else FREE - {BUDGET}
    return [
        f"{key} = {literal(new[key])} (the run has {literal(old[key])})"
        for key in sorted(new.keys() - free)
        if old[key] != new[key]
    ]


def _stored(folder: Path, new: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Return the settings of a run, with a new `device` if "auto" has chosen it, or will be it."""
    old = config.defaults() | config.stored(folder)
    if {old["device"], new["device"]} == {"auto", About.read(folder).processor}:
        old["device"] = new["device"]
    return old


def _check_settings(folder: Path, flat: Mapping[str, Scalar]) -> None:
    """Refuse other settings than those of the run; more devices are none."""
    old = _stored(folder, flat)
    if may_grow(old, flat):
        old["num-clients"] = flat["num-clients"]
    if different := differences(old, flat):
        by_flower = command(sys.orig_argv).startswith(FLOWER)
        cure = f", or with flwr run use --run-config {folder / 'resume.toml'}" if by_flower else ""
        raise RunError(
            f'resume = "{folder}": the run has other settings: {", ".join(different)}; leave them'
            f" out{cure}"
        )


def may_grow(old: Mapping[str, Scalar], new: Mapping[str, Scalar]) -> bool:
    """Tell whether a run on devices goes on with more clients than it had.

    Without devices, all samples would be distributed anew. Differential privacy counts on the
    number of clients, and a share of unseen clients would be drawn anew.
    """
    drawn = "." in str(new["unseen-clients"])
    if new["dataset"] != DEVICE or new["dp.mode"] != "none" or drawn:
        return False
    return int(new["num-clients"]) > int(old["num-clients"])
