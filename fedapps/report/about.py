"""File run.json of a run directory: identifies the run, its command and its versions."""

import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import msgspec

from fedapps.core.files import read_json, write_json
from fedapps.data.spec import Pooled
from fedapps.report.directory import BEST
from fedapps.report.summary import versions
from fedapps.tasks import AUTO, CLASSIFICATION, TASKS, Task

FILE = "run.json"
FLOWER = ("flwr", "flower")  # so the names of Flower's programs begin
Fingerprints = dict[str, str]  # short digests by what they are of


class _Known(msgspec.Struct):
    """What run.json of any version says about what was learned."""

    task: str = CLASSIFICATION.name
    metric: str = AUTO
    fingerprints: Fingerprints = {}
    pooled: Pooled | None = None


class About(msgspec.Struct, frozen=True, kw_only=True):
    """The content of run.json, which is written when a run starts and when it is resumed.

    `id` is random. Devices recognize a run by it, because another run can have a directory of the
    same name. The run was resumed after the rounds `resumed`. Its `fingerprints` tell whether data,
    method or model have changed meanwhile. What it has `pooled` its model needs ever after,
    whatever becomes of the data. The `notes` are what it told of its data at the start. The clients
    of a simulation compute on a `processor`, cpu or cuda; "": not known.
    """

    id: str
    started: str  # UTC, ISO 8601
    command: str = ""
    versions: dict[str, str]
    task: str = CLASSIFICATION.name  # what is learned
    metric: str = AUTO  # that leads
    fingerprints: Fingerprints = {}
    pooled: Pooled | None = None
    notes: tuple[str, ...] = ()
    processor: str = ""
    resumed: tuple[int, ...] = ()

    @classmethod
    def new(
        cls,
        task: Task = CLASSIFICATION,
        fingerprints: Fingerprints | None = None,
        pooled: Pooled | None = None,
        notes: tuple[str, ...] = (),
    ) -> "About":
        """Return the content for a run of a task that starts now."""
        return cls(
            id=uuid4().hex,
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            command=command(sys.orig_argv),
            versions=versions(),
            task=task.name,
            metric=task.lead.name,
            fingerprints=fingerprints or {},
            pooled=pooled,
            notes=notes,
        )

    @classmethod
    def read(cls, run: Path) -> "About":
        """Read run.json of a run directory; raises `RunError` if it cannot be read."""
        return read_json(run / FILE, cls, "the run cannot be resumed")

    def again(self, round_: int, pooled: Pooled | None = None) -> "About":
        """Return the content for this run when it is resumed after `round_`.

        Its data are still the same, so what an earlier version did not note as `pooled` is known.
        """
        resumed, pooled = (*self.resumed, round_), self.pooled or pooled
        return msgspec.structs.replace(self, resumed=resumed, versions=versions(), pooled=pooled)

    def write(self, run: Path) -> None:
        """Write run.json, before any client hears of the run; raises `RunError`."""
        write_json(run / FILE, self)


def task_of(run: Path) -> Task:
    """Return the task of a run directory; one that does not name it is a classification.

    Raises `RunError` if this version has no such metric.
    """
    known = _known(run)
    return TASKS.get(known.task, CLASSIFICATION).leading(known.metric)


def fingerprints_of(run: Path) -> Fingerprints:
    """Return the fingerprints of a run directory; those of earlier versions have none."""
    return _known(run).fingerprints


def pooled_of(run: Path) -> Pooled | None:
    """Return what a run has pooled; None if nothing, or if an earlier version wrote the run."""
    return _known(run).pooled


def _known(run: Path) -> _Known:
    """Return what run.json says; earlier versions wrote none into `best/`, but above it."""
    try:
        return msgspec.json.decode((run / FILE).read_bytes(), type=_Known)
    except FileNotFoundError:
        return _known(run.parent) if run.name == BEST else _Known()
    except (OSError, msgspec.DecodeError):
        return _Known()


def command(words: list[str]) -> str:
    """Return the command of this process; of Flower's programs only the name, to hide tokens."""
    names = (Path(word).name for word in words[:3])
    program = next((name for name in names if name.startswith(FLOWER)), "")
    return program or shlex.join([Path(words[0]).name, *words[1:]] if words else [])
