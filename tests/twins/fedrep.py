"""FedRep: Collins et al. 2021, Algorithm 1."""

import copy

from tests.twins.common import by_size, fit, rounds, scored, state, under
from tests.twins.harness import Outcome

SETTINGS = {
    "plain": "fedrep.head-epochs=2",
    "momentum": "fedrep.head-epochs=1 fedrep.body-epochs=2",
}


def fedrep(world):
    """A client trains its head with the body frozen, then the body with the head frozen."""
    heads, bodies = world["fedrep.head-epochs"], world["fedrep.body-epochs"]
    server, kept = world.initial, {}
    for t, chosen, lr in rounds(world):
        sent = {}
        for i in chosen:
            model = world.model(server, kept.get(i, {}))
            fit(world, model, world.head, world.batches("train", t, i, heads), lr)
            fit(world, model, world.body, world.batches("train", t, i, bodies, heads), lr)
            kept[i] = state(model, world.keys(world.head))
            sent[i] = state(model, world.keys(world.body))
        server = server | by_size(world, sent)

    def personalized(world, model, i):  # as the head is trained, at the last round's rate
        batches = world.batches("finetune", t, i, heads)
        return fit(world, copy.deepcopy(model), world.head, batches, lr)

    scores = scored(world, lambda i: world.model(server, kept.get(i, {})), personalized)
    return Outcome(server, under("model/", kept), scores)
