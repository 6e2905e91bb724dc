"""Per-FedAvg: Fallah et al. 2020, Algorithm 1; first order, and Hessian-free (its Eq. 9)."""

import copy

import torch

from tests.twins.common import Sgd, gradients_of, plainly, rounds, scored, state, usable
from tests.twins.harness import Outcome

SETTINGS = {
    "plain": "perfedavg.outer-lr=0.1",
    "momentum": "perfedavg.mode=hf perfedavg.delta=0.01 perfedavg.outer-lr=0.1 "
    "perfedavg.personalize=epoch",
}


def at(model, batch, direction=None, scale=0.0):
    """Return the gradients at theta + scale direction; theta stays, statistics move."""
    before = [p.detach().clone() for p in model.parameters()]
    with torch.no_grad():
        for p, d in zip(model.parameters(), direction or before, strict=True):
            p.add_(d, alpha=scale)
    found = gradients_of(model, *batch)
    with torch.no_grad():
        for p, value in zip(model.parameters(), before, strict=True):
            p.copy_(value)
    return found


def meta_steps(world, model, batches, outer):
    """Take a step of size `outer` for each two (first order) or three batches in a row."""
    free, delta = world["perfedavg.mode"] == "hf", world["perfedavg.delta"]
    inner = world.s.lr  # beta follows the schedule, alpha does not (docs/notation.md)
    model.train()
    sgd = Sgd(world, model.parameters(), outer)
    batches = usable(model, batches)
    for start in range(0, len(batches), 2 + free):
        group = batches[start : start + 2 + free]
        while len(group) < 2 + free:  # the last group is filled up with the first batches
            group += batches[: 2 + free - len(group)]
        g = at(model, group[1], at(model, group[0]), -inner)
        if free:
            ahead, behind = at(model, group[2], g, delta), at(model, group[2], g, -delta)
            triples = zip(g, ahead, behind, strict=True)
            g = [a - inner * (b - c) / (2 * delta) for a, b, c in triples]
        sgd.step(g)
    return model.eval()


def perfedavg(world):
    """Clients improve the loss after one gradient step; the server takes the plain mean."""
    server = world.initial
    for t, chosen, lr in rounds(world):
        sent, outer = {}, world["perfedavg.outer-lr"] * lr / world.s.lr
        for i in chosen:
            batches = world.training(t, i)
            sent[i] = state(meta_steps(world, world.model(server), batches, outer))
        server = plainly(sent)

    def personalized(world, model, i):  # plain SGD, without a schedule
        made = copy.deepcopy(model)
        batches = usable(made.train(), world.batches("finetune", t, i, 1))
        for x, y in batches if world["perfedavg.personalize"] == "epoch" else batches[:1]:
            found = gradients_of(made, x, y)
            with torch.no_grad():
                for p, g in zip(made.parameters(), found, strict=True):
                    p -= world.s.lr * g
        return made.eval()

    return Outcome(server, {}, scored(world, lambda i: world.model(server), personalized))
