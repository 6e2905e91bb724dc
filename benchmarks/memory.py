"""A training step with and without giving freed memory back to the system (`memory.keep_freed`).

    python -m benchmarks.memory [MODEL ...]

Trains one client of 500 random samples for four epochs, batch size 50, one thread, in processes of
both kinds by turns. Prints medians and page faults a step, and whether the models are equal.
"""

import argparse
import resource
import statistics
import subprocess
import sys
import time

import torch

from benchmarks.common import random_samples, trainer_of
from fedapps.core.memory import keep_freed
from fedapps.training.draw import Draw
from fedapps.training.plan import Stage
from fedapps.training.trainer import digest

CLASSES, SAMPLES, BATCH, EPOCHS, TURNS = 100, 500, 50, 4, 5
STEPS = SAMPLES // BATCH


def measure(name: str) -> None:
    """Print the median milliseconds of a step, its page faults, and a digest of the model."""
    torch.set_num_threads(1)
    trainer, data = trainer_of(name, CLASSES, BATCH), random_samples(SAMPLES, CLASSES)
    stage = Stage(layers=trainer.layout.names, epochs=1, lr=0.01)
    times, faults = [], []
    for epoch in range(EPOCHS):
        before, begin = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, time.perf_counter()
        trainer.train(data, (stage,), Draw(0, "train", epoch, 0))
        times.append((time.perf_counter() - begin) / STEPS)
        faults.append((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / STEPS)
    end = digest(trainer.model, trainer.model.state_dict()).hex()
    print(1000 * statistics.median(times[1:]), statistics.median(faults[1:]), end)


def child(name: str, kind: str) -> tuple[float, float, str]:
    """Return what `measure` prints in a process of its own; `kind` is `keep` or `return`."""
    command = [sys.executable, "-m", "benchmarks.memory", name, "--child", kind]
    line = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return float(line[0]), float(line[1]), line[2]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=["conv4", "lenet5"])
    parser.add_argument("--child", choices=("keep", "return"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        if given.child == "keep":
            keep_freed()
        measure(given.models[0])
        return
    for name in given.models:
        pairs = [(child(name, "return"), child(name, "keep")) for _ in range(TURNS)]
        old, new = ([turn[kind] for turn in pairs] for kind in (0, 1))
        ratio = statistics.median(b[0] / a[0] for a, b in pairs)
        same = {run[2] for pair in pairs for run in pair}
        for label, runs in (("given back", old), ("kept", new)):
            step = statistics.median(run[0] for run in runs)
            faults = statistics.median(run[1] for run in runs)
            print(f"{name:10} {label:10} {step:8.2f} ms a step {faults:8.0f} page faults")
        print(f"{name:10} ratio {ratio:.2f}, {'the same bits' if len(same) == 1 else 'OTHER BITS'}")


if __name__ == "__main__":
    main()
