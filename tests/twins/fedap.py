"""FedAP: Lu et al. 2022, Algorithm 1, with FedAvg as pretraining."""

import torch

from tests.twins.common import by_size, fit, rounds, scored, state, under
from tests.twins.harness import Outcome

SETTINGS = {
    "plain": 'model="tests/twins/models.py:normed"',
    "momentum": "fedap.lambda=0.3 fedap.warmup=0.4",
}


def statistics(world, model, client):
    """Return mean and standard deviation of each BatchNorm's inputs, by channel."""
    x, found = world.data(client)[0], []
    with torch.no_grad():
        for layer in model.children():
            for module in layer.children():
                if isinstance(module, torch.nn.BatchNorm1d | torch.nn.BatchNorm2d):
                    values = x.transpose(0, 1).flatten(1).double()
                    found.append((values.mean(1), values.std(1, correction=0)))
                x = module(x)
    return found


def weights_of(world, found):
    """w_ii = lambda; the rest is divided by closeness: 1 / d_ij."""
    clients, lam = world.clients, world["fedap.lambda"]
    weights = torch.zeros(len(clients), len(clients), dtype=torch.double)
    for i in clients:
        for j in clients:
            pairs = zip(found[i], found[j], strict=True)
            d = sum(
                (((m - n) ** 2).sum() + ((s - r) ** 2).sum()).sqrt() for (m, s), (n, r) in pairs
            )
            weights[i, j] = 0 if i == j else 1 / max(float(d), 1e-12)
        weights[i] *= (1 - lam) / weights[i].sum()
        weights[i, i] = lam
    return weights


def fedap(world):
    """After the pretraining BatchNorms stay, and each client gets a mixture of all models."""
    norms = [k for k in world.initial if k.startswith(("conv1.1.", "fc1.1."))]
    rest = [k for k in world.initial if k not in norms]
    warm = int(world["fedap.warmup"] * world.s.num_rounds)
    server, kept, weights, last = world.initial, {}, None, {}

    def mixed(i):
        return {k: sum(weights[i, j] * last[j][k].double() for j in last).float() for k in rest}

    for t, chosen, lr in rounds(world):
        if t == warm + 1:
            found = {i: statistics(world, world.model(server), i) for i in world.clients}
            weights = weights_of(world, found)
            last = {i: {k: server[k] for k in rest} for i in world.clients}
        sent = {}
        for i in chosen:
            own = mixed(i) if last else {}
            model = world.model(server, own, kept.get(i, {}))
            fit(world, model, world.names, world.training(t, i), lr)
            sent[i] = state(model, rest if last else None)
            if last:
                kept[i] = state(model, norms)
        last |= sent if last else {}
        server = server | by_size(world, sent)
    scores = scored(world, lambda i: world.model(server, mixed(i), kept.get(i, {})))
    return Outcome(server, under("model/", kept), scores)
