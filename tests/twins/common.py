"""What several twins need: local SGD, means, fine-tuning; plain PyTorch, and nothing of ours."""

import copy
import math

import torch
from torch import nn
from torch.nn.functional import cross_entropy


def rounds(world):
    """Yield round (from 1), selected clients, learning rate (docs/notation.md, lr-schedule)."""
    assert world.s.lr_schedule in ("constant", "cosine") and world.s.optimizer == "sgd"
    for t in range(1, world.s.num_rounds + 1):
        cosine = 0.5 * (1 + math.cos(math.pi * (t - 1) / world.s.num_rounds))
        yield t, world.selected(t), world.s.lr * (cosine if world.s.lr_schedule == "cosine" else 1)


class Sgd:
    """v = momentum v + (g + weight_decay p); p -= lr v. New for every stage."""

    def __init__(self, world, parameters, lr):
        self.parameters = [*parameters]
        self.lr, self.momentum, self.decay = lr, world.s.momentum, world.s.weight_decay
        self.v = [torch.zeros_like(p) for p in self.parameters]

    @torch.no_grad()
    def step(self, gradients):
        for p, v, g in zip(self.parameters, self.v, gradients, strict=True):
            v.mul_(self.momentum).add_(g + self.decay * p)
            p.sub_(self.lr * v)


def loss_of(model, x, y):
    return cross_entropy(model(x), y)


def asking(model):
    return [p for p in model.parameters() if p.requires_grad]


def features(world, model, x):
    """Return the body's output, flattened, [n, d]."""
    for name in world.body:
        x = model.get_submodule(name)(x)
    return x.flatten(1)


def gradients_of(model, x, y, loss=loss_of):
    return torch.autograd.grad(loss(model, x, y), asking(model))


def unfrozen(model, layers):
    """Freeze all other layers (no gradient, eval mode); return the parameters of `layers`."""
    for name, layer in model.named_children():
        layer.requires_grad_(name in layers).train(name in layers)
    return asking(model)


def usable(model, batches):
    """Leave out batches of one sample if a BatchNorm that is trained would see one value."""
    lone = any(isinstance(m, nn.BatchNorm1d) and m.training for m in model.modules())
    return [(x, y) for x, y in batches if len(y) > 1 or not lone]


def fit(world, model, layers, batches, lr, gradients=gradients_of):
    """Train some layers in place: a step of SGD along `gradients(model, x, y)` for each batch."""
    sgd = Sgd(world, unfrozen(model, layers), lr)
    for x, y in usable(model, batches):
        sgd.step(gradients(model, x, y))
    return model.requires_grad_().eval()


def trained(world, model, batches, lr, gradients=gradients_of):
    """Train all layers, as `fit` does; return the state of the model."""
    return state(fit(world, model, world.names, batches, lr, gradients))


def pulled(mu, anchor, gradients=gradients_of):
    """Return gradients with those of (mu/2) ||p - anchor||^2 added; `anchor` has all parameters."""

    def sums(model, x, y):
        names = [name for name, p in model.named_parameters() if p.requires_grad]
        found, own = gradients(model, x, y), dict(model.named_parameters())
        return [g + mu * (own[k].detach() - anchor[k]) for k, g in zip(names, found, strict=True)]

    return sums


def clipped(limit, gradients=gradients_of):
    """Return gradients whose norm, of all arrays together, is at most `limit` (0: any)."""

    def shorter(model, x, y):
        found = gradients(model, x, y)
        norm = float(torch.cat([g.flatten() for g in found]).norm())
        return [g * min(1.0, limit / norm) for g in found] if limit else found

    return shorter


def held(world, anchor, gradients=gradients_of):
    """Return gradients with the run's pull to `anchor` (prox-mu), then clipped (max-norm)."""
    return clipped(world.s.max_norm, pulled(world.s.prox_mu, anchor, gradients))


def state(model, keys=None):
    """Return a copy of some entries of a model; by default of all but integer counters."""
    found = model.state_dict()
    keys = [k for k, v in found.items() if v.is_floating_point()] if keys is None else keys
    return {k: found[k].clone() for k in keys}


def mean(states, weights):
    """Return the weighted mean of states by client, in float64."""
    total = sum(weights[i] for i in states)

    def of(key):
        return sum(weights[i] * own[key].double() for i, own in states.items()) / total

    return {key: of(key).float() for key in next(iter(states.values()))}


def by_size(world, states):
    """Return the mean of the clients' states, weighted by n_i."""
    return mean(states, {i: world.size(i) for i in states})


def plainly(states):
    """Return the mean in which all clients have the same weight."""
    return mean(states, dict.fromkeys(states, 1))


def under(prefix, kept):
    """Return what clients keep, with a prefix before the names."""
    return {i: {prefix + k: v for k, v in own.items()} for i, own in kept.items()}


def finetuned(world, model, client):
    """Return the model after F epochs on the client's training samples, without a schedule."""
    layers = {"full": world.names, "head": world.head, "body": world.body}[world.s.finetune_part]
    batches = world.batches("finetune", world.s.num_rounds, client, world.s.finetune_epochs)
    return fit(world, copy.deepcopy(model), layers, batches, world.s.finetune_lr or world.s.lr)


@torch.no_grad()
def outputs(world, model, client):
    return model(world.data(client, "test")[0])


def scored(world, model_of, personalize=finetuned):
    """Return every client's outputs before and after personalization of `model_of(client)`."""
    found = {}
    for i in world.clients:
        model = model_of(i)
        after = personalize(world, model, i) if personalize else model
        found[i] = (outputs(world, model, i), outputs(world, after, i))
    return found
