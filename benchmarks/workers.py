"""Seconds per round of FedAvg in one process and with workers, beside bare processes and Ray.

    python -m benchmarks.workers                 # 10 clients a round of 50 samples, and of 5
    python -m benchmarks.workers --workers 4 --repeats 5 --ray 0

Random images of CIFAR's shape, 100 clients, 1 epoch, batches of 10, the model cnn. All take turns,
as often as `--repeats` says, and medians are compared. The start is what a whole command takes
longer than its rounds. The floor is that of `benchmarks.engine`: two bare PyTorch processes.
"""

import csv
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.common import ROOT, given, timed
from benchmarks.engine import engine, floor
from fedapps import launch
from fedapps.core import config

CLIENTS = 100


def images(path: Path, samples: int) -> Path:
    """Write random images, `samples` for each client."""
    draws, arrays = np.random.default_rng(0), {}
    for part, count in (("train", samples * CLIENTS), ("test", 10 * CLIENTS)):
        arrays[f"{part}_images"] = draws.integers(0, 256, (count, 32, 32, 3), np.uint8)
        arrays[f"{part}_labels"] = np.arange(count) % 10
    np.savez(path, **arrays)
    return path


def serial(options: list[str], workers: int, runs: Path) -> tuple[list[float], float]:
    """Return the seconds of each round of a command with workers, and those of its start."""
    with tempfile.TemporaryDirectory(dir=runs) as folder:
        words = ["--workers", f"{workers}", "-c", f'runs-dir="{folder}" run-name="bench"']
        command = [sys.executable, "-m", "fedapps.serial", *words]
        command += [word for option in options for word in ("-c", option)]
        silent = {"check": True, "stdout": subprocess.DEVNULL}
        whole, _ = timed(subprocess.run, command, cwd=ROOT, **silent)
        with (Path(folder) / "bench" / "rounds.csv").open() as file:
            rounds = [float(row["seconds"]) for row in csv.DictReader(file)]
    return rounds, whole - sum(rounds)


def main() -> None:
    """Measure and print a table for each number of samples."""
    given_ = given(__doc__, workers=2, rounds=12, repeats=3, ray=1)
    with tempfile.TemporaryDirectory() as folder:
        for samples in (50, 5):
            data = images(Path(folder) / f"{samples}.npz", samples)
            options = [
                f'dataset="{data}" partitioner="iid" num-clients={CLIENTS} fraction-train=0.1 '
                f'local-epochs=1 batch-size=10 model="cnn" strategy="fedavg" device="cpu" '
                f"num-rounds={given_.rounds} evaluate-every=0 evaluate-clients=1 finetune-epochs=0 "
                "score-last=false"
            ]
            kinds = ["1 process", f"{given_.workers} workers", "bare", *["Ray"] * bool(given_.ray)]
            rounds: dict[str, list[float]] = {kind: [] for kind in kinds}
            starts: dict[str, list[float]] = {kind: [] for kind in kinds[:2]}
            try:
                for _ in range(given_.repeats):
                    for kind, count in zip(starts, (1, given_.workers), strict=True):
                        seconds, start = serial(options, count, Path(folder))
                        rounds[kind] += seconds[1:]
                        starts[kind].append(start)
                    rounds["bare"] += floor(config.read(config.parse(options)))[1:]
                    if given_.ray:
                        rounds["Ray"] += engine(options, Path(folder))[0][1:]
            finally:
                launch.stop(Path(folder))
            tell(samples, rounds, starts)


def tell(samples: int, rounds: dict[str, list[float]], starts: dict[str, list[float]]) -> None:
    """Print the medians, and how many times as fast as one process each is."""
    one = median(rounds["1 process"])
    print(f"{samples} samples for each client")
    for kind, seconds in rounds.items():
        start = f", start {median(starts[kind]):.2f} s" if kind in starts else ""
        middle = median(seconds)
        print(f"  {kind:12} {middle:7.3f} s per round, {one / middle:5.2f} times as fast{start}")


if __name__ == "__main__":
    main()
