"""SCAFFOLD: Karimireddy et al. 2020, Algorithm 1, option II (docs/papers/scaffold.md)."""

import torch

from tests.twins.common import gradients_of, held, plainly, rounds, scored, trained, under
from tests.twins.harness import Outcome

SETTINGS = {
    "plain": "scaffold.global-lr=0.8",
    "momentum": "scaffold.global-lr=1.2 prox-mu=0.2 max-norm=0.8",
}


def corrected(world, server, names, drift, seen):
    """Return g_i - c_i + c, then pulled and clipped, and put each g_i into `seen`."""

    def rule(model, x, y):
        seen.append(gradients_of(model, x, y))
        return [g - drift[k] for k, g in zip(names, seen[-1], strict=True)]

    return held(world, server, rule)


def scaffold(world):
    """Control variates c_i (clients) and c (server) take the drift out of every gradient."""
    names, eta = [name for name, _ in world.model().named_parameters()], world["scaffold.global-lr"]
    zero = {k: torch.zeros_like(world.initial[k]) for k in names}
    server, kept, c = world.initial, {}, dict(zero)
    for t, chosen, lr in rounds(world):
        sent, new = {}, {}
        for i in chosen:
            c_i, seen = kept.get(i, zero), []
            rule = corrected(world, server, names, {k: c_i[k] - c[k] for k in names}, seen)
            y = sent[i] = trained(world, world.model(server), world.training(t, i), lr, rule)
            if world.s.momentum:  # not plain SGD: the mean of the gradients
                means = [sum(column) / len(seen) for column in zip(*seen, strict=True)]
                new[i] = dict(zip(names, means, strict=True))
            else:  # option II
                steps = len(seen) * lr
                new[i] = {k: c_i[k] - c[k] + (server[k] - y[k]) / steps for k in names}
        zeros = dict.fromkeys(world.clients, zero)
        kept |= new
        c = plainly(zeros | kept)  # the mean of all clients' c_i
        middle = plainly(sent)
        server = middle | {k: server[k] + eta * (middle[k] - server[k]) for k in names}
    return Outcome(server, under("own/", kept), scored(world, lambda i: world.model(server)))
