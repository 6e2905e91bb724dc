"""APFL: Deng, Kamani, Mahdavi 2020, Algorithm 1 and Section 4.2 (docs/papers/apfl.md)."""

import torch

from tests.twins.common import Sgd, asking, loss_of, outputs, plainly, rounds, state, usable
from tests.twins.harness import Outcome

SETTINGS = {
    "plain": "apfl.initial-alpha=0.3 apfl.alpha-steps=batch",
    "momentum": "apfl.alpha-steps=round",
}


def local_steps(world, w, mine, batches, lr):
    """Train w, and what a client keeps: v (with the statistics of vbar) and alpha, in place."""
    v, alpha = world.model(mine["v"]), mine["alpha"]
    vbar = world.model(mine["v"])
    for model in (w, vbar):
        model.train()
    of_w, of_v = Sgd(world, w.parameters(), lr), Sgd(world, v.parameters(), lr)
    for step, (x, y) in enumerate(usable(w, batches)):
        with torch.no_grad():
            for mixed, a, b in zip(*(m.parameters() for m in (vbar, v, w)), strict=True):
                mixed.copy_(alpha * a + (1 - alpha) * b)
        g = torch.autograd.grad(loss_of(w, x, y), asking(w))
        big = torch.autograd.grad(loss_of(vbar, x, y), asking(vbar))
        triples = zip(v.parameters(), w.parameters(), big, strict=True)
        slope = sum(float(((a - b).detach() * c).sum()) for a, b, c in triples)
        of_w.step(g)
        of_v.step([alpha * c for c in big])
        if step == 0 or world["apfl.alpha-steps"] == "batch":
            alpha = min(1.0, max(0.0, alpha - lr * slope))
    statistics = {k: t for k, t in state(vbar).items() if "running" in k}
    mine |= {"v": state(v) | statistics, "alpha": alpha}
    w.eval()


def apfl(world):
    """w as in FedAvg with a plain mean; each client predicts with alpha v + (1 - alpha) w."""
    new = {"v": world.initial, "alpha": world["apfl.initial-alpha"]}
    server, kept = world.initial, {}
    for t, chosen, lr in rounds(world):
        sent = {}
        for i in chosen:
            w, mine = world.model(server), kept.setdefault(i, dict(new))
            local_steps(world, w, mine, world.training(t, i), lr)
            sent[i] = state(w)
        server = plainly(sent)
    scores = {}
    for i in world.clients:
        v, alpha = (kept.get(i, new)[name] for name in ("v", "alpha"))
        mixed = {k: v[k] if "running" in k else alpha * v[k] + (1 - alpha) * server[k] for k in v}
        scores[i] = (outputs(world, world.model(mixed), i),) * 2
    own = {
        i: {f"mine/{k}": t for k, t in mine["v"].items()}
        | {"mine/alpha": torch.tensor(mine["alpha"])}
        for i, mine in kept.items()
    }
    return Outcome(server, own, scores)
