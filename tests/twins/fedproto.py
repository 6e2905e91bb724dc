"""FedProto: Tan et al. 2022, Algorithm 1, Equations 3, 6 and 7 (docs/papers/fedproto.md)."""

from functools import partial

import torch
from torch.nn.functional import cross_entropy

from tests.twins.common import (
    features,
    gradients_of,
    held,
    mean,
    outputs,
    rounds,
    state,
    trained,
    under,
)
from tests.twins.harness import Outcome

SETTINGS = {
    "plain": "fedproto.predict=head fedproto.lambda=3 head-layers=3",
    "momentum": "fedproto.weighting=plain alpha=0.1 fraction-train=0.4 seed=27 max-norm=0.8 "
    "prox-mu=0.2",
}


def pulling(world, shared):
    """Return the loss CE + lambda R; classes without a prototype have R = 0."""
    size, lam = len(world.body), world["fedproto.lambda"]

    def loss(model, x, y):
        z = model[:size](x)
        pairs = zip(z.flatten(1), y.tolist(), strict=True)
        known = [(f, shared[j]) for f, j in pairs if j in shared]
        distance = sum(((f - c) ** 2).mean() for f, c in known) / len(y)
        return cross_entropy(model[size:](z), y) + lam * distance

    return loss


@torch.no_grad()
def fixed(world, model, i, part):
    return features(world, model, world.data(i, part)[0])


def predicted(world, model, shared, i):
    """Return -||f(x) - C^(j)||^2; a class without a prototype gets the smallest of these."""
    if world["fedproto.predict"] == "head":
        return outputs(world, model, i)
    f = fixed(world, model, i, "test")
    near = {j: -((f - c) ** 2).sum(1) for j, c in shared.items()}
    lowest = torch.stack([*near.values()]).amin(0)
    classes = len(world.initial[world.keys(world.head)[-1]])
    return torch.stack([near.get(j, lowest) for j in range(classes)], 1)


def fedproto(world):
    """Each client has a model of its own; only the mean features of each class travel."""
    shared, kept, plain = {}, {}, world["fedproto.weighting"] == "plain"
    for t, chosen, lr in rounds(world):
        found, sizes = {}, {}
        for i in chosen:
            model = world.model(kept.get(i, {}))
            rule = partial(gradients_of, loss=pulling(world, shared))
            rule = held(world, state(model), rule)
            kept[i] = trained(world, model, world.training(t, i), lr, rule)
            f, y = fixed(world, model, i, "train"), world.data(i)[1]
            for j in y.unique().tolist():
                found.setdefault(j, {})[i] = {"C": f[y == j].mean(0)}
                sizes.setdefault(j, {})[i] = 1 if plain else int((y == j).sum())
        shared |= {j: mean(found[j], sizes[j])["C"] for j in found}
    scores = {}
    for i in world.clients:
        scores[i] = (predicted(world, world.model(kept.get(i, {})), shared, i),) * 2
    return Outcome(world.initial, under("model/", kept), scores)
