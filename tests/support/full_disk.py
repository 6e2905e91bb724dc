"""Runs whose disk is full from some instant on, and that are resumed when it has room again.

    python -m tests.support.full_disk FOLDER SHARE METHOD...

One run goes through; others find the disk full at every SHARE-th write: a file below their
directory that is opened to be written, or gets another name. Such a run must end with one line that
says so, and when it is resumed be as the one that went through. What is printed is a line of JSON
for each method, with what was said at each instant. It is a process of its own because it forks.
"""

import errno
import os
import sys
from pathlib import Path

from fedapps.core import config
from fedapps.serial import run_serial
from tests.support.killed import BASE, OWN, data, differences, forked, in_child, tell

CHANGES = ("os.rename", "os.mkdir", "os.truncate", "os.link")
WRITES = os.O_WRONLY | os.O_RDWR


def run_until_full(options: list[str], watched: Path, full_at: int) -> str:
    """Run in a forked process; return its error, or how many writes it came past if it had none.

    From the write `full_at` on, counted from 1, each fails; 0: none does. What is open already, as
    log.txt, stays writable.
    """

    def work() -> str:
        count = fill(watched, full_at)
        run_serial(config.parse(options))
        return str(count[0])

    return forked(work)[1]


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
    tell(check)
