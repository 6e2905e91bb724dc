"""pFedHN and pFedHN-PC: Shamsian et al. 2021, Algorithm 1 (docs/papers/pfedhn.md)."""

import numpy as np
import torch
from torch.nn.functional import linear, relu

from tests.twins.common import by_size, fit, rounds, scored, state, under
from tests.twins.harness import Outcome

SETTINGS = {
    "plain": "pfedhn.hyper-lr=0.7 pfedhn.embedding-lr=0.4",
    "momentum": "pfedhn.personal-head=true head-layers=2 pfedhn.embedding-lr=20.0 "
    "pfedhn.embedding-size=3 pfedhn.hidden-size=11 pfedhn.hidden-layers=2",
}


def hidden(world):
    """Return weights and bias of each layer of the hypernetwork before its output layers."""
    found, inputs, width = [], world["pfedhn.embedding-size"], world["pfedhn.hidden-size"]
    for k in range(1 + world["pfedhn.hidden-layers"]):
        draws, limit = world.generator("pfedhn", k), 1 / np.sqrt(inputs)
        for shape in ((width, inputs), (width,)):
            found.append(torch.from_numpy(draws.uniform(-limit, limit, shape)).float())
        inputs = width
    return found


def h(phi, v, first):
    """Return theta: the arrays that the hypernetwork makes from an embedding."""
    *layers, w, b = phi
    f = linear(v, *layers[:2])
    for k in range(2, len(layers), 2):
        f = linear(relu(f), *layers[k : k + 2])
    parts = linear(f, w, b).split([a.numel() for a in first.values()])
    return {k: part.view_as(first[k]) for k, part in zip(first, parts, strict=True)}


def products(phi, v, first, move):
    """Return (d theta / d phi)^T move for each array of phi, and (d theta / d v)^T move."""
    asking = [a.clone().requires_grad_() for a in (*phi, v)]
    theta = h(asking[:-1], asking[-1], first)
    return torch.autograd.grad(sum((theta[k] * move[k]).sum() for k in move), asking)


def pfedhn(world):
    """The server makes each client's model from its embedding, and learns from how it moves."""
    own = world.keys(world.head) if world["pfedhn.personal-head"] else []
    names = [name for name, _ in world.model().named_parameters() if name not in own]
    stats = [k for k in state(world.model()) if k not in {*names, *own}]
    first = {k: world.initial[k] for k in names}
    b = torch.cat([a.flatten() for a in first.values()])
    phi = [*hidden(world), torch.zeros(len(b), world["pfedhn.hidden-size"]), b]
    v = [world.generator("pfedhn-embedding", i) for i in world.clients]
    v = [torch.from_numpy(g.standard_normal(world["pfedhn.embedding-size"])).float() for g in v]
    means, kept, trained = {}, {}, set()

    def made(i):
        return world.model(h(phi, v[i], first), means, kept.get(i, {}))

    for t, chosen, lr in rounds(world):
        sent, found = {}, {}
        for i in chosen:
            model, theta = made(i), h(phi, v[i], first)
            fit(world, model, world.names, world.training(t, i), lr)
            after, sent[i] = state(model, names), state(model, stats)
            found[i] = products(phi, v[i], first, {k: theta[k] - after[k] for k in names})
            if own:
                kept[i] = state(model, own)
        for i, all_ in found.items():
            v[i] = v[i] - world["pfedhn.embedding-lr"] * all_[-1]
        columns = zip(*(all_[:-1] for all_ in found.values()), strict=True)
        steps = [world["pfedhn.hyper-lr"] * sum(column) / len(chosen) for column in columns]
        phi = [a - step for a, step in zip(phi, steps, strict=True)]
        means, trained = by_size(world, sent), trained | {*chosen}
    middle = sum(v[i] for i in trained) / len(trained)
    server = world.initial | h(phi, middle, first) | means
    return Outcome(server, under("model/", kept), scored(world, made, None))
