"""Run cells of tables side by side, each once, and show how long the rest will take."""

import queue
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import wait
from dataclasses import dataclass, field, replace
from pathlib import Path

from experiments.papers import readings
from experiments.papers.table import Job
from experiments.run import rescoring
from experiments.run.collect import collect
from experiments.run.estimate import Estimate
from experiments.run.screen import Screen
from experiments.run.store import Run, Store, diverged, interrupted
from fedapps.compare.workers import Worker, crew
from fedapps.core import config
from fedapps.core.errors import DIVERGED, RunError
from fedapps.report.units import clock


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


REFRESH = 2.0  # seconds between two updates of the progress
RETRY = 1.0  # seconds before a training that another process holds is tried again
SPOILED = (DIVERGED, "(max-value)")  # in an error: numbers are not finite any more, or too large


@dataclass
class Runner:
    """Runs jobs in `jobs` processes; `run` returns the names of the failed ones.

    Each process has a thread that waits for it. These threads share the fields below with the one
    that shows the progress. They only add, remove or replace single values, which Python does at
    once.
    """

    store: Store
    runs_dir: Path
    data_root: str
    jobs: int = 1
    reads: set[str] = field(default_factory=set)
    estimated: dict[Job, float | None] = field(default_factory=dict, init=False)
    estimated_from: list[Run] | None = field(default=None, init=False)

    def run(self, jobs: Sequence[Job]) -> list[str]:
        """Run all jobs that no process has done or is doing; a failed one stops no other."""
        self.failed: list[str] = []
        self.stopped = False
        self.active: dict[int, tuple[Job, Path, float]] = {}
        self.busy: set[int] = set()  # the workers that hold a group
        self.held: set[Group] = set()  # the groups that another process has held
        todo: queue.SimpleQueue[Group] = queue.SimpleQueue()
        self.left: dict[Job, None] = {}  # the jobs that will train
        open_groups = self.open_groups(jobs)
        for group in open_groups:
            todo.put(group)
            if group.trains:
                self.left[group.trains] = None
        done = len(jobs) - sum(len(group.jobs) for group in open_groups)
        self.estimated_from = None
        with Screen(len(jobs), done) as screen, crew(self.jobs) as submit:
            self.screen = screen
            try:
                working = [submit(self._work, todo, number) for number in range(self.jobs)]
                while wait(working, REFRESH).not_done:
                    screen.refresh(self.active, self.remaining)
                for each in working:
                    each.result()  # what it could not even report, such as a full disk
            finally:
                self.stopped = True  # from here on, it is no failure if a process ends
        return self.failed

    def open_groups(self, jobs: Iterable[Job]) -> list[Group]:
        """Return the jobs that are not done yet, grouped by their training."""
        undone = [job for job in jobs if self.store.find(job.cell, job.seed) is None]
        return [replace(group, base=self._base(group)) for group in groups(undone)]

    def _base(self, group: Group) -> Path | None:
        return group.base or rescoring.model(group.training, self.store.runs(), self.runs_dir)

    def remaining(self) -> float | None:
        """Return the seconds that the rest will take; None if no similar run is known."""
        seconds = self._estimates()
        known = [value for value in seconds.values() if value is not None]
        if not known and seconds:
            return None
        now = time.monotonic()
        spent = {job: now - start for job, _, start in [*self.active.values()]}
        rest = [
            max((sum(known) / len(known) if value is None else value) - spent.get(job, 0.0), 0.0)
            for job, value in seconds.items()
        ]
        return max([sum(rest) / self.jobs, *rest])

    def _estimates(self) -> dict[Job, float | None]:
        """Return the estimate for each job left; they are made anew when the store has new runs."""
        runs = self.store.runs()
        if runs != self.estimated_from:
            estimate, left = Estimate(runs), [*self.left]
            self.estimated = {job: estimate.seconds(job.cell, job.seed) for job in left}
            self.estimated_from = runs
        return {job: value for job, value in self.estimated.items() if job in self.left}

    def _work(self, worker: Worker, todo: "queue.SimpleQueue[Group]", number: int) -> None:
        """Do one group after the other; those that another process holds are tried again last."""
        while not self.stopped:
            try:
                group = todo.get_nowait()
            except queue.Empty:
                return
            if again := group in self.held:
                time.sleep(RETRY)
            try:
                with self.store.claimed(group.training) as free:
                    if free:
                        self.busy.add(number)
                        self._do_all(worker, group, number)
                    elif again and not self.busy:
                        self._give_up(group.jobs, "is running in another process")
                    else:
                        self.held.add(group)
                        todo.put(group)
            except Exception as error:
                self._give_up(group.jobs, str(error), failed=True)
            finally:
                self.busy.discard(number)

    def _do_all(self, worker: Worker, group: Group, number: int) -> None:
        """Do the jobs of a group; another process can have trained since the runner began."""
        base = self._base(group)
        for job in group.jobs:
            if self.stopped:
                return
            try:
                if self.store.find(job.cell, job.seed) is None:
                    base = self._do(worker, job, number, base) or base
                else:
                    self.screen.say(f"{job.name}: has been done in the meantime")
                self._end(job)
            except Exception as error:
                self._give_up([job], str(error), failed=True)
            finally:
                self.active.pop(number, None)

    def _give_up(self, jobs: Iterable[Job], why: str, failed: bool = False) -> None:
        for job in jobs if not self.stopped else ():
            if failed:
                self.failed.append(job.name)
            self.screen.say(f"{'error: ' if failed else ''}{job.name}: {why}")
            self._end(job)

    def _end(self, job: Job) -> None:
        self.left.pop(job, None)
        self.screen.advance()

    def _do(self, worker: Worker, job: Job, number: int, base: Path | None) -> Path | None:
        started = time.strftime("%Y%m%d-%H%M%S")
        name = f"{job.cell.table.name}-{job.cell.name}-s{job.seed}-{started}"
        places = {"runs-dir": str(self.runs_dir), "data-root": self.data_root}
        flat = job.cell.config(job.seed) | places
        begun = interrupted(flat)
        folder, start = begun or self.runs_dir / name, time.monotonic()
        flat |= {"resume": str(begun)} if begun else {"run-name": name}
        self.active[number] = (job, folder, start)
        self.screen.started(number, job)
        log = self.runs_dir / f"{name}.log"
        trained: Path | None = None
        try:
            if base and not begun and rescoring.can_be_scored_again(base, flat):
                clients = worker.call(log, rescoring.score, base, flat)
                run = rescoring.rescored(job.cell, job.seed, base, clients)
            else:
                at_once = min(self.jobs, len(self.left) or 1)  # it may be no longer listed
                trained = worker.run(flat, log, plots=False, at_once=at_once)
                run = collect(job.cell, job.seed, trained, self.reads)
        except RunError as error:
            if not any(sign in str(error) for sign in SPOILED):
                raise
            run = diverged(job.cell, job.seed, f"{error}".partition("; see ")[0])
        self.store.save(job.cell, run)
        self._tell(job, run, time.monotonic() - start)
        return trained

    def _tell(self, job: Job, run: Run, seconds: float) -> None:
        """Print the result and how long the rest will take."""
        figure = run.figures.get(job.cell.row.reads)
        shown = run.note if figure is None else f"{100 * figure:.2f} %"
        self.left.pop(job, None)
        left = self.remaining()
        rest = "" if left is None else f", left {clock(left)}"
        self.screen.say(f"{job.name}: {shown} in {clock(seconds)}{rest}")
