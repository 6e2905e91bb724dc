"""Checkpoints: everything that a killed run needs to go on as if nothing had happened.

A checkpoint is one file in the run directory, for example `checkpoint/round-000012.fedapps`. Its
first line is a checksum. Then come the model and the method's state in safetensors format; the
header of safetensors holds everything else as JSON. The previous checkpoint is kept as well. Random
numbers need not be saved, as they depend only on seed, round and client. Clients keep their states
in their own stores.
"""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import safetensors.numpy
from safetensors import SafetensorError

from fedapps.core import log
from fedapps.core.errors import RunError, what_it_is
from fedapps.core.files import numbered, write_whole, writing
from fedapps.engine.failures import FailureCounts
from fedapps.engine.store import NONE
from fedapps.method.update import under
from fedapps.models.layers import Arrays
from fedapps.report.directory import APPENDED, CHECKPOINTS, has_finished
from fedapps.report.state import ReportState
from fedapps.tasks import Metric

KEPT = 2  # checkpoints that are kept: the last one and the one before it
_MAGIC = b"fedapps checkpoint 1 "
_SERVER, _STATE = "server/", "state/"  # prefixes of array names in the file
_ABOUT = "about"  # key in the safetensors metadata


class Best(msgspec.Struct, frozen=True):
    """The best mean of the personalized leading metric on validation samples so far.

    `since` counts the evaluations after that round. In the mean, clients that diverged count as the
    worst of the others. `diverged` is their number if they were the most, else 0: a few that say so
    choose no round. (None: an earlier version has not counted them.)
    """

    score: float = -1.0
    round: int = 0
    since: int = 0
    diverged: int | None = None

    def after(self, round_: int, score: float, metric: Metric, diverged: int) -> "Best":
        """Return the best round after one more evaluation; if two are equal, the earlier one.

        Of rounds in which most clients `diverged`, and others, the one with fewer is better: a mean
        of a few clients looks better than it is. A score that is not finite, which a
        checkpoint cannot hold, is never the best.
        """
        before = diverged if self.diverged is None else self.diverged
        better = diverged == before and metric.is_better(score, self.score)
        if math.isfinite(score) and (not self.round or diverged < before or better):
            return Best(score, round_, diverged=diverged)
        return msgspec.structs.replace(self, since=self.since + 1)


class Progress(ReportState, frozen=True, kw_only=True):
    """How far a run is: everything in a checkpoint except the arrays.

    `versions` maps each client to the round that wrote its newest state. `best` is the best round
    on validation samples so far; `best_if_longer` is that of a run with more rounds, if it would
    not have evaluated this one. `failures` counts failures, for the rules that end a run. `names`
    lists the arrays in the order in which they were created. `source` is the SHA-256 of the file
    `initial-model`. `clients` is the number of clients.
    """

    versions: dict[int, int]
    best: Best
    best_if_longer: Best | None = None
    failures: FailureCounts
    names: tuple[str, ...] = ()  # set by `Checkpoint.pack`
    source: str
    clients: int


@dataclass(frozen=True)
class Checkpoint:
    """A run after a round: its progress, the server's model and the method's state."""

    progress: Progress
    arrays: Arrays
    state: Arrays

    def pack(self) -> bytes:
        """Return the content of the file; raises `RunError` if the state cannot be written."""
        named = {_SERVER + key: value for key, value in self.arrays.items()}
        check_state(self.state)
        named |= {_STATE + key: np.asarray(value) for key, value in self.state.items()}
        progress = msgspec.structs.replace(self.progress, names=tuple(named))
        about = {_ABOUT: msgspec.json.encode(progress).decode()}
        try:
            # safetensors ignores strides
            whole = {key: np.asarray(value, order="C") for key, value in named.items()}
            data = safetensors.numpy.save(whole, about)
        except (KeyError, SafetensorError) as error:
            raise RunError(
                f"checkpoint: a method's state must be arrays of numbers ({error})"
            ) from error
        return _MAGIC + _checksum(data) + b"\n" + data

    @classmethod
    def unpack(cls, content: bytes) -> "Checkpoint":
        """Read the content of a file; raises ValueError if it is truncated or altered."""
        head, _, data = content.partition(b"\n")
        if head != _MAGIC + _checksum(data):
            raise ValueError("it is truncated or was altered")
        try:
            size = int.from_bytes(data[:8], "little")
            about = msgspec.json.decode(data[8 : 8 + size])["__metadata__"][_ABOUT]
            progress = msgspec.json.decode(about, type=Progress)
            loaded = safetensors.numpy.load(data)
            # in the order in which they were created, and as copies that can be changed in place
            named = {key: loaded[key].copy() for key in progress.names}
        except (SafetensorError, KeyError, TypeError, msgspec.MsgspecError) as error:
            raise ValueError(f"it cannot be read: {error}") from error
        return cls(progress, under(named, _SERVER), under(named, _STATE))


# Those of safetensors, by NumPy's names.
DTYPES = {"bool", "complex64", *(f"float{bits}" for bits in (16, 32, 64))}
DTYPES |= {f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)}


def check_state(state: Mapping[str, object], when: str = "") -> None:
    """Raise `RunError` if a method has put anything else into its state than arrays of numbers.

    A resumed run would get an array, or there would be no checkpoint.
    """
    for key, value in state.items():
        if not isinstance(key, str):
            raise RunError(f"{when}self.state has the key {key!r}: must be a text")
        kind = value.dtype if isinstance(value, np.ndarray | np.generic) else None
        if kind is None or kind.newbyteorder("=").name not in DTYPES:
            told = f"of dtype {kind}, which no checkpoint holds" if kind else what_it_is(value)
            must = "must be a NumPy array of numbers, such as np.array(3)"
            raise RunError(f'{when}self.state["{key}"] is {told}: {must}')


def save(run: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint of the run in folder `run`, and delete all but the last two.

    Raises `RunError` if it cannot be written; existing checkpoints then stay.
    """
    folder = run / CHECKPOINTS
    with writing(folder):
        folder.mkdir(mode=0o700, exist_ok=True)  # the state may hold data of single clients
    write_whole(_path(folder, checkpoint.progress.round), checkpoint.pack(), durable=True)
    for round_ in rounds(run)[:-KEPT]:
        _path(folder, round_).unlink(missing_ok=True)


def load(run: Path, before: float = math.inf) -> Checkpoint:
    """Return the newest intact checkpoint of the run in folder `run` from `before` a round.

    A damaged one is skipped with a warning. Raises `RunError` if none is intact.
    """
    problems: list[str] = []
    for round_ in reversed([number for number in rounds(run) if number < before]):
        path = _path(run / CHECKPOINTS, round_)
        try:
            checkpoint = Checkpoint.unpack(path.read_bytes())
            _check_tables(run, checkpoint.progress.tables)
        except (OSError, ValueError) as error:
            problems.append(f"{path.name}: {error}")
            log.warning("checkpoint %s is skipped: %s", path.name, error)
            continue
        return checkpoint
    if problems:
        raise RunError(f'resume = "{run}": no checkpoint can be used ({"; ".join(problems)})')
    why = (
        "there is no checkpoint of a finished round from which it could go on; begin it anew:"
        " delete it, or use another run-name"
    )
    if has_finished(run):
        why = "it has finished, and has no checkpoint (as with checkpoint-every=0); begin a new run"
    raise RunError(f'resume = "{run}": {why}')


def roll_back(run: Path, round_: int) -> None:
    """Delete the checkpoints after `round_`: the run goes on from there and writes them again."""
    for later in rounds(run):
        if later > round_:
            _path(run / CHECKPOINTS, later).unlink(missing_ok=True)


def rounds(run: Path) -> list[int]:
    """Return the rounds that have a checkpoint, in ascending order.

    Raises `RunError` if this user may not look for them.
    """
    return sorted(numbered(run / CHECKPOINTS, "round-", ".fedapps"))


def needed_after(round_: int, every: int) -> int:
    """Return the oldest round whose client states a run that is killed in `round_` could need.

    It is the round of the older of the two checkpoints that exist then (0: from the start), or
    `NONE` if the run writes no checkpoints. It depends only on the arguments, so that a resumed run
    keeps the same files.
    """
    if not every:
        return NONE
    return max(0, ((round_ - 1) // every - (KEPT - 1)) * every)


def _check_tables(run: Path, tables: Mapping[str, int]) -> None:
    """Raise ValueError if a table is shorter than at the checkpoint: lost rows cannot come back."""
    for name, size in tables.items():
        if name not in APPENDED:
            raise ValueError(f"{name} is not a table of a run")
        try:
            there = (run / name).stat().st_size
        except OSError as error:
            raise ValueError(f"{name}: {error.strerror or error}") from error
        if there < size:
            raise ValueError(f"{name} has {there} bytes, but it had {size}")


def _checksum(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).hexdigest().encode()


def _path(folder: Path, round_: int) -> Path:
    return folder / f"round-{round_:06d}.fedapps"
