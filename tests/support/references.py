"""FedAvg in a few lines, to hold what the twins do not have against.

Two clients, a model of two linear layers, float64 and plain autograd; nothing is shared with the
trainer but the data and the order of the samples.
"""

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fedapps.core import config
from fedapps.training.draw import Draw
from fedapps.training.workspace import Workspace

LR, BATCH = 0.05, 8
BODY = 64 * 4 + 4  # floats of each layer
HEAD = 4 * 3 + 3
ALL = BODY + HEAD


def two_linear(shape, classes):
    model = nn.Sequential()
    model.add_module("body", nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), 4)))
    model.add_module("head", nn.Linear(4, classes))
    return model


class Reference:
    """Two clients' data and plain SGD on dicts of float64 tensors."""

    def __init__(self, space):
        self.space = space
        self.start = {k: torch.from_numpy(v).double() for k, v in space.initial.items()}

    def data(self, client):
        x, y = self.space.samples(client, "train")
        return x.double(), y

    def batches(self, client, round_):
        x, y = self.data(client)
        order = Draw(0, "train", round_, client).order(0, len(y))
        return [(x[chosen], y[chosen]) for chosen in order.split(BATCH)]

    def mean(self, values):
        weights = [len(self.data(client)[1]) for client in (0, 1)]
        return {
            k: sum(w * v[k] for w, v in zip(weights, values, strict=True)) / sum(weights)
            for k in values[0]
        }


def grad(p, x, y):
    p = {k: v.clone().requires_grad_() for k, v in p.items()}
    z = x.flatten(1) @ p["body.1.weight"].T + p["body.1.bias"]
    loss = cross_entropy(z @ p["head.weight"].T + p["head.bias"], y)
    return dict(zip(p, torch.autograd.grad(loss, [*p.values()]), strict=True))


def moved(p, direction, scale):
    return {k: v + scale * direction[k] for k, v in p.items()}


def sgd(p, batches, gradient):
    for x, y in batches:
        p = moved(p, gradient(p, x, y), -LR)
    return p


def assert_close(arrays, expected):
    assert expected.keys() == arrays.keys()
    for key, value in expected.items():
        np.testing.assert_allclose(arrays[key], value.numpy(), rtol=1e-4, atol=2e-6)


def reference(flat_config, *options):
    return Reference(Workspace(config.read(flat_config(*options))))


def final(fits, client):
    """State and update of a client after its last round."""
    return [(state, update) for one, state, _, update in fits if one.client == client][-1]
