"""The files of a run directory: create them, append to tables, read them."""

import csv
import errno
import os
import re
import shlex
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import safetensors.numpy

from fedapps.core.config import to_toml
from fedapps.core.errors import RunError
from fedapps.core.files import is_free, numbered, read_json, to_disk, write_whole, writing
from fedapps.core.schema import Scalar
from fedapps.core.words import closest, composed
from fedapps.report.cells import Rows, csv_text, original

MODEL = "model.safetensors"  # the server's model
EVALUATIONS = "evaluations.csv"  # one line per later evaluation of the run (`fedapps evaluate`)
_EVALUATION = "evaluation-"  # a table with a line per client, for each of these evaluations
CHECKPOINTS = "checkpoint"  # a folder, for which see engine/checkpoint.py
BEST = "best"  # a run directory inside this one: the best round on validation samples
SUMMARY = "summary.json"  # written when a run ends, and deleted when it is resumed
ON_DISK = (MODEL, SUMMARY)  # results that a power cut leaves whole
NAMES = "names.csv"  # what the data call each client, if they do
CLASS_NAMES = "class-names.csv"  # and each class or label
NAMED = (NAMES, CLASS_NAMES)
UNSEEN = "unseen.csv"  # like clients.csv, for clients that came after the training
SAMPLES = "samples.csv"  # number of training samples per client and class, if known
ROUNDS = "rounds.csv"
APPENDED = (ROUNDS, "clients.csv", "events.csv")  # tables that get rows in each round
BLOCK = 2**18  # bytes of a table that are read at once from its end
LISTED = 10_000  # clients in samples.csv; if there are more, every n-th is listed


def check_new(runs_dir: Path, run_name: str) -> None:
    """Refuse a name that a run has, or a place for none, before minutes go by with the data.

    Raises `RunError`, as `make` does if this has changed by then.
    """
    try:
        if run_name and (runs_dir / run_name).exists():
            raise _taken(runs_dir / run_name)
        above = next(path for path in (runs_dir, *runs_dir.parents) if path.exists())
        if not above.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if not os.access(above, os.W_OK | os.X_OK):
            read_only = os.statvfs(above).f_flag & os.ST_RDONLY
            why = errno.EROFS if read_only else errno.EACCES
            raise PermissionError(why, os.strerror(why))
    except OSError as error:  # a name is too long, or a folder above may not be entered
        raise _unusable(runs_dir, error.strerror or str(error)) from error


def make(runs_dir: Path, run_name: str, what: str) -> Path:
    """Make the directory of a new run; without `run_name`, its name is `what` and the time.

    `run_name` has no / and is not too long, as the settings check. Raises `RunError` if a named
    run exists or the folder cannot be made.
    """
    for folder in _candidates(runs_dir, run_name, what):
        try:
            folder.mkdir(parents=True)
            return folder
        except OSError as error:
            if not (isinstance(error, FileExistsError) and folder.exists()):  # a parent is a file
                raise _unusable(runs_dir, error.strerror or str(error)) from error
    raise _taken(runs_dir / run_name)


def _taken(folder: Path) -> RunError:
    told = f'run-name = "{folder.name}": {folder} exists; use another name or ""'
    with suppress(OSError, RunError):  # it can be another user's
        if numbered(folder / CHECKPOINTS, "round-", ".fedapps"):
            told += f', or go on with that run: resume="{folder}"'
        elif is_run(folder) and not has_finished(folder) and is_free(folder):
            told += ", or delete it, as it has no checkpoint from which a run could go on"
    return RunError(told)


def _unusable(runs_dir: Path, why: str) -> RunError:
    return RunError(
        f'runs-dir = "{runs_dir}": no folder can be made there ({why});'
        " use one that you may write to"
    )


def start(path: Path, rows: Rows) -> None:
    """Create a table with its first rows; raises `RunError` if it exists or cannot be written."""
    with writing(path), path.open("xb", buffering=0) as file:
        _add(file, rows)


def append(path: Path, rows: Rows) -> None:
    """Append all rows to a table, or none; raises `RunError` if it cannot be written.

    The table must exist: if it was deleted, a new one would lack its head.
    """
    with writing(path), path.open("r+b", buffering=0) as file:
        end = file.seek(0, os.SEEK_END)
        try:
            _add(file, rows)
        except OSError:
            with suppress(OSError):  # the disk is full: leave no incomplete row
                file.truncate(end)
            raise


def text(path: Path) -> str:
    """Read a table as it is; raises `RunError`."""
    with _reading(path) as file:
        return file.read()


def sync(path: Path) -> int:
    """Flush a table to disk, so that a power cut cannot lose it; return its size in bytes."""
    with writing(path), path.open("rb") as file:
        to_disk(file.fileno())
        return os.fstat(file.fileno()).st_size


def lines(path: Path) -> list[dict[str, str]]:
    """Read a table as one dictionary per line, by column; raises `RunError`."""
    with _reading(path) as file:
        return rows_of(file)


def rows_of(lines: Iterable[str]) -> list[dict[str, str]]:
    """Parse the lines of a table; an incomplete line of a killed run lacks its last columns."""
    rows = csv.DictReader(lines)
    return [{k: original(v) for k, v in row.items() if k and v is not None} for row in rows]


def backwards(path: Path) -> Iterator[list[bytes]]:
    """Yield the head of a table and the lines of a round below it, for each round, the last first.

    The table is read in blocks from its end, as far as rounds are asked for. Raises OSError.
    """
    with path.open("rb") as file:
        head, found, rest = file.readline().rstrip(b"\n"), list[bytes](), b""
        begin, end = file.tell(), file.seek(0, os.SEEK_END)
        while end > begin:
            size = min(BLOCK, end - begin)
            end = file.seek(end - size)
            rest, *lines = (file.read(size) + rest).split(b"\n")
            for line in filter(None, [*reversed(lines), *([rest] if end == begin else [])]):
                if found and line.partition(b",")[0] != found[0].partition(b",")[0]:
                    yield [head, *reversed(found)]
                    found.clear()
                found.append(line)
        if found:
            yield [head, *reversed(found)]


def row_count(path: Path) -> int:
    """Return the number of a table's rows; 0 if it cannot be read.

    It counts lines, which is much faster than `lines`: no cell contains a line break (`harmless`).
    """
    try:
        return max(path.read_bytes().count(b"\n") - 1, 0)
    except OSError:
        return 0


def columns_of(path: Path) -> tuple[str, ...]:
    """Return the columns of a table; raises `RunError`."""
    with _reading(path) as file:
        return tuple(next(csv.reader(file), ()))


@contextmanager
def _reading(path: Path) -> Iterator[TextIO]:
    try:
        with path.open(encoding="utf-8", newline="\n") as file:
            yield file
    except (OSError, ValueError, csv.Error) as error:
        raise RunError(f"cannot read {path}: {error}") from error


def summary(run: Path) -> dict[str, Any]:
    """Read summary.json; empty if the run has none. Raises `RunError` if it cannot be read."""
    anew = f"resuming the run writes it anew (fedapps serial --resume {shlex.quote(str(run))})"
    return read_json(run / SUMMARY, dict[str, Any], anew, missing={})


def is_final(summary: Mapping[str, Any]) -> bool:
    """Tell whether a summary is that of a finished run, not of an interrupted one."""
    return bool(summary.get("finished", summary))  # earlier versions wrote it only at the end


def is_run(folder: Path) -> bool:
    """Tell whether a folder is a run directory. Raises OSError if this user may not look into it.

    A config.toml alone is no run: other programs have one as well, such as Flower in its home.
    """
    return all((folder / name).is_file() for name in ("config.toml", "rounds.csv"))


def whole(folder: Path) -> Path:
    """Return the directory of the run whose best round is in a folder, or else the folder."""
    return folder.parent if folder.name == BEST and not (folder / ROUNDS).exists() else folder


def has_finished(run: Path) -> bool:
    """Tell whether a folder has a finished run."""
    with suppress(RunError):
        return is_final(summary(run))
    return False


def evaluation(run: Path, number: int) -> Path:
    """Return the table of clients of a later evaluation of the run; numbers start at 1."""
    return run / f"{_EVALUATION}{number}.csv"


def line_about(evaluation: Path) -> dict[str, str]:
    """Return the line of evaluations.csv about an evaluation; raises `RunError` if it has none."""
    number, about = evaluation.stem.removeprefix(_EVALUATION), evaluation.with_name(EVALUATIONS)
    for line in reversed(lines(about)):  # the number of a deleted table is given again
        if line.get("evaluation") == number:
            return line
    raise RunError(f"{evaluation}: {EVALUATIONS} next to it has no evaluation {number}")


def configure(folder: Path, flat_config: Mapping[str, Scalar]) -> None:
    """Write config.toml, which repeats a run, and resume.toml, which resumes it.

    Before, the summary of the run that is resumed is deleted. Raises `RunError`.
    """
    repeats = to_toml({**flat_config, "run-name": "", "resume": ""})
    resumes = to_toml({**flat_config, "run-name": "", "resume": str(folder)}, "go on with")
    with writing(folder / SUMMARY):
        (folder / SUMMARY).unlink(missing_ok=True)
    write_whole(folder / "config.toml", repeats.encode(), durable=True)
    write_whole(folder / "resume.toml", resumes.encode(), durable=True)


def write_names(folder: Path, names: Sequence[str], classes: Sequence[str] = ()) -> None:
    """Write what the data call clients 0, 1, ... and classes, if they do; raises `RunError`."""
    for file, what, named in zip(NAMED, ("client", "class"), (names, classes), strict=True):
        if named:
            text = csv_text([(what, "name"), *enumerate(named)])
            write_whole(folder / file, text.encode(), durable=True)


def names(run: Path, file: str = NAMES) -> tuple[str, ...]:
    """Return what the data call clients (or classes) 0, 1, ..., if they do; raises `RunError`."""
    path = run / file
    return tuple(line["name"] for line in lines(path)) if path.exists() else ()


def client_of(run: Path, called: str) -> int:
    """Return the client that a number, or a name in names.csv, stands for; raises `RunError`.

    What is a name is taken for the name, and 007 is no number where clients have names.
    """
    known, called = names(run), composed(called)
    if called in known:
        return known.index(called)
    is_number = re.fullmatch(r"-?[0-9]{1,18}", called)
    if is_number and (not known or called == str(int(called))):
        return int(called)
    if not known:
        raise RunError(f"--client {called}: must be a number; the data of this run name no clients")
    alike = closest(called, known) or known[:3]
    raise RunError(
        f"--client {called}: must be a number or a name in {run / NAMES}, such as"
        f" {', '.join(alike)}"
    )


def model_bytes(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Pack arrays as safetensors; the same arrays give the same bytes."""
    # Without metadata, which is written in random order; without strides, which are ignored.
    return safetensors.numpy.save({k: np.asarray(arrays[k], order="C") for k in sorted(arrays)})


def _add(file: FileIO, rows: Rows) -> None:
    # backslashreplace: an error's text can contain a file name that is not UTF-8.
    text = memoryview(csv_text(rows).encode("utf-8", errors="backslashreplace"))
    while text:  # a nearly full disk accepts a part and refuses the rest
        text = text[file.write(text) :]


def _candidates(runs_dir: Path, run_name: str, what: str) -> Iterable[Path]:
    if run_name:
        return [runs_dir / run_name]
    first = runs_dir / f"{what}-{time.strftime('%Y%m%d-%H%M%S')}"
    return [first, *(first.with_name(f"{first.name}-{number}") for number in range(2, 1000))]
