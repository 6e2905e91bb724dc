"""Centralized training on the data of all clients together."""

import torch

from tests.twins.common import fit, rounds, scored, state
from tests.twins.harness import Outcome

SETTINGS = {"momentum": "centralized.trainable=body"}


def centralized(world):
    """The server trains for E epochs in each round; clients fine-tune a copy."""
    parts = {"full": world.names, "body": world.body, "head": world.head}
    layers = parts[world["centralized.trainable"]]
    data = [world.data(i) for i in world.clients]
    x, y = (torch.cat(tensors) for tensors in zip(*data, strict=True))
    server = world.model()
    for t, _, lr in rounds(world):
        orders = [world.order("train", t, 0, e, len(y)) for e in range(world.s.local_epochs)]
        batches = [(x[j], y[j]) for order in orders for j in order.split(world.s.batch_size)]
        fit(world, server, layers, batches, lr)
    return Outcome(state(server), {}, scored(world, lambda i: world.model(state(server))))
