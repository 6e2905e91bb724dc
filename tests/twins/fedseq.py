"""FedSeq: Jang, Choi 2024, Algorithms 1 (Vanilla) and 2 (Anti), with FedBABU or FedPer."""

from tests.twins.common import by_size, fit, rounds, scored, state, under
from tests.twins.harness import Outcome

SETTINGS = {
    "plain": 'fedseq.groups=2 fedseq.unfreeze-rounds="0,2" fedseq.finetune-epochs=2',
    "momentum": "fedseq.base=fedper fedseq.schedule=vanilla fedseq.unfreeze-rounds=0,1,2 "
    "fedseq.finetune-epochs=1",
}


def fedseq(world):
    """Groups of body layers are unfrozen in turn; frozen ones neither train nor travel."""
    starts = [int(start) for start in world["fedseq.unfreeze-rounds"].split(",")]
    size = len(world.body) // len(starts)
    groups = [world.body[k : k + size] for k in range(0, len(world.body), size)]
    if world["fedseq.schedule"] == "anti":
        groups.reverse()
    own = world.head if world["fedseq.base"] == "fedper" else []
    server, kept = world.initial, {}
    for t, chosen, lr in rounds(world):
        open_ = [groups[k] for k, start in enumerate(starts) if t - 1 >= start]
        active, sent = [name for group in open_ for name in group], {}
        for i in chosen:
            model = world.model(server, kept.get(i, {}))
            fit(world, model, active + own, world.training(t, i), lr)
            sent[i] = state(model, world.keys(active))
            if own:
                kept[i] = state(model, world.keys(own))
        server = server | by_size(world, sent)
    scores = scored(world, lambda i: world.model(server, kept.get(i, {})))
    return Outcome(server, under("model/", kept), scores)
