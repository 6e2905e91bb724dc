"""FedDyn: Acar et al. 2021, Algorithm 1."""

import torch

from tests.twins.common import gradients_of, held, plainly, pulled, rounds, scored, trained, under
from tests.twins.harness import Outcome

SETTINGS = {
    "plain": "feddyn.strength=0.1 feddyn.max-norm=0.8",
    "momentum": "feddyn.strength=0.05 prox-mu=0.2",
}


def regularized(world, g, server):
    """Return gradients of L - <g, theta> + (alpha/2)||theta - w||^2, pulled and clipped."""

    def linear(model, x, y):
        own = [g[name] for name, _ in model.named_parameters()]
        return [a - b for a, b in zip(gradients_of(model, x, y), own, strict=True)]

    return held(world, server, pulled(world["feddyn.strength"], server, linear))


def feddyn(world):
    """Each client corrects its loss by g_i; the server corrects the plain mean by hbar."""
    names, alpha = [name for name, _ in world.model().named_parameters()], world["feddyn.strength"]
    zero = {k: torch.zeros_like(world.initial[k]) for k in names}
    server, kept, hbar = world.initial, {}, dict(zero)
    for t, chosen, lr in rounds(world):
        sent = {}
        for i in chosen:
            g = kept.get(i, zero)
            rule = regularized(world, g, server)
            sent[i] = trained(world, world.model(server), world.training(t, i), lr, rule)
            kept[i] = {k: g[k] - alpha * (sent[i][k] - server[k]) for k in names}
        for k in names:
            moved = sum(sent[i][k] - server[k] for i in chosen)
            hbar[k] = hbar[k] - alpha * moved / len(world.clients)
        middle = plainly(sent)
        server = middle | {k: middle[k] - hbar[k] / alpha for k in names}
    return Outcome(server, under("g/", kept), scored(world, lambda i: world.model(server)))
