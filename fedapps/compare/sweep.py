"""Run a grid of runs, several at a time, each in its own process and folder.

Finished runs are not repeated, and interrupted runs go on from their last checkpoint. So the same
command continues a sweep that was interrupted.
"""

import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from fedapps.compare.grid import Point
from fedapps.compare.progress import Progress
from fedapps.compare.workers import Worker, crew
from fedapps.core import changes, config, log, registry
from fedapps.core.errors import RunError, without_lines
from fedapps.core.files import alone, writing
from fedapps.core.schema import Scalar, literal
from fedapps.core.stopping import stoppable
from fedapps.engine import checkpoint, fingerprints, resume
from fedapps.report import directory
from fedapps.report.about import fingerprints_of
from fedapps.training.workspace import Workspace

LOGS = "logs"  # folder of the output of runs; a finished run has its log in its own folder
LOOK = 0.5  # seconds between updates of the progress


@dataclass
class Sweep:
    """Runs the points of a grid in `folder`, `jobs` at a time; `failed` has the errors.

    With `part` (k, n) it runs the kth of n parts only, on one of n machines. Parts have as many
    points, and as many seeds of a combination, as each other, or one more.
    """

    folder: Path
    points: Sequence[Point]
    jobs: int
    part: tuple[int, int] = (1, 1)
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def mine(self) -> Sequence[Point]:
        """The points of its part."""
        (first, step), points = self.part, self.points
        rest = [frozenset(p.flat.items() - {("seed", p.flat["seed"])}) for p in points]
        number = {combination: n for n, combination in enumerate(dict.fromkeys(rest))}
        places = sorted(range(len(points)), key=lambda place: number[rest[place]])
        return [points[place] for place in sorted(places[first - 1 :: step])]

    @property
    def finished(self) -> list[Path]:
        """The run directories of finished runs, in the order of the points."""
        folders = (self.folder / point.name for point in self.points)
        return [folder for folder in folders if directory.has_finished(folder)]

    def run(self) -> None:
        """Run all points of its part that have not finished.

        Raises `RunError`, before anything is run, if a folder has another run, or a finished one of
        other samples or code, or if another process works there. Raises `KeyboardInterrupt` on
        Ctrl-C, and `Stopped` on other signals, after ending all runs.
        """
        todo = [point for point in self.mine if not self._is_done(point)]
        at_once = min(self.jobs, len(todo))
        progress = Progress(self.folder, todo)
        with self._alone(), stoppable(), progress, crew(at_once) as submit:
            progress.begin(len(self.mine))
            waiting = {submit(self._work, point, at_once): point for point in todo}
            while waiting:
                done, _ = wait(waiting, timeout=LOOK, return_when=FIRST_COMPLETED)
                for future in done:
                    progress.end(waiting.pop(future), future.result())
                progress.look()

    def _alone(self) -> ExitStack:
        """Make and lock the folder of its logs, which parts share; each has its own in it.

        Raises `RunError` if another process has locked them.
        """
        (first, step), logs = self.part, self.folder / LOGS
        own = logs / f"part-{first}-of-{step}" if step > 1 else logs
        with writing(own):
            own.mkdir(parents=True, exist_ok=True)
        told = f"{self.folder}: another sweep works there; wait for it or use another --output"
        with ExitStack() as stack:
            stack.enter_context(alone(own, told))
            if own != logs:
                stack.enter_context(alone(logs, told, shared=True))
            return stack.pop_all()

    def _is_done(self, point: Point) -> bool:
        """Tell whether a run has finished; raises `RunError` if another one is in its folder.

        Runs that have not finished are resumed, which looks for other samples and code by itself.
        """
        folder = self.folder / point.name
        if not folder.exists() or not [*folder.glob("[!.]*")]:  # the run has not begun
            return False
        there = changes.counting(config.defaults() | config.stored(folder))
        here = changes.counting(point.flat)
        for key in {**here, **there}:
            if here.get(key) != there.get(key):
                told = f"{key} is {_told(there, key)} there and {_told(here, key)} here"
                raise RunError(
                    f"{folder} has a run with other settings: {told}; use another --output"
                )
        if finished := directory.has_finished(folder):
            _check_same(folder, point.flat)
        return finished

    def _work(self, worker: Worker, point: Point, at_once: int) -> str:
        """Run a point, one of `at_once`; return why it failed, or "" if it did not."""
        folder, said = self.folder / point.name, self.folder / LOGS / f"{point.name}.txt"
        flat = {**point.flat, "runs-dir": str(self.folder), "run-name": point.name}
        told = "another sweep is making this run; once it is done, start the same command again"
        try:
            said.touch()
            with alone(said, told):
                if directory.has_finished(folder):  # another sweep has made it meanwhile
                    return ""
                if folder.exists() and checkpoint.rounds(folder):
                    flat |= {"resume": str(folder), "run-name": ""}
                elif folder.exists():
                    with resume.alone(folder):
                        pass  # over NFS, a file that is open could not be deleted
                    shutil.rmtree(folder)
                worker.run(flat, said, at_once=at_once)
                said.unlink()
                return ""
        except (RunError, OSError) as error:
            self.failed[point.label] = str(error)
            return str(error)


def _check_same(folder: Path, flat: Mapping[str, Scalar]) -> None:
    """Raise `RunError` if a run would now have other samples, code or initial values.

    If its data are gone, nobody can tell, and a warning says so.
    """
    settings = config.read({**flat, "device": "cpu"})  # this process trains nothing
    try:
        with without_lines(log.logger.name, lambda _: True):  # its warnings are in the run's log
            strategy = registry.strategy_class(settings.strategy)(Workspace(settings))
    except RunError as error:
        log.warning("%s: counts as it is, as samples and code cannot be checked: %s", folder, error)
        return
    if told := fingerprints.told(fingerprints_of(folder), fingerprints.fingerprints(strategy)):
        raise RunError(
            f"{folder}: {told} since this run; put back what was there, or use another --output"
        )


def _told(settings: Mapping[str, Scalar], key: str) -> str:
    return literal(settings[key]) if key in settings else "unknown"
