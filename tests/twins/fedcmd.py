"""FedCMD: Chen et al., Algorithms 2 and 3, Eq. 6."""

from collections import Counter

import torch
from torch.nn.functional import one_hot

from tests.twins.common import by_size, fit, rounds, scored, state, under
from tests.twins.harness import Outcome

SETTINGS = {
    "plain": "fedcmd.selection-fraction=0.34",
    "momentum": "fedcmd.selection-fraction=0.34 fedcmd.candidates=all fedcmd.label-encoding=onehot "
    "fedcmd.weighting=uniform",
}


def gaussian(values):
    return values.double().mean(), values.double().std(correction=0)


def scaled(values):
    low, high = values.min(), values.max()
    return (values - low) / (high - low) if high > low else torch.zeros_like(values)


def w2(a, b):
    return float(((a[0] - b[0]) ** 2 + (a[1] - b[1]) ** 2).sqrt())


@torch.no_grad()
def vote(world, model, client, candidates):
    """Return the candidate with the smallest score s_l; ties go to the later layer."""
    x, y = world.data(client)
    classes = world.initial[world.keys(world.head)[-1]].numel()
    index = world["fedcmd.label-encoding"] == "index"
    of_y = gaussian(y / (classes - 1) if index else one_hot(y, classes))
    of_x, apart, out = gaussian(scaled(x)), {}, x
    for name, layer in model.named_children():
        out = layer(out)
        z = gaussian(scaled(out))
        apart[name] = w2(z, of_y) - w2(z, of_x)
    before = dict(zip(world.names[1:], world.names[:-1], strict=True))
    scores = {name: abs(apart[name] - apart[before[name]]) for name in candidates}
    return min(reversed(candidates), key=scores.__getitem__)


def most(votes, names):
    counts = Counter(votes)
    return max(reversed(names), key=lambda name: counts[name])


class Second:
    """Phase 2: the layer l* stays; layers after it are mixed by the clients' similarity."""

    def __init__(self, world, layer):
        place = world.names.index(layer)
        self.own, self.after = world.keys([layer]), world.keys(world.names[place + 1 :])
        self.cosine = world["fedcmd.weighting"] == "cosine"
        self.phi, self.omega = {}, {}

    def mixture(self, i):
        """Return the layers after l* for a client; nothing if it gets the mean."""
        if not (self.cosine and self.omega and i in self.phi):
            return {}
        weights = {j: self.similarity(i, j) for j in self.omega}
        total = sum(weights.values())
        pairs = [(weights[j] / total, self.omega[j]) for j in self.omega]
        return {k: sum(w * omega[k].double() for w, omega in pairs).float() for k in self.after}

    def similarity(self, i, j):
        a, b = (torch.cat([v.double().flatten() for v in self.phi[c].values()]) for c in (i, j))
        return 1.0 if i == j else max(0.0, float(a @ b / (a.norm() * b.norm() + 1e-8)))


def fedcmd(world):
    """Clients vote for the personal layer in rounds of FedAvg, and then keep it."""
    only_fc = world["fedcmd.candidates"] == "fc"
    candidates = [n for n in world.names[1:] if not only_fc or n.startswith(("fc", "head"))]
    first = int(world["fedcmd.selection-fraction"] * world.s.num_rounds)
    server, kept, chosen_layers, second = world.initial, {}, [], None
    for t, chosen, lr in rounds(world):
        if t == first + 1:
            second = Second(world, most(chosen_layers, world.names))
        sent, votes = {}, []
        for i in chosen:
            model = world.model(server, second.mixture(i) if second else {}, kept.get(i, {}))
            fit(world, model, world.names, world.training(t, i), lr)
            sent[i] = state(model)
            if second:
                kept[i] = state(model, second.own)
            else:
                votes.append(vote(world, model, i, candidates))
        if second:
            second.phi |= {i: kept[i] for i in chosen}
            second.omega = {i: {k: sent[i][k] for k in second.after} for i in chosen}
        else:
            chosen_layers.append(most(votes, world.names))
        mean = by_size(world, sent)
        stays = second.own if second else []
        server = server | {k: v for k, v in mean.items() if k not in stays}
    scores = scored(world, lambda i: world.model(server, second.mixture(i), kept.get(i, {})))
    return Outcome(server, under("model/", kept), scores)
