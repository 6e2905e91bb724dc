"""FedBN: Li et al. 2021, Algorithm 1."""

from tests.twins.common import by_size, fit, rounds, scored, state, under
from tests.twins.harness import Outcome

SETTINGS = {"plain": 'model="tests/twins/models.py:normed"'}


def fedbn(world):
    """FedAvg of everything but BatchNorms (parameters and statistics), which stay."""
    norms = [k for k in world.initial if k.startswith(("conv1.1.", "fc1.1."))]
    rest = [k for k in world.initial if k not in norms]
    server, kept = world.initial, {}
    for t, chosen, lr in rounds(world):
        sent = {}
        for i in chosen:
            model = world.model(server, kept.get(i, {}))
            fit(world, model, world.names, world.batches("train", t, i, world.s.local_epochs), lr)
            kept[i], sent[i] = state(model, norms), state(model, rest)
        server = server | by_size(world, sent)
    scores = scored(world, lambda i: world.model(server, kept.get(i, {})))
    return Outcome(server, under("model/", kept), scores)
