"""FedFomo: Zhang et al. 2021, Eq. 3 to 5."""

import torch

from tests.twins.common import by_size, loss_of, rounds, scored, trained, under
from tests.twins.harness import Outcome

SETTINGS = {"momentum": "fedfomo.models=1 fedfomo.epsilon=0.6"}


def nearer(world, client, mine, others):
    """Return theta_i moved towards the models that do better, and u of each of them."""
    x, y = world.data(client, "validation")

    @torch.no_grad()
    def loss(own):
        return float(loss_of(world.model(own), x, y))

    parameters = [name for name, _ in world.model().named_parameters()]
    u, base = {}, loss(mine)
    for n, other in others.items():
        apart = torch.cat([(other[k] - mine[k]).double().flatten() for k in parameters]).norm()
        u[n] = (base - loss(other)) / float(apart) if apart else 0.0
    positive = {n: max(value, 0.0) for n, value in u.items()}
    total = sum(positive.values())
    if not total:
        return mine, u
    moves = {
        k: sum(positive[n] / total * (others[n][k] - mine[k]).double() for n in others)
        for k in mine
    }
    return {k: (mine[k].double() + moves[k]).float() for k in mine}, u


def asked(world, t, i, kept, affinity):
    """Return the M other clients of highest affinity (by lot if equal), or with chance any M."""
    draws = world.generator("fedfomo", t, i)
    chance = world["fedfomo.epsilon"] - world["fedfomo.epsilon-decay"] * (t - 1)
    explore = draws.random() < chance
    known = draws.permutation(sorted(j for j in kept if j != i)).tolist()
    if not explore:
        known.sort(key=lambda j: -float(affinity[j]))
    return known[: world["fedfomo.models"]]


def fedfomo(world):
    """A client steps towards the models that help it, then trains; the server keeps them all."""
    server, kept = world.initial, {}
    affinity = torch.zeros(len(world.clients), len(world.clients), dtype=torch.double)
    for t, chosen, lr in rounds(world):
        sent = {}
        for i in chosen:
            others = {j: kept[j] for j in asked(world, t, i, kept, affinity[i])}
            start, u = nearer(world, i, kept.get(i, world.initial), others)
            for j, value in u.items():
                affinity[i, j] += value
            sent[i] = trained(world, world.model(start), world.training(t, i), lr)
        kept |= sent
        server = by_size(world, sent)
    scores = scored(world, lambda i: world.model(kept.get(i, {})), None)
    return Outcome(server, under("model/", kept), scores)
