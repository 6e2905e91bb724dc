"""Groups of jobs with the same training, and the check of jobs before any of them runs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.papers import readings
from experiments.papers.table import Job
from experiments.run import rescoring
from fedapps.core import config
from fedapps.core.errors import RunError


@dataclass(frozen=True, eq=False)
class Group:
    """Jobs with the same training, and the directory of a run that has done it, if any."""

    training: str
    jobs: list[Job]
    base: Path | None = None

    @property
    def trains(self) -> Job | None:
        """The job that will train for all; training takes nearly all of the time."""
        return None if self.base else self.jobs[0]


def groups(jobs: Iterable[Job]) -> list[Group]:
    """Group jobs by their training."""
    found: dict[str, list[Job]] = {}
    for job in jobs:
        found.setdefault(rescoring.training(job.cell.config(job.seed)), []).append(job)
    return [Group(training, alike) for training, alike in found.items()]


def check(jobs: Sequence[Job], columns: Sequence[str]) -> None:
    """Raise `RunError` for an invalid config or reading, before anything runs."""
    for job in jobs:
        try:
            config.read(job.cell.config(job.seed))
        except RunError as error:
            raise RunError(f"{job.name}: {error}") from error
        for reading in job.cell.row.readings:
            readings.check(reading.reads, columns)
