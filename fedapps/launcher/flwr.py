"""Call Flower's command `flwr`: many times in one process, which loads Flower once."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedapps.core.errors import RunError
from fedapps.core.flower import bin_dir
from fedapps.launcher.outcome import answer_of

# Seconds that a SuperLink has to start, before `flwr run` kills it. Flower's 15 are too few on a
# busy machine.
PATIENCE = 90.0
_END = "\x1e"  # ASCII's end of a record, which no line of `flwr` contains
# Runs a program, each time with the words of another line of its input. The program itself gets no
# input: nobody is there to answer its questions.
_AGAIN = """
import json, os, runpy, sys, traceback
program, end, patience = sys.argv[1:]
try:
    from flwr.cli import constant
except ImportError:  # another Flower: it waits as long as it likes
    pass
else:
    constant.LOCAL_SUPERLINK_STARTUP_TIMEOUT = float(patience)
calls = os.fdopen(os.dup(0))
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
for words in calls:
    sys.argv = [program, *json.loads(words)]
    status = 0
    try:
        runpy.run_path(program, run_name="__main__")
    except SystemExit as left:
        if isinstance(left.code, str):
            print(left.code)
        status = left.code if isinstance(left.code, int) else int(left.code is not None)
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stderr.flush()
    print(end, status, flush=True)
"""


def program(folder: Path | None) -> Path:
    """Return the `flwr` program in a folder of programs; None stands for this interpreter's.

    Raises `RunError` if there is none.
    """
    found = (folder or bin_dir()) / "flwr"
    if not found.exists():
        raise RunError(f"{found.parent} has no flwr program; install this project there")
    return found


class Flwr:
    """`flwr` with an environment, for one call after the other; a context manager.

    Most of the second that a call takes is to load Flower, so all calls share a process, which the
    first one starts in the folder `cwd`, with the Python of the environment whose programs are in
    `folder` (None: this one), or else `python`. It is in a session of its own and does not get
    Ctrl-C. `flwr run` leaves modules of its app loaded there, so one process runs one app only.
    Raises `RunError` if there is no such program or Python.
    """

    def __init__(
        self, env: Mapping[str, str], folder: Path | None = None, cwd: Path | None = None,
        python: str = "",
    ) -> None:  # fmt: skip
        self.env, self.cwd, self.program = env, cwd, program(folder)
        beside = str(folder / "python") if folder else sys.executable
        found = shutil.which(beside) or shutil.which(python)
        if found is None:
            raise RunError(f"{folder} has no python for its flwr; install this project there")
        self.python = found
        self.status = 0  # of the last call, as of a process
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> "Flwr":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def lines(self, *words: str) -> Iterator[str]:
        """Call `flwr` and yield what it prints, line by line, errors among the rest.

        Who stops before the last line ends the process.
        """
        process = self._process or self._start()
        assert process.stdin is not None and process.stdout is not None
        self.status, ended = 1, False
        try:
            process.stdin.write(json.dumps(words) + "\n")
            process.stdin.flush()
            for raw in process.stdout:
                line, mark, status = raw.rstrip("\n").partition(_END)
                if line or not mark:
                    yield line
                if mark:
                    self.status, ended = int(status), True
                    return
        except BrokenPipeError:
            pass  # the process is gone
        finally:
            if not ended:
                self.close()

    def answer(self, *words: str) -> dict[str, Any]:
        """Call `flwr` with `--format json`; raises `RunError` if the answer is an error or none."""
        return answer_of("\n".join(self.lines(*words, "--format", "json")))

    def close(self) -> None:
        """End the process; another call starts a new one."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()  # it only waits for another call, or nobody listens to it
            process.communicate()

    def _start(self) -> "subprocess.Popen[str]":
        # -u: lines come when they are printed; -P: no modules of the folder in which a user works
        self._process = subprocess.Popen(
            [self.python, "-uP", "-c", _AGAIN, str(self.program), _END, str(PATIENCE)],
            env=self.env, cwd=self.cwd, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True,
        )  # fmt: skip
        return self._process
