"""FedAMP and HeurFedAMP: Huang et al. 2021, Algorithm 1, Eq. 5, 6 and 8 (docs/papers/fedamp.md)."""

import math

import torch
from torch.nn.functional import cosine_similarity

from tests.twins.common import by_size, mean, pulled, rounds, scored, trained, under
from tests.twins.harness import Outcome

SETTINGS = {
    "plain": "fedamp.sigma=2.0 fedamp.step=1.0 fedamp.lambda=0.6",
    "momentum": "fedamp.similarity=cosine fedamp.sigma=5.0 fedamp.own-weight=0.3",
}


def weights(world, i, models):
    """Return xi_i: the weight of each model in client i's mixture."""
    names = [name for name, _ in world.model().named_parameters()]
    w = {j: torch.cat([own[k].double().flatten() for k in names]) for j, own in models.items()}
    sigma, step, others = world["fedamp.sigma"], world["fedamp.step"], [j for j in w if j != i]
    if not others:
        return {i: 1.0}
    if world["fedamp.similarity"] == "cosine":
        near = {j: math.exp(sigma * float(cosine_similarity(w[i], w[j], dim=0))) for j in others}
        scale = (1 - world["fedamp.own-weight"]) / sum(near.values())
    else:
        near = {
            j: step / sigma * math.exp(-float(((w[i] - w[j]) ** 2).sum()) / sigma) for j in others
        }
        scale = 1 / max(1.0, sum(near.values()))
    xi = {j: scale * near[j] for j in others}
    return xi | {i: 1 - sum(xi.values())}


def fedamp(world):
    """Each client trains near u_i, its mixture of the models that the clients sent last."""
    server, kept = world.initial, {}
    for t, chosen, lr in rounds(world):
        sent = {}
        for i in chosen:
            models = kept | {i: kept.get(i, world.initial)}
            u = mean(models, weights(world, i, models))
            pull = pulled(world["fedamp.lambda"] / world["fedamp.step"], u)
            sent[i] = trained(world, world.model(u), world.training(t, i), lr, pull)
        kept |= sent
        server = by_size(world, sent)
    scores = scored(world, lambda i: world.model(kept.get(i, {})), None)
    return Outcome(server, under("model/", kept), scores)
