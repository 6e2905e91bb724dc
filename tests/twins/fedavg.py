"""FedAvg: McMahan et al. 2017, Algorithm 1."""

from tests.twins.common import by_size, gradients_of, rounds, scored, trained
from tests.twins.harness import Outcome


def fedavg(world, rule=lambda received: gradients_of):
    """Clients train everything for E epochs; the server takes the mean, weighted by n_i.

    They follow the gradients of `rule(received model)`.
    """
    server = world.initial
    for t, chosen, lr in rounds(world):
        sent = {}
        for i in chosen:
            sent[i] = trained(world, world.model(server), world.training(t, i), lr, rule(server))
        server = by_size(world, sent)
    return Outcome(server, {}, scored(world, lambda i: world.model(server)))
