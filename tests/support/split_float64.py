"""Split learning in float64, and plain training to hold it against.

Clients run in threads and reach the server through the real channel on loopback; messages, which
are float32, are left out.
"""

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from itertools import pairwise

import numpy as np
import torch
from torch import nn

from fedapps.training.draw import Draw
from fedapps.training.run_data import RunData
from fedapps.training.workspace import Workspace
from tests.support.split_rounds import fit, opened

LR, MOMENTUM, BATCH = 0.05, 0.9, 8
CLOSE = {"rtol": 0, "atol": 1e-10}
SPLIT = ("fedfc", "sflv1", "sflv2", "splitlearning")


def four_linear(shape, classes):
    widths = [int(np.prod(shape)), 12, 10, 8]
    layers = [nn.Sequential(nn.Linear(a, b), nn.Tanh()) for a, b in pairwise(widths)]
    layers[0].insert(0, nn.Flatten())
    chain = {f"l{i}": layer for i, layer in enumerate([*layers, nn.Linear(8, classes)], 1)}
    model = nn.Sequential()
    for name, layer in chain.items():
        model.add_module(name, layer)
    return model


def four_with_norm(shape, classes):
    """The same with a BatchNorm in the third layer, which the server has."""
    model = four_linear(shape, classes)
    model.l3.insert(0, nn.BatchNorm1d(10))
    return model


class _Doubles(RunData):
    def _tensors(self, indices):
        images, labels = super()._tensors(indices)
        return images.double(), labels


def double(settings):
    """A workspace in float64."""
    return Workspace(settings, _Doubles(settings))


def play(strategy, rounds=1):
    """Play rounds; return the server's arrays in float64."""

    def one(round_):
        plans = opened(strategy, round_)
        together = len(plans) if split else 1  # without a channel they share the resident model
        with ThreadPoolExecutor(together) as threads:
            updates = list(threads.map(lambda c: fit(strategy, plans[c], c), plans))
        if split:
            strategy.served()
        strategy.arrays.update(strategy.aggregate(round_, iter(updates)))

    split = strategy.settings.strategy in SPLIT
    with strategy.running() if split else nullcontext():
        for round_ in range(1, rounds + 1):
            one(round_)
    return strategy.arrays


def batches(strategy, client, round_, epoch):
    """The batches of a client's epoch."""
    x, y = strategy.workspace.samples(client, "train")
    order = Draw(0, "train", round_, client).order(epoch, len(y))
    return [(x[chosen], y[chosen]) for chosen in order.split(BATCH)]


def sgd(parameters, buffers, lr=LR):
    """A step of SGD with momentum, written down."""
    with torch.no_grad():
        for key, p in parameters.items():
            if p.grad is None:
                continue
            old = buffers.get(key, torch.zeros_like(p))
            buffers[key] = MOMENTUM * old + p.grad
            p -= lr * buffers[key]
            p.grad = None


def fresh(strategy, arrays):
    """A model with these values, made anew."""
    model = four_linear(strategy.workspace.dataset.shape, strategy.workspace.dataset.classes)
    model.load_state_dict({key: torch.tensor(value) for key, value in arrays.items()})
    return model
