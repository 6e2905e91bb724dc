"""FedPer: Arivazhagan et al. 2019, Algorithms 1 and 2."""

from tests.twins.common import by_size, fit, rounds, scored, state, under
from tests.twins.harness import Outcome

SETTINGS = {"momentum": "fedper.personal-layers=conv1,head"}


def keeping(world, own):
    """FedAvg of all arrays but `own`: these are trained with the others, and stay with a client."""
    shared = [k for k in world.initial if k not in own]
    server, kept = world.initial, {}
    for t, chosen, lr in rounds(world):
        sent = {}
        for i in chosen:
            model = world.model(server, kept.get(i, {}))
            fit(world, model, world.names, world.training(t, i), lr)
            kept[i], sent[i] = state(model, own), state(model, shared)
        server = server | by_size(world, sent)
    scores = scored(world, lambda i: world.model(server, kept.get(i, {})))
    return Outcome(server, under("model/", kept), scores)


def fedper(world):
    """All layers are trained together; the personal ones stay, the others are averaged."""
    return keeping(world, world.keys((world["fedper.personal-layers"] or "head").split(",")))
