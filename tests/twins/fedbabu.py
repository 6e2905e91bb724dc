"""FedBABU: Oh, Kim, Yun 2022, Algorithm 1; with FedProx, the body is pulled."""

from tests.twins.common import by_size, fit, pulled, rounds, scored, state
from tests.twins.harness import Outcome

SETTINGS = {"momentum": "prox-mu=0.5 finetune-part=head"}


def fedbabu(world):
    """The head stays as it was made, on every client; bodies are trained and averaged."""
    server = world.initial
    for t, chosen, lr in rounds(world):
        sent, pull = {}, pulled(world.s.prox_mu, server)
        for i in chosen:
            batches = world.training(t, i)
            model = fit(world, world.model(server), world.body, batches, lr, pull)
            sent[i] = state(model, world.keys(world.body))
        server = server | by_size(world, sent)
    return Outcome(server, {}, scored(world, lambda i: world.model(server)))
