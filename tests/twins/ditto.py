"""Ditto: Li et al. 2021, Algorithm 1 with w trained as in FedAvg."""

from tests.twins.common import by_size, pulled, rounds, scored, trained, under
from tests.twins.harness import Outcome

SETTINGS = {"momentum": "ditto.lambda=0.4 ditto.personal-epochs=2"}


def ditto(world):
    """v_i takes steps along grad F_i(v) + lambda (v - w), with w as it was received."""
    server, kept = world.initial, {}
    for t, chosen, lr in rounds(world):
        sent, pull = {}, pulled(world["ditto.lambda"], server)
        for i in chosen:
            sent[i] = trained(world, world.model(server), world.training(t, i), lr)
            batches = world.batches("personal", t, i, world["ditto.personal-epochs"])
            v = world.model(kept.get(i, {}))
            kept[i] = trained(world, v, batches, lr, pull)
        server = by_size(world, sent)
    scores = scored(world, lambda i: world.model(kept.get(i, {})), None)
    return Outcome(server, under("v/", kept), scores)
