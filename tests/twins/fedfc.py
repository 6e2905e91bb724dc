"""FedFC: Chung et al. 2023, Algorithms 1 to 3."""

import torch
from torch.nn.functional import cross_entropy

from tests.twins.common import Sgd, rounds, scored, state, usable
from tests.twins.harness import Outcome

SETTINGS = {
    "plain": 'fedfc.cuts="1,2,3,2,1"',
    "momentum": 'fedfc.cuts="2,1,3,2,2" fedfc.weighting=samples fedfc.oversample=true',
}


def iteration(cuts, models, server, joined):
    """Return the loss of some clients' batches, whose smashed data join at their clients' cuts."""
    smashed, parts, labels = {i: models[i][: cuts[i]](x) for i, (x, _) in joined.items()}, [], []
    for depth, layer in enumerate(server):
        here = [i for i in joined if cuts[i] == depth]
        parts += [smashed[i] for i in here]
        labels += [joined[i][1] for i in here]
        parts = [layer(torch.cat(parts))] if parts else []
    return cross_entropy(parts[0], torch.cat(labels))


def a_round(world, t, chosen, cuts, whole, lr):
    """Return the mean over all trained copies of each layer."""
    models = {i: world.model(whole).train() for i in chosen}
    server, low = world.model(whole).train(), min(cuts[i] for i in chosen)
    held = {i: world.names[: cuts[i]] for i in chosen} | {"server": world.names[low:]}
    copies = {**models, "server": server}

    def parameters(who):
        return [p for n in held[who] for p in copies[who].get_submodule(n).parameters()]

    sgd = {who: Sgd(world, parameters(who), lr) for who in copies}
    passed = dict.fromkeys(world.names, 0)  # samples, through the server's copy of each layer
    for e in range(world.s.local_epochs):
        own = {i: world.batches("train", t, i, 1, e) for i in chosen}
        longest = max(map(len, own.values()))
        own = {i: usable(server, b) for i, b in own.items()}
        if world["fedfc.oversample"]:
            own = {i: [b[k % len(b)] for k in range(longest)] for i, b in own.items()}
        for k in range(max(map(len, own.values()))):
            joined = {i: b[k] for i, b in own.items() if k < len(b)}
            loss = iteration(cuts, models, server, joined)
            who = [*joined, "server"]
            flat = [p for one in who for p in parameters(one)]
            found = iter(torch.autograd.grad(loss, flat, allow_unused=True))
            for one in who:
                gradients = [next(found) for _ in parameters(one)]
                if all(g is not None for g in gradients):
                    sgd[one].step(gradients)
            for depth, name in enumerate(world.names):
                passed[name] += sum(len(y) for i, (_, y) in joined.items() if cuts[i] <= depth)
    new, by_samples = {}, world["fedfc.weighting"] == "samples"
    for name in world.names:
        who = [one for one in copies if name in held[one]]
        seen = passed[name] / world.s.local_epochs
        sizes = {one: seen if one == "server" else world.size(one) for one in who}
        total = sum(sizes.values()) if by_samples else len(who)
        states = {one: state(copies[one], world.keys([name])) for one in who}
        for key in world.keys([name]):
            parts = ((sizes[one] if by_samples else 1) * states[one][key].double() for one in who)
            new[key] = (sum(parts) / total).float()
    return new


def fedfc(world):
    """Clients hold the first layers; the server runs the rest on all features joined."""
    text = world["fedfc.cuts"]
    usual = min(4, len(world.names) // 2)
    cuts = [*map(int, text.split(","))] if text else [usual] * len(world.clients)
    whole = world.initial
    for t, chosen, lr in rounds(world):
        whole = a_round(world, t, chosen, cuts, whole, lr)
    return Outcome(whole, {}, scored(world, lambda i: world.model(whole)))
