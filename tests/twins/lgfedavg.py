"""LG-FedAvg: Liang et al. 2019, Algorithm 1; the last layers are global."""

from tests.twins.common import by_size, fit, rounds, scored, state, under
from tests.twins.harness import Outcome

SETTINGS = {"momentum": "lgfedavg.global-layers=2 lgfedavg.warmup-rounds=1"}


def lgfedavg(world):
    """All layers are trained; after rounds of FedAvg, the first ones stay on the client."""
    cut = len(world.names) - world["lgfedavg.global-layers"]
    server, kept = world.initial, {}
    for t, chosen, lr in rounds(world):
        warm, sent = t <= world["lgfedavg.warmup-rounds"], {}
        for i in chosen:
            model = world.model(server, kept.get(i, {}))
            fit(world, model, world.names, world.training(t, i), lr)
            sent[i] = state(model, world.keys(world.names if warm else world.names[cut:]))
            if not warm:
                kept[i] = state(model, world.keys(world.names[:cut]))
        server = server | by_size(world, sent)
    scores = scored(world, lambda i: world.model(server, kept.get(i, {})))
    return Outcome(server, under("model/", kept), scores)
