"""pFedMe: Dinh, Tran, Nguyen 2020, Algorithm 1 (docs/papers/pfedme.md)."""

import torch

from tests.twins.common import Sgd, asking, by_size, loss_of, rounds, scored, state, under, usable
from tests.twins.harness import Outcome

SETTINGS = {
    "plain": "pfedme.local-rounds=5 pfedme.inner-steps=2 lr=0.02",
    "momentum": "pfedme.local-rounds=0 pfedme.inner-steps=2 pfedme.beta=1.5 pfedme.lambda=2",
}


def local_rounds(world, t, i, received, lr):
    """Return w_{i,R} (with theta's statistics) and theta_i after R batches, K steps on each."""
    limit, pull = world["pfedme.local-rounds"], world["pfedme.lambda"]
    inner_lr = world["pfedme.inner-lr"] * lr / world.s.lr
    epochs = limit or world.s.local_epochs  # `limit` epochs have at least as many batches
    theta = world.model(received).train()
    w = [p.detach().clone() for p in theta.parameters()]
    line8 = Sgd(world, w, lr)  # a step of the run's optimizer; weight decay is part of f_i
    line8.decay = 0.0
    batches = usable(theta, world.batches("train", t, i, epochs))
    for x, y in batches[: limit or None]:
        for _ in range(world["pfedme.inner-steps"]):
            gradients = torch.autograd.grad(loss_of(theta, x, y), asking(theta))
            with torch.no_grad():
                for p, g, anchor in zip(theta.parameters(), gradients, w, strict=True):
                    p -= inner_lr * (g + world.s.weight_decay * p + pull * (p - anchor))
        pairs = zip(w, theta.parameters(), strict=True)
        line8.step([pull * (anchor - p.detach()) for anchor, p in pairs])
    names = (name for name, _ in theta.named_parameters())
    return state(theta) | dict(zip(names, w, strict=True)), state(theta)


def pfedme(world):
    """On clients, w moves towards theta_i; on the server, by beta towards the clients' mean."""
    server, kept, beta = world.initial, {}, world["pfedme.beta"]
    for t, chosen, lr in rounds(world):
        sent = {}
        for i in chosen:
            sent[i], kept[i] = local_rounds(world, t, i, server, lr)
        middle = by_size(world, sent)
        server = {
            k: v if "running" in k else (1 - beta) * server[k] + beta * v for k, v in middle.items()
        }
    scores = scored(world, lambda i: world.model(kept.get(i, {})), None)
    return Outcome(server, under("theta/", kept), scores)
