"""FedAS: Yang, Huang, Ye 2024, as its authors' code has it (docs/papers/fedas.md)."""

import copy

import torch

from tests.twins.common import (
    features,
    fit,
    gradients_of,
    held,
    mean,
    rounds,
    scored,
    state,
    under,
    usable,
)
from tests.twins.harness import Outcome

SETTINGS = {
    "plain": "fedas.align-lr=0.3 head-layers=3",
    "momentum": "fedas.align-lr=0.1 fedas.align-epochs=2 max-norm=0.8 prox-mu=0.2",
}


def aligned(world, model, last, i, batches, lr):
    """Move the body, in place, to the mean features that the last one has for each class."""
    x, y = world.data(i)
    with torch.no_grad():
        old = features(world, world.model(last), x)
    p = {c: old[y == c].mean(0) for c in y.unique().tolist()}
    body = model[: len(world.body)].train()
    for x, y in usable(body, batches):
        f = body(x).flatten(1)
        loss = sum(((f[y == c] - p[c]) ** 2).mean() for c in y.unique().tolist())
        gradients = torch.autograd.grad(loss, [*body.parameters()])
        with torch.no_grad():
            for w, g in zip(body.parameters(), gradients, strict=True):
                w -= lr * g
    return model.eval()


def information(world, model, i):
    """Return the sum of the squared norms of the gradients of batches in stored order."""
    x, y = world.data(i)
    ends = [*range(world.s.batch_size, len(y) - 1, world.s.batch_size), len(y)]
    pieces = [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]
    found = (g for piece in pieces for g in gradients_of(model, x[piece], y[piece]))
    return sum(float((g**2).sum()) for g in found)


def fedas(world):
    """FedPer; the received body is aligned first, and the mean is weighted by information."""
    epochs, rate = world["fedas.align-epochs"], world["fedas.align-lr"]
    body, head = world.keys(world.body), world.keys(world.head)
    server, kept = world.initial, {}

    def received(i):
        return world.model(server, {k: kept[i][k] for k in head} if i in kept else {})

    for t, chosen, lr in rounds(world):
        sent, weights = {}, {}
        for i in chosen:
            model = received(i)
            if i in kept:
                batches = world.batches("align", t, i, epochs)
                aligned(world, model, kept[i], i, batches, rate * lr / world.s.lr)
            rule = held(world, state(model))
            fit(world, model, world.names, world.training(t, i), lr, rule)
            weights[i] = information(world, model, i)
            kept[i], sent[i] = state(model), state(model, body)
        server = server | mean(sent, weights)

    def personalized(world, model, i):
        batches = world.batches("finetune", world.s.num_rounds, i, epochs)
        made, schedule = copy.deepcopy(model), lr / world.s.lr  # of the last round
        return aligned(world, made, kept[i], i, batches, rate * schedule) if i in kept else made

    return Outcome(server, under("model/", kept), scored(world, received, personalized))
