"""Runs that are killed at random instants and resumed: are they as if they had not been killed?

    python -m tests.support.killed FOLDER KILLS METHOD[@KIND]...

For each method, on images (@secure: with secure sums) or on a kind of tests.support.kinds, one run
goes through, and one is killed with SIGKILL, so many times, just before a file operation below its
directory or a training, and resumed each time. What is printed is a line of JSON for each method:
what differs ([]: nothing) and where it was killed. It is a process of its own because it forks,
which a process that has used gRPC or Ray must not.
"""

import csv
import json
import os
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

import fedapps.client_app
import fedapps.server_app  # noqa: F401, once for all forks
from fedapps.core import config, log
from fedapps.report.report import Report
from fedapps.serial import run_serial
from fedapps.training.trainer import Trainer
from tests.support import kinds

BASE = (
    'partitioner="dirichlet" alpha=1.0 num-clients=4 min-samples=4 model="lenet5" num-rounds=6 '
    "fraction-train=0.5 local-epochs=1 batch-size=16 evaluate-every=2 finetune-epochs=1 threads=1 "
    'device="cpu"'
)
# Half of the rounds are warm-up, where there is one.
OWN = {
    "pfedme": "pfedme.local-rounds=3",
    "fedcmd": "fedcmd.selection-fraction=0.5",
    "lgfedavg": "lgfedavg.warmup-rounds=3",
    "perfreezeclip": "local-epochs=2",  # frozen in one, not in the other
}
SECURE = " secure-sum=true fraction-train=1.0"
TABLES = ("rounds.csv", "clients.csv", "classes.csv", "events.csv")
FILE_EVENTS = ("open", "os.rename", "os.remove", "os.mkdir", "os.truncate", "os.link")


def data(folder: Path) -> Path:
    """Write 120 random images of 8x8 pixels in 3 classes."""
    draws, path = np.random.default_rng(0), folder / "tiny.npz"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        images, labels = draws.integers(0, 256, (120, 8, 8), np.uint8), draws.integers(0, 3, 120)
        parts = {"train_images": images[:90], "train_labels": labels[:90]}
        np.savez(path, **parts, test_images=images[90:], test_labels=labels[90:])
    return path


def in_child(options: list[str], watched: Path, kill_at: int = 0) -> int:
    """Run in a forked process; return how many instants it came past, 0 if it was killed.

    It is killed before the instant `kill_at`, counted from 1; 0: never.
    """

    def work() -> str:
        count = count_instants(watched, kill_at)
        run_serial(config.parse(options), keep_going=False)
        return str(count[0])

    status, said = forked(work)
    if status == -signal.SIGKILL:
        return 0
    if status:
        raise RuntimeError(said)
    return int(said)


def forked(work: Callable[[], str]) -> tuple[int, str]:
    """Do something in a forked process; return its status, and what it returned or raised."""
    reading, writing = os.pipe()
    child = os.fork()
    if child:
        os.close(writing)
        with os.fdopen(reading) as pipe:
            said = pipe.read()
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), said
    try:
        said, status = work(), 0
    except BaseException as error:
        said, status = f"{type(error).__name__}: {error}", 1
    os.write(writing, said.encode())
    os._exit(status)


def count_instants(watched: Path, kill_at: int) -> list[int]:
    """Count file operations below a folder and trainings; at one of them the process dies."""
    count, train = [0], Trainer.train

    def instant() -> None:
        count[0] += 1
        if count[0] == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def hook(event: str, arguments: tuple) -> None:
        if event in FILE_EVENTS and str(arguments[0]).startswith(str(watched)):
            instant()

    def trained(*arguments, **others):
        instant()
        return train(*arguments, **others)

    sys.addaudithook(hook)
    Trainer.train = trained
    return count


def table(path: Path) -> list[list[str]]:
    """Read a table without its seconds."""
    with path.open(newline="") as file:
        rows = list(csv.reader(file))
    drop = rows[0].index("seconds") if "seconds" in rows[0] else len(rows[0])
    return [row[:drop] + row[drop + 1 :] for row in rows]


def differences(whole: Path, killed: Path) -> list[str]:
    """Name what differs between two run directories."""
    found = [name for name in TABLES if table(whole / name) != table(killed / name)]
    files = {path: path.read_bytes() for path in stored(whole)}
    others = {path: path.read_bytes() for path in stored(killed)}
    left = {str(p.relative_to(whole)): data for p, data in files.items()}
    right = {str(p.relative_to(killed)): data for p, data in others.items()}
    found += sorted(left.keys() ^ right.keys())
    return found + [name for name in left.keys() & right.keys() if left[name] != right[name]]


def stored(run: Path) -> list[Path]:
    """List the files of a run that must have the same bytes, and any that were left behind."""
    paths = [run / "model.safetensors", *(run / "clients").rglob("*"), *run.rglob(".*")]
    return [path for path in paths if path.is_file()]


def check(folder: Path, method: str, kills: int) -> dict[str, object]:
    """Run one method through, and once with kills; return what differs and where it was killed."""
    draws, (name, _, kind) = random.Random(method), method.partition("@")
    samples = kinds.options(folder, kind) if kind in kinds.MODELS else f'dataset="{data(folder)}"'
    samples += SECURE if kind == "secure" else ""
    options = [BASE, samples, f'runs-dir="{folder}" strategy="{name}"', OWN.get(name, "")]
    whole, killed = (folder / (name + kind + end) for end in ("", "-killed"))
    instants = in_child([*options, f'run-name="{whole.name}"'], whole)
    first, resumed = [*options, f'run-name="{killed.name}"'], [f'resume="{killed}"']
    places = []
    while len(places) < kills:
        going = (killed / "checkpoint").is_dir() and any((killed / "checkpoint").glob("round-*"))
        if not going and killed.exists():  # killed before a round was finished: nothing to resume
            killed.rename(folder / f"{killed.name}-{len(places)}")
        places.append(draws.randrange(2, instants))
        if in_child(resumed if going else first, killed, places[-1]):
            break  # it came to its end before that instant
    if not (killed / "checkpoint").is_dir() or not any((killed / "checkpoint").glob("round-*")):
        killed.rename(folder / f"{killed.name}-last")
        in_child(first, killed)
    else:
        in_child(resumed, killed)
    return {"differs": differences(whole, killed), "instants": instants, "killed": places}


def tell(check: Callable[[Path, str, int], dict[str, object]]) -> None:
    """Print what a check found, as JSON, for each method of the command line and nothing else."""
    Report._plot = lambda report: None  # pictures and pages take longer than a tiny run
    Report.draw_page = lambda report, left=None: None
    sys.stdout, out = open(os.devnull, "w"), sys.stdout  # noqa: SIM115 (until the end)
    log.set_level("error")
    folder, number, *methods = sys.argv[1:]
    for method in methods:
        found = {"method": method} | check(Path(folder), method, int(number))
        print(json.dumps(found), file=out, flush=True)


if __name__ == "__main__":
    tell(check)
