"""SFLv1: Thapa et al. 2022, Algorithm 1; a server part for each client."""

from tests.twins.common import Sgd, by_size, gradients_of, rounds, scored, state, usable
from tests.twins.harness import Outcome

SETTINGS = {"momentum": "sflv1.sync=round"}


def sflv1(world):
    """Each client trains with a server part of its own; these take mean gradients in each step."""
    cut = world["sflv1.cut"] or min(4, len(world.names) // 2)
    whole = world.initial
    for t, chosen, lr in rounds(world):
        models = {i: world.model(whole).train() for i in chosen}
        low = {i: [*model[:cut].parameters()] for i, model in models.items()}
        high = {i: [*model[cut:].parameters()] for i, model in models.items()}
        below = {i: Sgd(world, low[i], lr) for i in chosen}
        above = {i: Sgd(world, high[i], lr) for i in chosen}
        for e in range(world.s.local_epochs):
            own = {i: usable(models[i], world.batches("train", t, i, 1, e)) for i in chosen}
            for k in range(max(map(len, own.values()))):
                found = {i: gradients_of(models[i], *own[i][k]) for i in chosen if k < len(own[i])}
                upper = {i: found[i][len(low[i]) :] for i in found}
                for i in found:
                    below[i].step(found[i][: len(low[i])])
                if world["sflv1.sync"] == "iteration":
                    mean = [sum(g) / len(found) for g in zip(*upper.values(), strict=True)]
                    for i in chosen:
                        above[i].step(mean)
                else:
                    for i in found:
                        above[i].step(upper[i])
        whole = by_size(world, {i: state(model) for i, model in models.items()})
    return Outcome(whole, {}, scored(world, lambda i: world.model(whole)))
