"""Seconds per round of FedAvg on Ray against the compute floor, and of the first round.

    python -m benchmarks.engine --data-root ~/fedapps-data        # FedCMD's CIFAR-10 setting
    python -m benchmarks.engine --data-root ~/fedapps-data --repeats 3

The floor is the same number of SGD steps (same model, same batches, already in memory) in two
bare PyTorch processes of one thread each, split evenly, with torch.optim.SGD. Engine and floor run
one after the other, as often as `--repeats` says, and medians are compared. The first round is
timed from the start of the command, beside an empty Flower app started the same way.
"""

import tempfile
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from statistics import median

import torch

from benchmarks.common import DATA, EMPTY, ROOT, completed, given, seconds_of, setting
from fedapps import launch
from fedapps.core import config
from fedapps.core.draws import sample_clients
from fedapps.core.settings import Settings
from fedapps.launcher import superlink
from fedapps.training.draw import Draw
from fedapps.training.workspace import Workspace

WORKERS = 2
FEDERATION = f"num-supernodes={WORKERS} client-resources-num-cpus=1"


def floor_worker(settings: Settings, part: int, start, done) -> None:
    """Take every second SGD step of each round and report when the round is over."""
    torch.set_num_threads(1)
    space = Workspace(settings)
    model, loss = space.model.train(), torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=settings.lr)
    for round_ in range(1, settings.num_rounds + 1):
        mine = [b for i, b in enumerate(batches(space, round_)) if i % WORKERS == part]
        start.wait()
        for x, y in mine:
            optimizer.zero_grad()
            loss(model(x), y).backward()
            optimizer.step()
        done.wait()


def batches(space: Workspace, round_: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return all batches of a round: those of the selected clients, in their shuffled order."""
    s, out = space.settings, []
    for client in sample_clients(s.seed, round_, s.num_clients, s.fraction_train):
        images, labels = space.samples(client, "train")
        draw = Draw(s.seed, "train", round_, client)
        for epoch in range(s.local_epochs):
            order = draw.order(epoch, len(labels))
            out += zip(
                images[order].split(s.batch_size), labels[order].split(s.batch_size), strict=True
            )
    return out


def floor(settings: Settings) -> list[float]:
    """Return the seconds of each round on the bare processes."""
    context = get_context("spawn")
    start, done = context.Barrier(WORKERS + 1), context.Barrier(WORKERS + 1)
    workers = [
        context.Process(target=floor_worker, args=(settings, part, start, done))
        for part in range(WORKERS)
    ]
    for worker in workers:
        worker.start()
    seconds = []
    for _ in range(settings.num_rounds):
        start.wait()
        begin = time.perf_counter()
        done.wait()
        seconds.append(time.perf_counter() - begin)
    for worker in workers:
        worker.join()
    return seconds


def first_round(beginning: str) -> tuple[list[float], Callable[[str], None]]:
    """Return a list that gets the seconds to the end of the first round, and a reader of lines."""
    first: list[float] = []
    begin = time.perf_counter()

    def watch(line: str) -> None:
        if line.lstrip().startswith(beginning) and not first:
            first.append(time.perf_counter() - begin)

    return first, watch


def engine(options: list[str], home: Path) -> tuple[list[float], float]:
    """Return the seconds of each round on Ray and those to the end of the first round."""
    first, watch = first_round("round ")
    with tempfile.TemporaryDirectory() as folder:
        options = [*options, f'runs-dir="{folder}" run-name="bench"']
        result = launch.launch(ROOT, options, FEDERATION, home=home, echo=watch)
        return seconds_of(result, Path(folder) / "bench"), first[0]


def empty(home: Path) -> float:
    """Return the seconds to the end of the first round of an app that does nothing."""
    first, watch = first_round("empty-app round=1")
    completed(launch.launch(EMPTY, [], FEDERATION, home, echo=watch))
    return first[0]


def main() -> None:
    """Measure and print a table."""
    arguments = given(__doc__, data_root=DATA, rounds=12, repeats=2)
    options = [
        setting("fedcmd-cifar10"),
        f'data-root="{arguments.data_root}" num-rounds={arguments.rounds} evaluate-every=0 '
        'evaluate-clients=1 finetune-epochs=0 score-last=false strategy="fedavg" device="cpu"',
    ]
    settings = config.read(config.parse(options))
    rounds, floors, firsts, empties = [], [], [], []
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        try:
            empty(home)  # starts the SuperLink, which both then find running
            for _ in range(arguments.repeats):
                empties.append(empty(home))
                seconds, first = engine(options, home)
                rounds += seconds[1:]
                firsts.append(first)
                floors += floor(settings)[1:]
        finally:
            superlink.stop(home)
    mine, bare = median(rounds), median(floors)
    print(f"seconds per round, Ray with {WORKERS} actors    {mine:8.3f}  (median of {len(rounds)})")
    print(f"compute floor, {WORKERS} bare processes         {bare:8.3f}  (median of {len(floors)})")
    print(f"ratio                                  {mine / bare:8.3f}")
    late = median(firsts) - median(empties)
    print(f"first round done after                 {median(firsts):8.1f} s")
    print(f"  that of an empty Flower app          {median(empties):8.1f} s")
    print(f"  later by                             {late:8.1f} s")


if __name__ == "__main__":
    main()
