"""Local training alone: each client has a model of its own, and nothing travels."""

from tests.twins.common import rounds, scored, trained, under
from tests.twins.harness import Outcome

SETTINGS = {"momentum": "local.match-compute=true"}


def local(world):
    """Every client trains in every round, or, to match the others' computation, if selected."""
    kept = {}
    for t, chosen, lr in rounds(world):
        for i in chosen if world["local.match-compute"] else world.clients:
            model = world.model(kept.get(i, {}))
            kept[i] = trained(world, model, world.training(t, i), lr)
    scores = scored(world, lambda i: world.model(kept.get(i, {})), None)
    return Outcome(world.initial, under("model/", kept), scores)
