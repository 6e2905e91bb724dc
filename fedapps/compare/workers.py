"""Worker processes that do one serial run after another; their output goes to files."""

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from fedapps.core.errors import RunError
from fedapps.core.schema import Scalar

SPAWN = get_context("spawn")  # not fork, which would lose the threads of torch and gRPC
PATIENCE = 10.0  # seconds that a run has to save its results when it is ended


class Worker:
    """A process that is started when it is first needed, and again if it has died."""

    def __init__(self) -> None:
        self.process: BaseProcess | None = None
        self.pipe: Connection | None = None
        self._lock, self._closed = threading.Lock(), False

    def run(
        self, flat: Mapping[str, Scalar], log: Path, plots: bool = True, at_once: int = 1
    ) -> Path:
        """Run a run-config in the process; return its run directory. Raises `RunError`.

        It is one of `at_once` runs that share the cores of the machine.
        """
        return self.call(log, _run, dict(flat), plots, at_once)

    def call(self, log: Path, work: Callable[..., Path], *arguments: object) -> Path:
        """Call a module's function in the process; return its result. Raises `RunError`."""
        process, pipe = self._begun()
        try:
            pipe.send((log, work, arguments))
            error, path = pipe.recv()
        except (EOFError, OSError) as died:
            process.join()
            self.process = None
            raise RunError(
                f"the worker died (exit {process.exitcode}, out of memory?); see {log}"
            ) from died
        if error:
            raise RunError(f"{error}; see {log}")
        return Path(path)

    def _begun(self) -> tuple[BaseProcess, Connection]:
        """Return the process and its pipe, once they are started; a closed worker starts none."""
        with self._lock:
            if self._closed:
                raise RunError("stopped")
            if self.process is None or not self.process.is_alive() or self.pipe is None:
                self.pipe, theirs = SPAWN.Pipe()
                self.process = SPAWN.Process(
                    target=_serve, args=(theirs, sys.orig_argv), daemon=True
                )
                self.process.start()
                theirs.close()
            return self.process, self.pipe

    def close(self) -> BaseProcess | None:
        """Start no process from now on; return the one that there is, which goes on."""
        with self._lock:
            self._closed = True
            return self.process


@contextmanager
def crew(count: int) -> Iterator[Callable[..., Future[Any]]]:
    """Give submit(work, *arguments), with which one of `count` workers does work(worker, ...).

    At the end, nothing that waits is begun, and all processes are ended.
    """
    own, workers = threading.local(), list[Worker]()

    def begin() -> None:
        own.worker = Worker()
        workers.append(own.worker)

    threads = ThreadPoolExecutor(max(1, count), initializer=begin)
    try:
        yield lambda work, *arguments: threads.submit(lambda: work(own.worker, *arguments))
    finally:
        threads.shutdown(wait=False, cancel_futures=True)
        stop(workers)


def stop(workers: Iterable[Worker]) -> None:
    """End the processes, even in the middle of a run, which then saves the results so far."""
    closed = [worker.close() for worker in workers]
    processes = [process for process in closed if process is not None]
    for process in processes:
        process.terminate()
    for process in processes:
        process.join(PATIENCE)
        process.kill()
        process.join()


def _serve(pipe: Connection, command: list[str]) -> None:
    sys.orig_argv = command  # that run.json tells; its own is one of multiprocessing
    for number in (signal.SIGINT, signal.SIGHUP):  # a terminal's signals are for the parent,
        signal.signal(number, signal.SIG_IGN)  # which then ends this process
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # it reads this when imported
    while True:
        try:
            log, work, arguments = pipe.recv()
        except EOFError:
            return
        pipe.send(_do(log, work, arguments))


def _end_with_parent() -> None:
    if (parent := parent_process()) is not None:
        parent.join()
        os._exit(1)  # nobody would use the results of this run


def _run(flat: dict[str, Scalar], plots: bool, at_once: int) -> Path:
    from fedapps.serial import idle_workers, prepare_forks, run_serial

    prepare_forks(flat, workers := idle_workers(flat, at_once))
    # takes seconds to load, only here needed
    from fedapps.report.about import About
    from fedapps.training.workspace import workspace

    begun = Path(str(flat["resume"])) if flat["resume"] else None
    if begun and flat["device"] == "auto" and About.read(begun).processor == "cpu":
        flat["device"] = "cpu"  # on which it goes on; the next run may take the GPU
    try:
        return run_serial(flat, keep_going=False, plots=plots, workers=workers)
    finally:
        workspace.cache_clear()  # the next run needs the memory


def _do(log: Path, work: Callable[..., Path], arguments: tuple[object, ...]) -> tuple[str, str]:
    """Do a piece of work; return (error, path), one of which is empty.

    All output goes to the file `log`. A run that is told to stop ends the process.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        try:
            return "", str(work(*arguments))
        except RunError as error:
            return str(error), ""
        except Exception as error:
            traceback.print_exc()
            return f"{type(error).__name__}: {error}", ""
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
