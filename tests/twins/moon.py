"""MOON: Li, He, Song 2021, Algorithm 1, Equations 3 and 4 (docs/papers/moon.md)."""

from functools import partial

import torch
from torch.nn.functional import cosine_similarity, cross_entropy

from tests.twins.common import by_size, features, gradients_of, held, rounds, scored, trained, under
from tests.twins.harness import Outcome

SETTINGS = {
    "plain": "moon.mu=5 head-layers=3",
    "momentum": "moon.temperature=0.2 prox-mu=0.2 max-norm=0.8",
}


def contrastive(world, received, last):
    """Return the loss CE + mu l_con, with sim(z, z_glob) as the positive pair."""
    size, mu, tau = len(world.body), world["moon.mu"], world["moon.temperature"]

    def loss(model, x, y):
        z = model[:size](x)
        with torch.no_grad():
            fixed = [features(world, other, x) for other in (received, last)]
        similar = torch.stack([cosine_similarity(z.flatten(1), f) for f in fixed], 1)
        con = cross_entropy(similar / tau, torch.zeros_like(y))
        return cross_entropy(model[size:](z), y) + mu * con

    return loss


def moon(world):
    """FedAvg; features stay near the received model's, and away from the client's last model's."""
    server, kept, body = world.initial, {}, world.keys(world.body)
    for t, chosen, lr in rounds(world):
        sent = {}
        for i in chosen:
            loss = contrastive(world, world.model(server), world.model(kept.get(i, {})))
            rule = held(world, server, partial(gradients_of, loss=loss))
            sent[i] = trained(world, world.model(server), world.training(t, i), lr, rule)
            kept[i] = {k: sent[i][k] for k in body}
        server = by_size(world, sent)
    scores = scored(world, lambda i: world.model(server))
    return Outcome(server, under("last-trained/", kept), scores)
