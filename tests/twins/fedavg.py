"""FedAvg: McMahan et al. 2017, Algorithm 1."""

from tests.twins.common import by_size, fit, rounds, scored, state
from tests.twins.harness import Outcome


def fedavg(world):
    """Clients train everything for E epochs; the server takes the mean, weighted by n_i."""
    server = world.initial
    for t, chosen, lr in rounds(world):
        sent = {}
        for i in chosen:
            batches = world.batches("train", t, i, world.s.local_epochs)
            sent[i] = state(fit(world, world.model(server), world.names, batches, lr))
        server = by_size(world, sent)
    return Outcome(server, {}, scored(world, lambda i: world.model(server)))
