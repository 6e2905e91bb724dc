"""FedPAC: Xu, Tong, Huang 2023, Algorithm 1, Eq. 6, 7 and 9 (docs/papers/fedpac.md)."""

import copy
from functools import partial
from itertools import combinations

import torch

from tests.twins.common import (
    asking,
    by_size,
    features,
    fit,
    held,
    loss_of,
    mean,
    rounds,
    scored,
    state,
)
from tests.twins.harness import Outcome

SETTINGS = {
    "plain": "fedpac.lambda=2.0 fedpac.head-epochs=2 fraction-train=0.4 seed=16",
    "momentum": "fedpac.lambda=0.5 prox-mu=0.2 max-norm=0.8",
}


@torch.no_grad()
def by_class(world, model, i):
    """Return mu_i (a row of zeros for a class without samples), n_i of each class, and v_i."""
    x, y = world.data(i)
    f, classes = features(world, model, x).double(), len(world.initial[world.keys(world.head)[-1]])
    n = torch.bincount(y, minlength=classes)
    mu = torch.stack([f[y == k].sum(0) / max(int(n[k]), 1) for k in range(classes)])
    p = n / len(y)
    v = ((f**2).sum(1).mean() - (p**2 * (mu**2).sum(1)).sum()) / len(y)
    return mu, n, v


def to_centroids(world, centroids):
    """Return the gradients of the cross entropy + lambda mse(f(x), c_y), for the body."""

    def gradients(model, x, y):
        f, head = features(world, model, x), model[-len(world.head) :]
        pull = ((f - centroids[y]) ** 2).mean()
        loss = loss_of(head, f, y) + world["fedpac.lambda"] * pull
        return torch.autograd.grad(loss, asking(model))

    return gradients


def collaboration(own, h, v):
    """Return Eq. 9's weights: of the minima on all faces of the simplex, the least one."""
    clients, found = list(h), []
    apart = torch.stack([(h[own] - h[j]).flatten() for j in clients])
    q = apart @ apart.T + torch.diag(torch.stack([v[j] for j in clients]))
    for size in range(1, len(q) + 1):
        for face in map(list, combinations(range(len(q)), size)):
            a = torch.zeros(len(q), dtype=torch.double)
            a[face] = torch.linalg.solve(q[face][:, face], torch.ones(size, dtype=torch.double))
            found += [a / a.sum()] * bool(a.min() >= 0)
    a = min(found, key=lambda a: float(a @ q @ a))
    a[a < 0.001] = 0
    return {j: float(weight) for j, weight in zip(clients, a / a.sum(), strict=True)}


def fedpac(world):
    """The body is shared, and trained towards centroids; each client gets a mixture of heads."""
    server, heads, c, epochs = world.initial, {}, {}, world["fedpac.head-epochs"]
    first = {k: server[k] for k in world.keys(world.head)}
    for t, chosen, lr in rounds(world):
        sent, h, v, after = {}, {}, {}, {}
        for i in chosen:
            model = world.model(server, heads.get(i, first))
            mu, n, v[i] = by_class(world, model, i)
            h[i] = n[:, None] / n.sum() * mu
            near = partial(held, world, state(model))
            fit(world, model, world.head, world.batches("train", t, i, epochs), lr, near())
            batches = world.batches("train", t, i, world.s.local_epochs, epochs)
            targets = torch.stack([c.get(k, own) for k, own in enumerate(mu)]).float()
            pull = [to_centroids(world, targets)] * bool(c)
            fit(world, model, world.body, batches, lr, near(*pull))
            sent[i], after[i] = state(model), by_class(world, model, i)
        server = by_size(world, sent)
        for k in range(len(n)):
            if total := sum(n[k] for _, n, _ in after.values()):
                c[k] = sum(n[k] * mu[k] for mu, n, _ in after.values()) / total
        for i in chosen:
            of_heads = {j: {k: sent[j][k] for k in first} for j in chosen}
            heads[i] = mean(of_heads, collaboration(i, h, v))

    def personalized(world, model, i):  # as a round begins
        batches = world.batches("finetune", t, i, epochs)
        rule = held(world, state(model))
        return fit(world, copy.deepcopy(model), world.head, batches, lr, rule)

    scores = scored(world, lambda i: world.model(server, heads.get(i, first)), personalized)
    return Outcome(server, {}, scores)
