"""What freezing pays back: FedSeq's first phase against FedBABU, and the price of clipping.

    python -m benchmarks.freezing --data-root ~/fedapps-data

Client time of whole rounds on CIFAR-100 (cnn, 100 clients, Dirichlet 0.1, batch 10), the same
clients for both methods, in this process on one thread; medians over rounds.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from fedapps.core import config, registry
from fedapps.training.clipping import Threshold
from fedapps.training.draw import Draw
from fedapps.training.plan import Clip, Stage
from fedapps.training.workspace import Workspace

ROOT = Path(__file__).parent.parent
ROUNDS = 3


def round_seconds(space: Workspace, method: str, epochs: int, warm: bool) -> float:
    """Return the median seconds of a round of `method` with ten fixed clients.

    `warm` repeats clients whose features are kept from an earlier round already.
    """
    settings = config.read(dict(space.settings.flat) | {"strategy": method, "local-epochs": epochs})
    plan = registry.strategy_class(method)(space, settings).plan(1, 0)
    clients, times = range(10), []
    for round_ in range(ROUNDS + warm):
        keep = "kept" if warm else f"{method}-{epochs}-{round_}"
        begin = time.perf_counter()
        for client in clients:
            draw = Draw(0, "train", round_, client)
            data = space.samples(client, "train")
            space.trainer.train(data, plan.stages, draw, cache_key=(keep, client))
        times.append(time.perf_counter() - begin)
    return statistics.median(times[warm:])


def step_milliseconds(space: Workspace, clip: Clip | None) -> float:
    """Return the time of one SGD step on all layers."""
    stage = Stage(layers=space.layout.names, epochs=1, lr=0.005, clip=clip)
    data, times = space.samples(0, "train"), []
    for round_ in range(7):
        thresholds = {(stage.layers, clip): Threshold(clip, np.random.rand(10_000))} if clip else {}
        begin = time.perf_counter()
        done = space.trainer.train(
            data, (stage,), Draw(0, "train", round_, 0), thresholds=thresholds
        )
        times.append(1000 * (time.perf_counter() - begin) / done.batches)
    return statistics.median(times)


def percentile_milliseconds() -> float:
    """Return the time of one percentile over a full history of 10,000 norms."""
    norms = np.random.default_rng(0).lognormal(size=12_000)
    threshold = Threshold(Clip(percentile=90, max_norm=None, mode="batch", history=10_000), norms)
    begin = time.perf_counter()
    for norm in norms[:2000]:
        threshold.after(norm)
    return 1000 * (time.perf_counter() - begin) / 2000


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-root", default="~/fedapps-data")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        base = str(ROOT / "experiments" / "configs" / "fedseq-cifar100.toml")
        options = f'data-root="{arguments.data_root}" runs-dir="{folder}" device="cpu"'
        space = Workspace(config.read(config.parse([base, options])))
        round_seconds(space, "fedbabu", 1, False)  # loads the data
        for epochs in (1, 5):
            full = round_seconds(space, "fedbabu", epochs, False)
            for warm, name in ((False, "new features"), (True, "kept features")):
                first = round_seconds(space, "fedseq", epochs, warm)
                print(
                    f"{epochs} local epochs: fedbabu {full:6.2f} s, fedseq anti's first phase, "
                    f"{name} {first:6.2f} s, {full / first:5.1f} times faster"
                )
        plain = step_milliseconds(space, None)
        for mode in ("batch", "sample"):
            clip = Clip(percentile=90, max_norm=10.0, mode=mode, history=10_000)
            clipped = step_milliseconds(space, clip)
            print(
                f"step, all layers: {plain:.2f} ms; clipped per {mode} {clipped:.2f} ms "
                f"({clipped / plain:.2f} times)"
            )
        book = percentile_milliseconds()
        share = 100 * book / plain
        print(f"percentile of 10,000 norms: {1000 * book:.1f} us, {share:.2f} % of a step")


if __name__ == "__main__":
    main()
