"""The floor of `python -m benchmarks`: the SGD steps of a run's rounds in bare PyTorch.

    python -m benchmarks.floor PROCESSES SETTINGS ...

It takes the steps of the method's plans: same model, clients, samples, layers and batches, which
are tensors in memory before the first round. There are no messages, no mean, no evaluation and no
cached outputs of frozen layers. Two processes take half of the steps each. Optimizers are torch's
functional forms, because the first object of `torch.optim` takes seconds of the start.
"""

import sys
from multiprocessing import get_context

import torch
from torch import nn

from benchmarks.peers.task import did, stamp
from fedapps.core import config, registry
from fedapps.training.draw import Draw
from fedapps.training.optimizers import OPTIMIZERS
from fedapps.training.plan import Stage
from fedapps.training.workspace import Workspace, workspace

Work = list[tuple[Stage, list[tuple[torch.Tensor, torch.Tensor]]]]


def work(space: Workspace, round_: int) -> Work:
    """Return the stages of all clients of a round, each with its shuffled batches."""
    s, out = space.settings, []
    strategy = registry.strategy_class(s.strategy)(space)
    for client in strategy.select(round_):
        x, y = space.samples(client, "train")
        draw = Draw(s.seed, "train", round_, client)
        for stage in strategy.plan(round_, client).stages:
            orders = (
                draw.order(epoch, len(y)).to(y.device).split(s.batch_size)
                for epoch in range(stage.epochs)
            )
            out.append((stage, [(x[some], y[some]) for order in orders for some in order]))
    return out


def steps(space: Workspace, todo: Work) -> None:
    """Take these steps."""
    model, loss = space.model.train(), nn.CrossEntropyLoss()
    parameters = dict(model.named_parameters())
    for stage, batches in todo:
        names = space.layout.keys_of(stage.layers)
        for name, parameter in parameters.items():
            parameter.requires_grad_(name in names)
        trained = [parameter for parameter in parameters.values() if parameter.requires_grad]
        optimizer = OPTIMIZERS[stage.optimizer](trained, stage)
        for x, y in batches:
            loss(model(x), y).backward()
            optimizer.step()
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def process(space: Workspace, part: int, parts: int, barrier) -> None:  # type: ignore[no-untyped-def]
    """Take every n-th step of each round; the first process tells when the round is over."""
    rounds = [work(space, 1 + round_) for round_ in range(space.settings.num_rounds)]
    for round_, todo in enumerate(rounds, 1):
        barrier.wait()
        steps(space, [(stage, batches[part::parts]) for stage, batches in todo])
        barrier.wait()
        if part == 0:
            stamp(round_)
    if part == 0:
        did(space.model, sum(len(batches) for todo in rounds for _, batches in todo) / len(rounds))


def main() -> None:
    """Run the processes."""
    parts, space = int(sys.argv[1]), workspace(config.read(config.parse(sys.argv[2:])))
    context = get_context("fork")
    barrier = context.Barrier(parts)
    others = [
        context.Process(target=process, args=(space, part, parts, barrier))
        for part in range(1, parts)
    ]
    for other in others:
        other.start()
    process(space, 0, parts, barrier)
    for other in others:
        other.join()


if __name__ == "__main__":
    main()
