"""Does a long run of many clients stay as it began? CPU time, memory, open files, disk by round.

    python -m benchmarks.growth                                   # 10,000 clients, 1,000 rounds
    python -m benchmarks.growth --clients 1000 --rounds 200 --strategy fedavg

A tiny model and two samples a client, on the serial engine with a checkpoint after every round and
an evaluation of 20 clients. Medians of 50 rounds are compared with those of rounds 51 to 100. What
grows with the clients that have taken part (a state and a number each) stops when all of them have:
so there is a line for the second half of the rounds alone. Tables grow by a line for each client
and round, and `clients/` by a state for each client that is new; the bytes of both are printed by
themselves.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from fedapps.core import config, log
from fedapps.engine.recovery import Recovery
from fedapps.serial import run_serial

SPAN = 50  # rounds
NAMES = ("CPU seconds", "memory MB", "open files", "checkpoint kB", "tables kB", "states kB")


def bytes_of(folder: Path, pattern: str) -> int:
    """Return the bytes of all files of a pattern."""
    return sum(path.stat().st_size for path in folder.glob(pattern))


def measured(options: list[str]) -> list[tuple[float, ...]]:
    """Run and return `NAMES` for each round."""
    rows: list[tuple[float, ...]] = []
    after_round, process, began = Recovery.after_round, psutil.Process(), time.process_time()

    def look(self: Recovery, round_: int, strategy: Any, report: Any, score: Any) -> None:
        nonlocal began
        after_round(self, round_, strategy, report, score)
        seconds = time.process_time() - began
        run = report.folder
        sizes = (bytes_of(run, "checkpoint/*"), bytes_of(run, "*.csv"))
        states = bytes_of(run, "clients/*/*") if round_ % SPAN == 0 else 0
        rss = process.memory_info().rss / 1e6
        files = process.num_fds()
        rows.append((seconds, rss, files, *(size / 1e3 for size in (*sizes, states))))
        began = time.process_time()

    Recovery.after_round = look  # type: ignore[method-assign]
    try:
        run_serial(config.parse(options), plots=False)
    finally:
        Recovery.after_round = after_round  # type: ignore[method-assign]
    return rows


def main() -> None:
    """Print a line for every 50 rounds, and the growth after the first 50."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--strategy", default="fedper")
    options = parser.parse_args()
    log.set_level("error")
    with tempfile.TemporaryDirectory() as folder:
        draws = np.random.default_rng(0)
        path, n = Path(folder) / "tiny.npz", 4 * options.clients
        images = draws.integers(0, 256, (n, 8, 8), np.uint8)
        labels = draws.integers(0, 4, n)
        few = slice(0, 400)
        np.savez(path, train_images=images, train_labels=labels, test_images=images[few],
                 test_labels=labels[few])  # fmt: skip
        rows = measured(
            [
                f'dataset="{path}" runs-dir="{folder}" strategy="{options.strategy}"',
                f"num-clients={options.clients} num-rounds={options.rounds} fraction-train=0.002",
                'partitioner="iid" local-epochs=1 evaluate-every=1 evaluate-clients=20 threads=1',
                "cache-limit=0",  # or samples of clients that are new fill it, up to this limit
            ]
        )
    print("rounds".ljust(12) + "".join(name.rjust(15) for name in NAMES))
    spans = [rows[at : at + SPAN] for at in range(0, len(rows), SPAN)]
    medians = [
        [statistics.median(column) for column in [*zip(*span, strict=True)][:5]] + [span[-1][5]]
        for span in spans
    ]
    for number, values in enumerate(medians):
        name = f"{number * SPAN + 1}-{number * SPAN + len(spans[number])}"
        print(name.ljust(12) + "".join(f"{value:15.3f}" for value in values))
    for name, start in (("from 51", 1), ("second half", len(medians) // 2)):
        growth = [last / first - 1 for first, last in zip(medians[start], medians[-1], strict=True)]
        print(name.ljust(12) + "".join(f"{100 * value:14.1f}%" for value in growth[:4]))


if __name__ == "__main__":
    main()
