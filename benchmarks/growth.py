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

import tempfile
import time
from pathlib import Path

import numpy as np
import psutil

from benchmarks.common import given, serial_rounds, write_images
from fedapps.report.report import Report

SPAN = 50  # rounds
NAMES = ("CPU seconds", "memory MB", "open files", "checkpoint kB", "tables kB", "states kB")


def kilobytes(folder: Path, pattern: str) -> float:
    """Return the size of all files of a pattern."""
    return sum(path.stat().st_size for path in folder.glob(pattern)) / 1e3


def measured(options: list[str]) -> list[tuple[float, ...]]:
    """Run and return `NAMES` for each round."""
    rows: list[tuple[float, ...]] = []
    process, began = psutil.Process(), time.process_time()

    def look(took: float, round_: int, report: Report) -> None:
        nonlocal began
        seconds, run = time.process_time() - began, report.folder
        there = (process.memory_info().rss / 1e6, process.num_fds())
        sizes = (kilobytes(run, "checkpoint/*"), kilobytes(run, "*.csv"))
        states = kilobytes(run, "clients/*/*") if round_ % SPAN == 0 else 0
        rows.append((seconds, *there, *sizes, states))
        began = time.process_time()

    serial_rounds(options, look)
    return rows


def main() -> None:
    """Print a line for every 50 rounds, and the growth after the first 50."""
    options = given(__doc__, clients=10_000, rounds=1000, strategy="fedper")
    with tempfile.TemporaryDirectory() as folder:
        labels = np.random.default_rng(1).integers(0, 4, 4 * options.clients)
        path = write_images(Path(folder) / "tiny.npz", labels, 400)
        rows = measured(
            [
                f'dataset="{path}" runs-dir="{folder}" strategy="{options.strategy}"',
                f"num-clients={options.clients} num-rounds={options.rounds} fraction-train=0.002",
                'partitioner="iid" local-epochs=1 evaluate-every=1 evaluate-clients=20 threads=1',
                "cache-limit=0",  # or samples of clients that are new fill it, up to this limit
            ]
        )
    print("rounds".ljust(12) + "".join(name.rjust(15) for name in NAMES))
    spans = [np.array(rows[at : at + SPAN]) for at in range(0, len(rows), SPAN)]
    medians = [[*np.median(span, axis=0)[:5], span[-1, 5]] for span in spans]
    for number, values in enumerate(medians):
        name = f"{number * SPAN + 1}-{number * SPAN + len(spans[number])}"
        print(name.ljust(12) + "".join(f"{value:15.3f}" for value in values))
    for name, start in (("from 51", 1), ("second half", len(medians) // 2)):
        growth = [last / first - 1 for first, last in zip(medians[start], medians[-1], strict=True)]
        print(name.ljust(12) + "".join(f"{100 * value:14.1f}%" for value in growth[:4]))


if __name__ == "__main__":
    main()
