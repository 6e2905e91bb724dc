"""FedEM: Marfoq et al. 2021, Algorithm 1 (docs/papers/fedem.md)."""

import torch
from torch.nn.functional import cross_entropy

from tests.twins.common import asking, by_size, rounds, trained, under
from tests.twins.harness import Outcome

SETTINGS = {"momentum": "fedem.components=2"}


@torch.no_grad()
def e_step(world, i, components, pi):
    """Return q [n_i, M]: which component each training sample is from."""
    x, y = world.data(i)
    losses = [cross_entropy(world.model(own)(x), y, reduction="none") for own in components]
    return (pi.log() - torch.stack(losses, 1).double()).softmax(1)


def weighted(q, y):
    """Return the gradients of (1/b) sum_s q_s l_s, for batches that name samples by their place."""

    def gradients(model, x, places):
        losses = cross_entropy(model(x), y[places], reduction="none")
        return torch.autograd.grad((q[places] * losses).mean(), asking(model))

    return gradients


def m_step(world, t, i, m, own, q, lr):
    """Return component m (from 1) after training on client i."""
    (x, y), phase = world.data(i), "train" if m == 1 else f"component{m}"
    orders = [world.order(phase, t, i, e) for e in range(world.s.local_epochs)]
    batches = [(x[some], some) for order in orders for some in order.split(world.s.batch_size)]
    return trained(world, world.model(own), batches, lr, weighted(q.float(), y))


def started(world):
    """Return M components: the initial model, and copies with the entries in other orders."""
    found = [world.initial]
    for m in range(2, world["fedem.components"] + 1):
        draws, keys = world.generator("fedem", m), world.keys(world.names)
        arrays = {k: world.initial[k].numpy() for k in keys}
        made = {k: draws.permutation(a.ravel()).reshape(a.shape) for k, a in arrays.items()}
        found.append({k: torch.from_numpy(a) for k, a in made.items()})
    return found


def fedem(world):
    """Clients train M shared models, and mix their probabilities by weights of their own."""
    components, kept = started(world), {}
    equal = torch.full((len(components),), 1 / len(components), dtype=torch.double)
    for t, chosen, lr in rounds(world):
        sent = {}
        for i in chosen:
            q = e_step(world, i, components, kept.get(i, equal))
            kept[i] = q.mean(0)
            sent[i] = [
                m_step(world, t, i, m + 1, own, q[:, m], lr) for m, own in enumerate(components)
            ]
        components = [
            by_size(world, {i: own[m] for i, own in sent.items()}) for m in range(len(components))
        ]
    scores = {}
    for i in world.clients:
        pi = kept[i] if i in kept else e_step(world, i, components, equal).mean(0)
        with torch.no_grad():
            x = world.data(i, "test")[0]
            parts = [world.model(own)(x).softmax(1) for own in components]
        out = sum(p * part for p, part in zip(pi, parts, strict=True)).log()
        scores[i] = (out, out)
    return Outcome(components[0], under("em/", {i: {"pi": pi} for i, pi in kept.items()}), scores)
