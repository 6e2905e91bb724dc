"""FedDBE: Zhang et al. 2023, with the authors' running mean (docs/papers/feddbe.md)."""

import torch
from torch.nn.functional import cross_entropy

from tests.twins.common import Sgd, by_size, held, rounds, state, unfrozen, usable
from tests.twins.harness import Outcome

SETTINGS = {
    "plain": "head-layers=4 feddbe.kappa=5",
    "momentum": "feddbe.mean-momentum=0.3 feddbe.kappa=2 prox-mu=0.2 max-norm=0.8",
}


def trained(world, model, memory, batches, lr, target=None):
    """Train the model in place; return r_i and, with a `target` for r_i, the trained memory."""
    size, mu = len(world.body), world["feddbe.mean-momentum"]
    memory, r, anchor = memory.clone().requires_grad_(), 0.0, state(model)
    of_model, of_memory = Sgd(world, unfrozen(model, world.names), lr), Sgd(world, [memory], lr)
    for x, y in usable(model, batches):
        z = model[:size](x)
        r = (1 - mu) * r + mu * z.mean(0)
        loss = cross_entropy(model[size:](z + memory), y)
        if target is not None:
            loss = loss + world["feddbe.kappa"] / 2 * ((r - target) ** 2).mean()
        *found, of_z = torch.autograd.grad(loss, [*of_model.parameters, memory])
        rule = held(world, anchor, lambda *_, found=found: found)
        of_model.step(rule(model, x, y))
        if target is not None:
            of_memory.step([of_z])
        r = r.detach()
    model.eval()
    return r, memory.detach()


def feddbe(world):
    """FedAvg; each client adds a memory to its features, whose mean stays near a shared one."""
    size, server, kept, target = len(world.body), world.initial, {}, None
    zero = torch.zeros_like(world.model()[:size](world.data(0)[0][:1])[0])
    for t, chosen, lr in rounds(world):
        sent = {}
        for i in world.clients if t == 1 else chosen:
            batches = world.batches("train", t, i, 1 if t == 1 else world.s.local_epochs)
            model, old = world.model(server), kept.get(i, zero)
            r, memory = trained(world, model, old, batches, lr, target)
            sent[i] = {"r": r} if t == 1 else state(model)
            kept |= {i: memory} if t > 1 else {}
        if t == 1:
            target = by_size(world, sent)["r"]
        else:
            server = by_size(world, sent)
    scores = {}
    for i in world.clients:
        model = world.model(server)
        with torch.no_grad():
            z = model[:size](world.data(i, "test")[0])
            scores[i] = (model[size:](z + kept.get(i, zero)),) * 2
    return Outcome(server, {i: {"memory/z": z} for i, z in kept.items()}, scores)
