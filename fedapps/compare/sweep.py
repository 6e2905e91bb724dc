"""A grid of runs, some at a time, each in a process and a folder of its own.

What has finished is not run again, so the same command goes on where one has ended.
"""

import fcntl
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from fedapps.compare.grid import Point
from fedapps.compare.progress import Progress
from fedapps.core import changes, config
from fedapps.core.errors import RunError, one_line
from fedapps.core.files import write_whole
from fedapps.core.schema import Scalar, literal
from fedapps.launcher import processes

LOGS = "logs"  # what runs print, while they run and if they fail
LOOK = 0.5  # seconds between looks at how far runs are


@dataclass
class Sweep:
    """Runs the points of a grid in `folder`, so many at a time; `failed` says why one did not."""

    folder: Path
    points: Sequence[Point]
    jobs: int
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    stopping: bool = False

    @property
    def finished(self) -> list[Path]:
        """The run directories of finished runs, in the order of the points."""
        folders = (self.folder / point.name for point in self.points)
        return [folder for folder in folders if (folder / "summary.json").exists()]

    def run(self) -> None:
        """Run what has not finished.

        Raises `RunError` before anything is run, if a folder has another run or somebody else
        works there, and `KeyboardInterrupt` on Ctrl-C or SIGTERM, after ending all runs.
        """
        todo = [point for point in self.points if not self._has_finished(point)]
        progress = Progress(self.folder, todo, len(self.points))
        with (
            alone(self.folder / LOGS) as lock,
            interrupted(),
            ThreadPoolExecutor(self.jobs) as pool,
        ):
            futures = {pool.submit(self._work, point, lock): point for point in todo}
            progress.begin()
            try:
                self._watch(futures, progress)
            except BaseException:
                self.stopping = True
                pool.shutdown(wait=False, cancel_futures=True)
                processes.end(process.pid for process in list(self.running.values()))
                raise

    def _watch(self, futures: Mapping[Future[str], Point], progress: Progress) -> None:
        waiting = set(futures)
        while waiting:
            done, waiting = wait(waiting, timeout=LOOK, return_when=FIRST_COMPLETED)
            for future in done:
                point, error = futures[future], future.result()
                if error:
                    self.failed[point.label] = error
                progress.end(point, error)
            progress.look()

    def _has_finished(self, point: Point) -> bool:
        """Tell whether a run is done; raises `RunError` if another one is in its folder."""
        folder = self.folder / point.name
        if not folder.exists() or not [*folder.glob("[!.]*")]:  # ended before it had begun
            return False
        there = changes.counting(config.defaults() | config.stored(folder))
        here = changes.counting(point.flat)
        other = [key for key in {**here, **there} if here.get(key) != there.get(key)]
        if other:
            told = f"{other[0]} is {_told(there, other[0])} there and {_told(here, other[0])} here"
            raise RunError(f"{folder} has a run of other settings: {told}; take another --output")
        return (folder / "summary.json").exists()

    def _work(self, point: Point, lock: int) -> str:
        """Run a point, anew if it was ended; return why it failed, or nothing."""
        folder, log = self.folder / point.name, self.folder / LOGS / f"{point.name}.txt"
        if self._is_stopping():
            return "not started"
        if folder.exists():
            shutil.rmtree(folder)
        path = log.with_suffix(".toml")
        flat = {**point.flat, "runs-dir": str(self.folder), "run-name": point.name}
        write_whole(path, config.to_toml(flat).encode())
        command = [sys.executable, "-m", "fedapps.serial", "--run-config", str(path)]
        with log.open("wb") as output:
            # a session of its own: Ctrl-C reaches only this process, which ends it
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                start_new_session=True, pass_fds=[lock],
            )  # fmt: skip
        self.running[point.name] = process
        if self._is_stopping():  # since we looked
            process.terminate()
        status = process.wait()
        del self.running[point.name]
        if status == 0:
            for done in (log, path):
                done.unlink()
            return ""
        return f"{one_line(log.read_text('utf-8', 'replace')).removeprefix('error: ')} ({log})"

    def _is_stopping(self) -> bool:  # which another thread decides
        return self.stopping


@contextmanager
def alone(folder: Path) -> Iterator[int]:
    """Hold a folder for this process and for those that inherit the file, as long as they live.

    Raises `RunError` if somebody else has it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / ".lock").open("w")
    except OSError as error:
        raise RunError(f"cannot write {folder}: {error.strerror or error}") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise RunError(
                f"{folder.parent}: another sweep, or a run that one has left, works there; "
                "wait for its end or take another --output"
            ) from error
        yield file.fileno()


@contextmanager
def interrupted() -> Iterator[None]:
    """Have SIGTERM, and the end of the terminal, do what Ctrl-C does."""

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    numbers = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


def _told(settings: Mapping[str, Scalar], key: str) -> str:
    return literal(settings[key]) if key in settings else "unknown"
