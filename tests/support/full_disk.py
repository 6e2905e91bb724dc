"""Runs whose disk is full from some instant on, and that are resumed when it has room again.

    python -m tests.support.full_disk FOLDER SHARE METHOD...

One run goes through; others find the disk full at every SHARE-th write: a file below their
directory that is opened to be written, or gets another name. Such a run must end with one line that
says so, and when it is resumed be as the one that went through. What is printed is a line of JSON
for each method, with what was said at each instant. It is a process of its own because it forks.
"""

import errno
import json
import os
import sys
from pathlib import Path

from fedapps.core import config, log
from fedapps.core.errors import RunError
from fedapps.report.report import Report
from fedapps.serial import run_serial
from tests.support.killed import BASE, OWN, data, differences, in_child

CHANGES = ("os.rename", "os.mkdir", "os.truncate", "os.link")
WRITES = os.O_WRONLY | os.O_RDWR


def run_until_full(options: list[str], watched: Path, full_at: int) -> str:
    """Run in a forked process; return its error, or how many writes it came past if it had none.

    From the write `full_at` on, counted from 1, each fails; 0: none does. What is open already, as
    log.txt, stays writable.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child:
        os.close(writing)
        with os.fdopen(reading) as pipe:
            said = pipe.read()
        os.waitpid(child, 0)
        return said
    try:
        count = fill(watched, full_at)
        run_serial(config.parse(options))
        said = str(count[0])
    except RunError as error:
        said = f"error: {error}"
    except BaseException as error:
        said = f"{type(error).__name__}: {error}"
    os.write(writing, said.encode())
    os._exit(0)


def fill(watched: Path, full_at: int) -> list[int]:
    """Count writes below a folder; from one on each fails as on a full disk."""
    count = [0]

    def hook(event: str, arguments: tuple) -> None:
        opens = event == "open" and arguments[2] & WRITES
        if (opens or event in CHANGES) and str(arguments[0]).startswith(str(watched)):
            count[0] += 1
            if 0 < full_at <= count[0]:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    sys.addaudithook(hook)
    return count


def check(folder: Path, method: str, share: int) -> dict[str, object]:
    """Return what was said at each instant, and where the resumed run differs."""
    folders = f'runs-dir="{folder}" dataset="{data(folder)}" strategy="{method}"'
    options = [BASE, folders, OWN.get(method, "")]
    whole = folder / method
    writes = int(run_until_full([*options, f'run-name="{method}"'], whole, 0))
    said, differs = {}, {}
    for at in range(1, writes + 1, share):
        full = folder / f"{method}-full-{at}"
        said[at] = run_until_full([*options, f'run-name="{full.name}"'], full, at)
        if any((full / "checkpoint").glob("round-*")):
            in_child([f'resume="{full}"'], full)
            if found := differences(whole, full):
                differs[at] = found
    return {"writes": writes, "said": said, "differs": differs}


if __name__ == "__main__":
    Report._plot = lambda report: None  # pictures and pages take longer than a tiny run
    Report._draw_page = lambda report, left=None: None
    sys.stdout, out = open(os.devnull, "w"), sys.stdout  # noqa: SIM115 (until the end)
    log.set_level("error")
    where, step, *methods = sys.argv[1:]
    for name in methods:
        found = check(Path(where), name, int(step))
        print(json.dumps({"method": name} | found), file=out, flush=True)
