"""What `secure-sum` costs: the CPU time of a round with it and without it, in the same process.

    python -m benchmarks.secure_sum
    python -m benchmarks.secure_sum --clients 50 --epochs 5

FedAvg on the handwritten digits; all clients train in each round, one epoch with batches of 10, and
nobody is evaluated. Runs with and without the key take turns; a figure is the median of their
rounds but the first.
"""

import contextlib
import io
import itertools
import tempfile
import time
from statistics import median
from unittest.mock import patch

from benchmarks.common import DATA, given
from fedapps.core import config, log
from fedapps.engine.recovery import Recovery
from fedapps.serial import run_serial

OPTIONS = (
    'strategy="fedavg" dataset="digits" partitioner="iid" fraction-train=1.0 batch-size=10 '
    'finetune-epochs=0 evaluate-every=0 evaluate-clients=1 checkpoint-every=0 device="cpu"'
)


def milliseconds(options: list[str]) -> list[float]:
    """Run; return the CPU time of each round but the first."""
    ends, end = list[float](), Recovery.after_round

    def after_round(*known: object) -> None:
        end(*known)  # type: ignore[arg-type]
        ends.append(1e3 * time.process_time())

    summary = contextlib.redirect_stdout(io.StringIO())
    with summary, patch.object(Recovery, "after_round", after_round):
        run_serial(config.parse(options), plots=False)
    return [later - earlier for earlier, later in itertools.pairwise(ends)]


def main() -> None:
    """Print a table."""
    log.set_level("error")
    chosen = given(__doc__, clients=20, rounds=6, epochs=1, repeats=3, data_root=DATA)
    sizes = f"num-clients={chosen.clients} num-rounds={chosen.rounds} local-epochs={chosen.epochs}"
    print("| model | plain, ms CPU | secure, ms CPU | times |\n|---|---|---|---|")
    for model in ("mlp", "lenet5", "cnn"):
        found: dict[str, list[float]] = {"false": [], "true": []}
        for _ in range(chosen.repeats):
            for key, times in found.items():
                with tempfile.TemporaryDirectory(prefix="fedapps-") as runs:
                    more = f'model="{model}" secure-sum={key} runs-dir="{runs}"'
                    root = f'data-root="{chosen.data_root}"'
                    times += milliseconds([OPTIONS, sizes, more, root])
        plain, secure = (median(times) for times in found.values())
        print(f"| {model} | {plain:.0f} | {secure:.0f} | {secure / plain:.2f} |", flush=True)


if __name__ == "__main__":
    main()
