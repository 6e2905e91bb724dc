"""The finished runs, with their full configs: results/<scale>/<table>.jsonl has a line for each.

A run that has just finished is a JSON file of its own in results/<scale>/<table>/. Several
processes can so add runs at the same time; `pack` moves the files into the table's.

A cell of a table is done if a run of this or another table has its config, that is, the same value
for every key that can change numbers (`numeric`). So a row whose settings have changed is not done,
two tables share the runs that they have in common, and a key that was added later changes nothing
as long as it has its default. Anybody can repeat the figures in a file from its config alone.
"""

import hashlib
import json
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from glob import escape, glob
from pathlib import Path

from experiments.papers.table import SCALES, Cell
from fedapps.core import config
from fedapps.core.changes import INCIDENTAL
from fedapps.core.errors import RunError
from fedapps.core.files import held, in_turn, write_whole
from fedapps.core.schema import Scalar
from fedapps.report.about import About

# Keys on which no figure of a table depends, except for the last digits on another machine.
ELSEWHERE = (INCIDENTAL - {"presum", "threads"}) | {
    "class-names",
    "client-state",
    "input-shape",
    "max-value",
    "num-classes",
}
CLOCK = 2.0  # seconds within which two changes of a folder can have the same timestamp
Config = Mapping[str, Scalar]


@dataclass(frozen=True)
class Run:
    """A finished run: its config, figures (fractions), costs, curves, and clients at the end.

    `rounds` and `clients` hold columns; a missing value is None. `events` counts the events whose
    detail is one word, by `kind detail`.
    """

    table: str
    cell: str
    scale: str
    seed: int
    config: dict[str, Scalar]
    figures: dict[str, float] = field(default_factory=dict)
    costs: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    seconds_per_round: float = 0.0
    seconds_at_work: float = 0.0  # without pauses; 0 in runs of earlier versions
    rounds: dict[str, list[float | None]] = field(default_factory=dict)
    clients: dict[str, list[float]] = field(default_factory=dict)
    events: dict[str, int] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    note: str = ""

    @property
    def digest(self) -> str:
        """Eight hex digits that identify the config."""
        text = json.dumps(self.config, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:8]


def numeric(flat: Config) -> dict[str, Scalar]:
    """Return the resolved keys of a run-config on which numbers depend."""
    full = config.resolved(flat)
    tables = config.tables_in_use(full)
    return {
        key: value
        for key, value in sorted(full.items())
        if key not in ELSEWHERE and ("." not in key or key.partition(".")[0] in tables)
    }


def same(older: Config, wanted: Config, defaults: Config) -> bool:
    """Tell whether a run with config `older` can stand for `wanted` (both `numeric`)."""
    return all(older.get(key, defaults.get(key)) == value for key, value in wanted.items())


class Store:
    """The runs below a folder, including those that other processes add; threads can share it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.defaults = config.resolved(config.defaults())
        self._read: dict[str, Run] = {}  # by path, those of `_lines` by that of their own file
        self._lines: dict[str, tuple[object, dict[str, Run]]] = {}  # of each packed file, its stat
        self._changed: dict[str, float] = {}  # times of the folders at the last look
        self._alike: dict[tuple[str, int], list[Run]] = {}  # by scale and seed
        self._alone = threading.RLock()  # held by who reads or changes what is above

    def runs(self) -> list[Run]:
        """Return all runs, ordered by scale, table and name."""
        with self._alone:
            self._look()
            return [self._read[path] for path in sorted(self._read)]

    def _look(self) -> None:
        """Read the files that are new since the last look."""
        whole = escape(str(self.folder))
        scales = [found for scale in SCALES for found in glob(f"{whole}/{scale}/")]
        folders = [found for scale in scales for found in glob(f"{escape(scale)}*/")]
        changed = {folder: os.stat(folder).st_mtime for folder in (*scales, *folders)}
        just_now = max(changed.values(), default=0) > time.time() - CLOCK
        if changed == self._changed and not just_now:
            return
        self._changed = changed
        paths, packed = set(self._files("*/*.json")), self._packed()
        for path in paths - (self._read.keys() - packed.keys()):
            try:
                self._read_again(path)
            except FileNotFoundError:  # another process has packed it
                paths.remove(path)
        own = {path: self._read[path] for path in paths}
        self._read = dict(sorted((self._packed() | own).items()))  # what was packed meanwhile, too
        self._alike = {}
        for run in self._read.values():
            self._alike.setdefault((run.scale, run.seed), []).append(run)

    def _files(self, pattern: str) -> list[str]:
        """Return the files of all scales that match a pattern."""
        whole = escape(str(self.folder))
        return [file for scale in SCALES for file in glob(f"{whole}/{scale}/{pattern}")]

    def _packed(self) -> dict[str, Run]:
        """Return the runs in the tables' files, by the path that a file of its own would have."""
        files = self._files("*.jsonl")
        for file in files:
            found = os.stat(file)
            at = found.st_mtime_ns, found.st_ino, found.st_size
            if file not in self._lines or self._lines[file][0] != at:
                runs = [Run(**json.loads(s)) for s in Path(file).read_text("utf-8").splitlines()]
                self._lines[file] = at, {str(self._path_of(run)): run for run in runs}
        self._lines = {file: self._lines[file] for file in files}
        return {path: run for _, runs in self._lines.values() for path, run in runs.items()}

    def _path_of(self, run: Run) -> Path:
        return self.folder / run.scale / run.table / f"{run.cell}-s{run.seed}.json"

    def pack(self) -> None:
        """Move all runs that have a file of their own into the file of their table.

        Files that another process has written within the last seconds stay for the next time.
        """
        if not self._files("*/*.json"):
            return
        with self._alone, self._in_turn():
            times = {Path(path): os.stat(path).st_mtime_ns for path in self._files("*/*.json")}
            self._changed, self._read = {}, {}  # each file is read again: it can be a newer one
            by_table: dict[tuple[str, str], list[Run]] = {}
            for run in self.runs():
                by_table.setdefault((run.scale, run.table), []).append(run)
            for (scale, table), runs in by_table.items():
                own = [path for run in runs if (path := self._path_of(run)) in times]
                if not own or max(times[path] for path in own) / 1e9 > time.time() - CLOCK:
                    continue
                text = b"".join(map(_line, runs))
                write_whole(self.folder / scale / f"{table}.jsonl", text)
                for path in own:
                    if path.stat().st_mtime_ns == times[path]:  # on a file system without locks
                        path.unlink()
                with suppress(OSError):  # not all of them were packed
                    own[0].parent.rmdir()

    @contextmanager
    def _in_turn(self) -> Iterator[None]:
        """Let one process at a time add or move runs in this context."""
        with in_turn(self._locks() / "packing"):
            yield

    def find(self, cell: Cell, seed: int) -> Run | None:
        """Return a run with a cell's config and seed, if there is one."""
        wanted = numeric(cell.config(seed))

        def fits(run: Run) -> bool:
            return same(run.config, wanted, self.defaults)

        path = str(self.path(cell, seed))
        with self._alone:
            try:
                self._read_again(path)
            except FileNotFoundError:
                self._look()
            if (own := self._read.get(path)) and fits(own):
                return own
            self._look()
            return next(filter(fits, self._alike.get((cell.scale, seed), ())), None)

    def path(self, cell: Cell, seed: int) -> Path:
        """Return the path of a cell's run."""
        return self.folder / cell.scale / cell.table.name / f"{cell.name}-s{seed}.json"

    def save(self, cell: Cell, run: Run) -> None:
        """Write a run, atomically; it replaces an older one of this name."""
        path = self.path(cell, run.seed)
        with self._alone, self._in_turn():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, _line(run))
            self._read[str(path)] = run

    def check_writable(self) -> None:
        """Raise `RunError` if no result can be written, so that nothing is trained in vain."""
        try:
            write_whole(self._locks() / "writable", b"")
        except OSError as error:
            told = f"--results {self.folder}: cannot be written: {error.strerror or error}"
            raise RunError(told) from error

    def _locks(self) -> Path:
        """Return the folder of the locks, which is made if it is not there."""
        locks = self.folder / ".locks"
        locks.mkdir(parents=True, exist_ok=True)
        return locks

    @contextmanager
    def claimed(self, training: str) -> Iterator[bool]:
        """Hold the lock of a training; yields False if another process holds it.

        The operating system owns the lock and frees it if its holder dies.
        """
        lock = self._locks() / hashlib.sha256(training.encode()).hexdigest()[:16]
        lock.touch()
        with held(lock) as free:
            yield free

    def _read_again(self, path: str) -> None:
        self._read[path] = Run(**json.loads(Path(path).read_text("utf-8")))


def interrupted(flat: Config) -> Path | None:
    """Return the directory of an interrupted run with these settings, if there is one.

    Without a GPU, one that began on a GPU is none: it could not go on.
    """
    import torch  # takes seconds, and only runs need it

    from fedapps.engine import resume

    for folder in resume.unfinished(config.read(flat)):
        can = About.read(folder).processor != "cuda" or torch.cuda.is_available()
        if can and numeric(config.stored(folder)) == numeric(flat):
            return folder
    return None


def diverged(cell: Cell, seed: int, cause: str) -> Run:
    """Return a run whose training diverged: it has no figures, only a note."""
    return replace(nothing_of(cell, seed), note=cause)


def nothing_of(cell: Cell, seed: int) -> Run:
    """Return a run without figures."""
    return Run(cell.table.name, cell.name, cell.scale, seed, numeric(cell.config(seed)))


def _line(run: Run) -> bytes:
    """Return what a file has of a run; a line of an earlier version stays as it is."""
    content = asdict(run)
    if not run.seconds_at_work:
        del content["seconds_at_work"]
    return json.dumps(content).encode() + b"\n"
