"""What do clients cost that take no part? A run with 10 of N clients a round, by N.

    python -m benchmarks.scale                          # 1,000, 100,000 and 1,000,000 clients
    python -m benchmarks.scale --clients 1000,10000 --sampled 100 --strategy fedavg

Each N has a process of its own, on the serial engine: a small model, four samples a client, a
checkpoint after every round and an evaluation of as many clients as train. `start` are the seconds
until the first round begins, with the imports; `round` is the median of all but the first; `end`
are the seconds after the last one, with plots and page. `data` is the size of the data set's file;
`peak` is the largest resident memory of the process. `run` is the run directory, which has a state
for each client that has taken part.
"""

import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil

from benchmarks.common import given, serial_rounds, write_images
from fedapps.report.report import Report

HEADS = ("clients", "data MB", "start s", "first s", "round s", "end s", "peak MB", "run MB")


def measured(clients: int, data: Path, options: list[str], sampled: int) -> list[float]:
    """Run in this process; return the values of `HEADS`."""
    ends: list[float] = []

    def look(took: float, round_: int, report: Report) -> None:
        ends.append(time.time())
        seconds.append(report.rows[-1].seconds)
        folders.append(report.folder)

    seconds: list[float] = []
    folders: list[Path] = []
    began = psutil.Process().create_time()
    size = f"num-clients={clients} fraction-train={sampled / clients!r} evaluate-clients={sampled}"
    serial_rounds([*options, f'{size} dataset="{data}"'], look, plots=True)
    done = time.time()
    rounds = np.diff(ends)
    start = ends[0] - seconds[0] - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    run = sum(path.stat().st_size for path in folders[0].rglob("*") if path.is_file()) / 1e6
    size_of_data = data.stat().st_size / 1e6
    first, later = seconds[0], statistics.median(rounds)
    return [clients, size_of_data, start, first, later, done - ends[-1], peak, run]


def main() -> None:
    """Print a line for each number of clients."""
    options = given(
        __doc__, clients="1000,100000,1000000", sampled=10, rounds=20, strategy="fedper", child=""
    )
    config = [
        f'strategy="{options.strategy}" num-rounds={options.rounds} partitioner="iid" threads=1',
        'local-epochs=1 evaluate-every=1 device="cpu"',
    ]
    if options.child:
        folder = Path(options.child)
        config.append(f'runs-dir="{folder}"')
        values = measured(int(options.clients), folder / "tiny.npz", config, options.sampled)
        print(json.dumps(values))
        return
    print("".join(head.rjust(12) for head in HEADS))
    for clients in options.clients.split(","):
        with tempfile.TemporaryDirectory() as name:
            labels = np.random.default_rng(1).integers(0, 4, 4 * int(clients))
            write_images(Path(name) / "tiny.npz", labels, 400)
            again = [sys.executable, "-m", "benchmarks.scale", *sys.argv[1:]]
            command = [*again, "--clients", clients, "--child", name]
            result = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        values = json.loads(result.stdout.splitlines()[-1])
        print("".join(f"{value:12.3f}" if value % 1 else f"{value:12.0f}" for value in values))


if __name__ == "__main__":
    main()
