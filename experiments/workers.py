"""Processes that run one run-config after another on the serial engine, all output in a file."""

import os
import sys
import threading
import traceback
from collections.abc import Mapping
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from fedapps.core.errors import RunError
from fedapps.core.schema import Scalar

SPAWN = get_context("spawn")  # torch and gRPC have threads, which a fork would lose


class Worker:
    """A process that is started when it is first needed and again after it has died."""

    def __init__(self) -> None:
        self.process: BaseProcess | None = None
        self.pipe: Connection | None = None

    def run(self, flat: Mapping[str, Scalar], log: Path) -> Path:
        """Run a run-config there; return its run directory. Raises `RunError`."""
        if self.process is None or not self.process.is_alive() or self.pipe is None:
            self.pipe, theirs = SPAWN.Pipe()
            self.process = SPAWN.Process(target=_serve, args=(theirs,), daemon=True)
            self.process.start()
            theirs.close()
        try:
            self.pipe.send((dict(flat), log))
            error, folder = self.pipe.recv()
        except (EOFError, OSError) as died:
            self.process.join()
            code = self.process.exitcode
            self.process = None
            raise RunError(f"the worker died (exit {code}, memory?); see {log}") from died
        if error:
            raise RunError(f"{error}; see {log}")
        return Path(folder)

    def stop(self) -> None:
        """End the process, also in the middle of a run."""
        if self.process is not None:
            self.process.terminate()
            self.process.join()
            self.process = None


def _serve(pipe: Connection) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    while True:
        try:
            flat, log = pipe.recv()
        except EOFError:
            return
        pipe.send(_run(flat, log))


def _end_with_parent() -> None:
    if (parent := parent_process()) is not None:
        parent.join()
        os._exit(1)  # a run that nobody would collect


def _run(flat: dict[str, Scalar], log: Path) -> tuple[str, str]:
    """Return (error, run directory), one of them empty; what is printed goes to the file `log`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        try:
            from fedapps.serial import run_serial  # takes seconds, and only a worker needs it

            return "", str(run_serial(flat, keep_going=False, plots=False))
        except RunError as error:
            return str(error), ""
        except BaseException as error:
            traceback.print_exc()
            return f"{type(error).__name__}: {error}", ""
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
