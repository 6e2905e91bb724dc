"""FedProx: Li et al. 2020, Algorithm 2 with the squared norm."""

from tests.twins.common import by_size, fit, pulled, rounds, scored, state
from tests.twins.harness import Outcome

SETTINGS = {"plain": "fedprox.prox-mu=0.5", "momentum": "fedprox.prox-mu=2.0"}


def fedprox(world):
    """FedAvg, with mu (theta - w) added to every gradient; w is the received model."""
    server = world.initial
    for t, chosen, lr in rounds(world):
        sent, pull = {}, pulled(world["fedprox.prox-mu"], server)
        for i in chosen:
            batches = world.batches("train", t, i, world.s.local_epochs)
            sent[i] = state(fit(world, world.model(server), world.names, batches, lr, pull))
        server = by_size(world, sent)
    return Outcome(server, {}, scored(world, lambda i: world.model(server)))
