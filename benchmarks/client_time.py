"""What clients compute: cached features, FedSeq's first phase, clipping, FedCMD's layer scores.

    python -m benchmarks.client_time prefix                        # needs no data set
    python -m benchmarks.client_time phase clipping scores --data-root ~/fedapps-data

prefix: ten epochs of the head of FedSeq's cnn (450 random samples of CIFAR-100's shape, batch 10),
without the cache, with the pass that fills it, and on features that are kept already.
phase: whole rounds of FedSeq and of FedBABU on CIFAR-100 (cnn, 100 clients, Dirichlet 0.1, batch
10), the same ten clients for both. clipping: a step of this cnn. scores: FedCMD's layer scores
against local training (CIFAR-10, lenet5, five epochs, batch 32), the ten clients of round 1.
All is timed in this process on one thread, and medians are printed.
"""

import argparse
import tempfile
import time
from statistics import median

import numpy as np
import torch

from benchmarks.common import DATA, random_samples, setting, timed, trainer_of
from clients.fedcmd import FedCMDClient
from fedapps.core import config, registry
from fedapps.core.draws import sample_clients
from fedapps.training.clipping import Threshold
from fedapps.training.draw import Draw
from fedapps.training.plan import Clip, Stage
from fedapps.training.workspace import Workspace
from strategies.fedcmd import FedCMD

ROUNDS, REPEATS = 3, 7


def prefix(data_root: str) -> None:
    """Print the time of the head's epochs without and with the cached prefix."""
    samples, times = random_samples(450, 100), np.zeros((3, REPEATS))
    for repeat in range(REPEATS):  # side by side, so that all see the same machine
        for kind, (size, keep) in enumerate(((0, None), (2**30, None), (2**30, "kept"))):
            trainer = trainer_of("cnn", 100, 10, size)
            head = Stage(layers=trainer.layout.head, epochs=10, lr=0.005)
            for round_ in range(2):  # the first one warms up
                draw = Draw(0, "train", round_, 0)
                took, _ = timed(trainer.train, samples, (head,), draw, cache_key=keep)
                times[kind, repeat] = 1000 * took
    slow, fill, fast = map(median, times)
    print(f"without cache             {slow:8.1f} ms")
    print(f"with the pass that fills  {fill:8.1f} ms  {slow / fill:5.1f} times faster")
    print(f"on kept features          {fast:8.1f} ms  {slow / fast:5.1f} times faster")


def space_of(name: str, method: str, data_root: str) -> Workspace:
    """Return the workspace of a paper's setting."""
    places = f'data-root="{data_root}" runs-dir="{tempfile.gettempdir()}"'
    return Workspace(
        config.read(config.parse([setting(name), f'strategy="{method}" device="cpu"', places]))
    )


def phase(data_root: str) -> None:
    """Print the time of a round of FedSeq's first phase beside one of FedBABU."""
    space = space_of("fedseq-cifar100", "fedseq", data_root)
    round_seconds(space, "fedbabu", 1, False)  # loads the data
    for epochs in (1, 5):
        full = round_seconds(space, "fedbabu", epochs, False)
        for warm, name in ((False, "new features"), (True, "kept features")):
            first = round_seconds(space, "fedseq", epochs, warm)
            print(
                f"{epochs} local epochs: fedbabu {full:6.2f} s, fedseq anti's first phase, "
                f"{name} {first:6.2f} s, {full / first:5.1f} times faster"
            )


def round_seconds(space: Workspace, method: str, epochs: int, warm: bool) -> float:
    """Return the median seconds of a round of `method` with ten fixed clients.

    `warm` repeats clients whose features are kept from an earlier round already.
    """
    settings = config.read(dict(space.settings.flat) | {"strategy": method, "local-epochs": epochs})
    plan, times = registry.strategy_class(method)(space, settings).plan(1, 0), []
    for round_ in range(ROUNDS + warm):
        keep = "kept" if warm else f"{method}-{epochs}-{round_}"
        begin = time.perf_counter()
        for client in range(10):
            draw, data = Draw(0, "train", round_, client), space.samples(client, "train")
            space.trainer.train(data, plan.stages, draw, cache_key=(keep, client))
        times.append(time.perf_counter() - begin)
    return median(times[warm:])


def clipping(data_root: str) -> None:
    """Print the time of a step with and without clipping, and of a percentile."""
    space = space_of("fedseq-cifar100", "fedseq", data_root)
    plain = step_milliseconds(space, None)
    for mode in ("batch", "sample"):
        clip = Clip(percentile=90, max_norm=10.0, mode=mode, history=10_000)
        clipped = step_milliseconds(space, clip)
        print(
            f"step, all layers: {plain:.2f} ms; clipped per {mode} {clipped:.2f} ms "
            f"({clipped / plain:.2f} times)"
        )
    norms = np.random.default_rng(0).lognormal(size=12_000)
    threshold = Threshold(Clip(percentile=90, max_norm=None, mode="batch", history=10_000), norms)
    took, _ = timed(lambda: [threshold.after(norm) for norm in norms[:2000]])
    share = 1e5 * took / 2000 / plain
    print(f"percentile of 10,000 norms: {1e6 * took / 2000:.1f} us, {share:.2f} % of a step")


def step_milliseconds(space: Workspace, clip: Clip | None) -> float:
    """Return the time of one SGD step on all layers."""
    stage = Stage(layers=space.layout.names, epochs=1, lr=0.005, clip=clip)
    data, times = space.samples(0, "train"), []
    for round_ in range(7):
        known = {(stage.layers, clip): Threshold(clip, np.random.rand(10_000))} if clip else {}
        draw = Draw(0, "train", round_, 0)
        took, done = timed(space.trainer.train, data, (stage,), draw, thresholds=known)
        times.append(1000 * took / done.batches)
    return median(times)


def scores(data_root: str) -> None:
    """Print the time of FedCMD's layer scores beside that of local training."""
    space = space_of("fedcmd-cifar10", "fedcmd", data_root)
    plan, s = FedCMD(space).plan(1, 0), space.settings
    training, scoring = [], []
    for number in 5 * sample_clients(s.seed, 1, s.num_clients, s.fraction_train):
        client = FedCMDClient(space, number, {})
        len(client.train_data)  # into memory, as it is from a client's second round on
        training.append(timed(client.train, plan, "train", client.objective("train"))[0])
        scoring.append(timed(client.after_training, plan)[0])
    shares = [score / train for score, train in zip(scoring, training, strict=True)]
    print(f"local training, median of {len(training)} {1e3 * median(training):8.1f} ms")
    print(f"layer scores                {1e3 * median(scoring):8.1f} ms")
    print(f"share, median of the pairs  {100 * median(shares):8.1f} %")


def main() -> None:
    """Measure and print."""
    parts = {part.__name__: part for part in (prefix, phase, clipping, scores)}
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", default=[*parts], choices=[*parts])
    parser.add_argument("--data-root", default=DATA)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in options.parts:
        parts[name](options.data_root)


if __name__ == "__main__":
    main()
