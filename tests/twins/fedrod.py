"""FedROD: Chen, Chao 2022, Algorithm 1 with a linear personal head."""

import torch
from torch.nn.functional import cross_entropy, linear

from tests.twins.common import Sgd, by_size, rounds, state, under, unfrozen, usable
from tests.twins.harness import Outcome


def both(model, own, x):
    """Return features, generic logits and personal logits."""
    *body, head = model.children()
    for layer in body:
        x = layer(x)
    return head(x), linear(x.detach(), own[0], own[1])


def fedrod(world):
    """Generic part: balanced softmax; personal head: the usual loss on detached features."""
    names = world.keys(world.head)
    first = {k: world.initial[k] for k in names}
    server, kept = world.initial, {}
    classes = len(first[names[-1]])
    for t, chosen, lr in rounds(world):
        sent = {}
        for i in chosen:
            prior = torch.bincount(world.data(i)[1], minlength=classes).float().log()
            model = world.model(server)
            own = [kept.get(i, first)[k].clone().requires_grad_() for k in names]
            generic = unfrozen(model, world.names)
            of_model, of_own = Sgd(world, generic, lr), Sgd(world, own, lr)
            for x, y in usable(model, world.training(t, i)):
                logits, personal = both(model, own, x)
                balanced = cross_entropy(logits + prior, y)
                plain = cross_entropy(logits.detach() + personal, y)
                g = torch.autograd.grad(balanced, generic)
                of_own.step(torch.autograd.grad(plain, own))
                of_model.step(g)
            sent[i] = state(model.eval())
            kept[i] = {k: p.detach() for k, p in zip(names, own, strict=True)}
        server = by_size(world, sent)
    scores = {}
    with torch.no_grad():
        for i in world.clients:
            own = [kept.get(i, first)[k] for k in names]
            out = sum(both(world.model(server), own, world.data(i, "test")[0]))
            scores[i] = (out, out)
    return Outcome(server, under("personal/", kept), scores)
