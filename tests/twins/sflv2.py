"""SFLv2: Thapa et al. 2022; one server part, trained on one client after the other."""

from tests.twins.common import Sgd, by_size, gradients_of, rounds, scored, state, usable
from tests.twins.harness import Outcome

SETTINGS = {"plain": "sflv2.order=batch"}


def steps(world, t, own):
    """Yield clients and batches in the order in which the server trains on them."""
    if world["sflv2.order"] == "client":
        for i in world.generator("sflv2", t).permutation(sorted(own)).tolist():
            yield from ((i, batch) for epoch in own[i] for batch in epoch)
        return
    for e in range(world.s.local_epochs):
        for k in range(max(len(epochs[e]) for epochs in own.values())):
            here = [i for i in own if k < len(own[i][e])]
            for i in world.generator("sflv2", t, e, k).permutation(here).tolist():
                yield i, own[i][e][k]


def sflv2(world):
    """The server's layers see every client's batches; the clients' layers are averaged."""
    cut = world["sflv2.cut"] or min(4, len(world.names) // 2)
    whole, epochs = world.initial, range(world.s.local_epochs)
    for t, chosen, lr in rounds(world):
        server = world.model(whole).train()
        low, high = world.keys(world.names[:cut]), world.keys(world.names[cut:])
        above = Sgd(world, server[cut:].parameters(), lr)
        models = {i: world.model(whole).train() for i in chosen}
        for model in models.values():
            for place in range(cut, len(server)):
                model[place] = server[place]
        below = {i: Sgd(world, models[i][:cut].parameters(), lr) for i in chosen}
        own = {
            i: [usable(server, world.batches("train", t, i, 1, e)) for e in epochs] for i in chosen
        }
        for i, batch in steps(world, t, own):
            found = gradients_of(models[i], *batch)
            count = len(below[i].parameters)
            below[i].step(found[:count])
            above.step(found[count:])
        parts = {i: state(models[i], low) for i in chosen}
        whole = by_size(world, parts) | state(server, high)
    return Outcome(whole, {}, scored(world, lambda i: world.model(whole)))
