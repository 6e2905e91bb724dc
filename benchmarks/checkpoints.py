"""What checkpoints cost: seconds per round with one after every round, and with none.

    python -m benchmarks.checkpoints --data-root ~/fedapps-data                 # lenet5, CIFAR-10
    python -m benchmarks.checkpoints --data-root ~/fedapps-data --setting mobilenet
    python -m benchmarks.checkpoints --data-root ~/fedapps-data --folder /mnt/disk

Runs of both kinds alternate, in one process on the serial engine, and medians over all rounds but
the first of each run are compared. A round's seconds are those between the ends of two rounds, so
that what a checkpoint takes counts. What a client keeps is forced to disk in both kinds of run.
Rounds differ by more than a checkpoint takes, so its own seconds are measured as well.
"""

import argparse
import itertools
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from fedapps.core import config, log
from fedapps.engine.recovery import Recovery
from fedapps.serial import run_serial

COMMON = 'evaluate-every=0 evaluate-clients=1 score-last=false threads=1 device="cpu"'
SETTINGS = {
    "lenet5": (
        "experiments/configs/fedcmd-cifar10.toml",
        'strategy="fedper" num-rounds=8',
    ),
    "mobilenet": (
        "experiments/configs/fedbabu-cifar100.toml",
        'strategy="fedper" model="mobilenet" num-clients=100 local-epochs=1 num-rounds=4',
    ),
}


def seconds_of_rounds(options: list[str]) -> tuple[list[float], list[float]]:
    """Run and return the seconds of each round but the first, and of what its end takes."""
    ends: list[float] = []
    taken: list[float] = []
    after_round = Recovery.after_round

    def timed(self: Recovery, *arguments: Any) -> None:
        began = time.perf_counter()
        try:
            after_round(self, *arguments)
        finally:
            ends.append(time.perf_counter())
            taken.append(ends[-1] - began)

    Recovery.after_round = timed  # type: ignore[method-assign,assignment]
    try:
        run_serial(config.parse(options), plots=False)
    finally:
        Recovery.after_round = after_round  # type: ignore[method-assign,assignment]
    return [end - begin for begin, end in itertools.pairwise(ends)], taken[1:]


def main() -> None:
    """Print medians and their ratio."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-root", default="~/fedapps-data")
    parser.add_argument("--setting", choices=SETTINGS, default="lenet5")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", help="where runs are written [the folder for temporary files]")
    options = parser.parse_args()
    log.set_level("error")
    file, changes = SETTINGS[options.setting]
    seconds: dict[int, list[float]] = {0: [], 1: []}
    own: dict[int, list[float]] = {0: [], 1: []}
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for repeat in range(options.repeats):
            for every in (0, 1) if repeat % 2 else (1, 0):
                places = f'data-root="{options.data_root}" runs-dir="{folder}"'
                words = [file, COMMON, changes, places, f"checkpoint-every={every}"]
                rounds, taken = seconds_of_rounds(words)
                seconds[every] += rounds
                own[every] += taken
        size = max(path.stat().st_size for path in Path(folder).rglob("*.fedapps"))
    without, with_ = (statistics.median(seconds[every]) for every in (0, 1))
    print(f"{options.setting}: {len(seconds[0])} rounds each, a checkpoint has {size / 1e6:.2f} MB")
    print(f"median seconds per round: {without:.3f} without, {with_:.3f} with, ", end="")
    print(f"ratio {with_ / without:.4f}")
    itself = statistics.median(own[1]) - statistics.median(own[0])
    print(
        f"the checkpoint itself: {1e3 * itself:.1f} ms, {100 * itself / without:.2f} % of a round"
    )


if __name__ == "__main__":
    main()
