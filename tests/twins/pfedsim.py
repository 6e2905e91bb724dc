"""pFedSim: Tan et al. 2023, Algorithm 1."""

import torch
from torch.nn.functional import cosine_similarity

from tests.twins.common import by_size, fit, rounds, scored, state, under
from tests.twins.harness import Outcome

SETTINGS = {"plain": "pfedsim.warmup=0.4", "momentum": "pfedsim.warmup=0.5"}


def pfedsim(world):
    """After FedAvg, heads are personal; a client's body is a mixture by the heads' similarity."""
    warm = int(world["pfedsim.warmup"] * world.s.num_rounds)
    body, head = world.keys(world.body), world.keys(world.head)
    row = next(k for k in head if k.endswith("weight"))
    server, kept, last = world.initial, {}, {}
    similar = torch.eye(len(world.clients), dtype=torch.double)

    def mixed(i):
        a = -torch.log(1 - similar[i].clamp(max=0.9999))
        a = a / sum(a[j] for j in last)
        return {k: sum(a[j] * last[j][k].double() for j in last).float() for k in body}

    for t, chosen, lr in rounds(world):
        if t == warm + 1:
            last = {i: {k: server[k] for k in body} for i in world.clients}
        sent = {}
        for i in chosen:
            model = world.model(server, mixed(i) if last else {}, kept.get(i, {}))
            fit(world, model, world.names, world.training(t, i), lr)
            sent[i] = state(model)
            if last:
                kept[i] = state(model, head)
        if last:
            for i in chosen:
                last[i] = {k: sent[i][k] for k in body}
                for j in chosen:
                    cosines = cosine_similarity(sent[i][row].double(), sent[j][row].double())
                    similar[i, j] = max(0.0, float(cosines.mean()))
        server = server | {k: v for k, v in by_size(world, sent).items() if not last or k in body}
    scores = scored(world, lambda i: world.model(server, mixed(i), kept.get(i, {})))
    return Outcome(server, under("model/", kept), scores)
