"""What checkpoints cost: seconds per round with one after every round, and with none.

    python -m benchmarks.checkpoints --data-root ~/fedapps-data                 # lenet5, CIFAR-10
    python -m benchmarks.checkpoints --data-root ~/fedapps-data --setting mobilenet
    python -m benchmarks.checkpoints --data-root ~/fedapps-data --folder /mnt/disk

Runs of both kinds alternate, in one process on the serial engine, and medians over all rounds but
the first of each run are compared. A round's seconds are those between the ends of two rounds, so
that what a checkpoint takes counts. What a client keeps is forced to disk in both kinds of run.
Rounds differ by more than a checkpoint takes, so its own seconds are measured as well.
"""

import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median

from benchmarks.common import DATA, given, serial_rounds, setting
from fedapps.report.report import Report

COMMON = 'evaluate-every=0 evaluate-clients=1 score-last=false threads=1 device="cpu"'
SETTINGS = {
    "lenet5": ("fedcmd-cifar10", "num-rounds=8"),
    "mobilenet": (
        "fedbabu-cifar100",
        'model="mobilenet" num-clients=100 local-epochs=1 num-rounds=4',
    ),
}


def main() -> None:
    """Print medians and their ratio."""
    options = given(__doc__, data_root=DATA, setting="lenet5", repeats=5, folder="")
    name, changes = SETTINGS[options.setting]
    seconds: dict[int, list[float]] = {0: [], 1: []}
    own: dict[int, list[float]] = {0: [], 1: []}
    with tempfile.TemporaryDirectory(dir=options.folder or None) as folder:
        for repeat in range(options.repeats):
            for every in (0, 1) if repeat % 2 else (1, 0):
                ends: list[float] = []
                taken: list[float] = []

                def look(took: float, round_: int, report: Report) -> None:
                    ends.append(time.perf_counter())  # noqa: B023, called in this turn only
                    taken.append(took)  # noqa: B023

                places = f'strategy="fedper" data-root="{options.data_root}" runs-dir="{folder}"'
                words = [setting(name), COMMON, changes, places, f"checkpoint-every={every}"]
                serial_rounds(words, look)
                seconds[every] += [end - begin for begin, end in pairwise(ends)]
                own[every] += taken[1:]
        size = max(path.stat().st_size for path in Path(folder).rglob("*.fedapps"))
    without, with_ = median(seconds[0]), median(seconds[1])
    itself = median(own[1]) - median(own[0])
    print(f"{options.setting}: {len(seconds[0])} rounds each, a checkpoint has {size / 1e6:.2f} MB")
    print(f"median seconds per round: {without:.3f} without, {with_:.3f} with, ", end="")
    print(f"ratio {with_ / without:.4f}")
    share = f"{100 * itself / without:.2f} % of a round"
    print(f"the checkpoint itself: {1e3 * itself:.1f} ms, {share}")


if __name__ == "__main__":
    main()
