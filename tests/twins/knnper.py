"""kNN-Per: Marfoq et al. 2022, Algorithm 1, Eq. 7 to 9 (docs/papers/knnper.md)."""

import numpy as np
import torch

from tests.twins.common import features, outputs
from tests.twins.fedavg import fedavg
from tests.twins.harness import Outcome

SETTINGS = {
    "plain": "knnper.k=3 knnper.capacity=12 knnper.scale=0.1 knnper.weight=0.7",
    "momentum": "knnper.capacity=8",
}


@torch.no_grad()
def predicted(world, model, i):
    """Return log p of client i's test samples: its neighbours' vote beside the model's."""
    (x, y), k = world.data(i), world["knnper.k"]
    if len(y) > world["knnper.capacity"]:
        some = world.generator("knnper", 0, i).permutation(len(y))[: world["knnper.capacity"]]
        x, y = x[some], y[some]
    stored, asked = (
        features(world, model, part).double().numpy() for part in (x, world.data(i, "test")[0])
    )
    p = outputs(world, model, i).double().softmax(1).numpy()
    for row, f in zip(p, asked, strict=True):
        squares = ((stored - f) ** 2).sum(1)
        near = np.argsort(squares)[:k]
        s = np.exp(-squares[near] / (len(f) * world["knnper.scale"]))
        vote = np.bincount(y.numpy()[near], s, len(row)) / s.sum()
        row[:] = world["knnper.weight"] * vote + (1 - world["knnper.weight"]) * row
    return torch.from_numpy(p.clip(1e-12)).log()


def knnper(world):
    """FedAvg's model; each client's samples that are near in its features vote beside it."""
    server = fedavg(world).server
    scores = {i: (predicted(world, world.model(server), i),) * 2 for i in world.clients}
    return Outcome(server, {}, scores)
