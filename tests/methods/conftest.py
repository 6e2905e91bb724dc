"""Tiny runs of two clients, and the strategies that ran them."""

from functools import partial

import pytest
import torch
from torch import nn

from fedapps import models
from fedapps.method.flower import BaseStrategy
from fedapps.models.blocks import of_images
from tests.support.references import LR, two_linear


@pytest.fixture
def serial_run(serial_run, tiny_npz):
    """The `serial_run` of all tests, on the tiny images."""
    return partial(serial_run, tiny_npz)


@pytest.fixture
def small(monkeypatch, tiny_npz):
    """Run-config of two clients and the model of two linear layers."""
    monkeypatch.setitem(models.MODELS, "two-linear", of_images(two_linear))
    return (
        f'{tiny_npz} model="two-linear" num-clients=2 fraction-train=1.0 lr={LR} '
        "num-rounds=2 finetune-epochs=0 evaluate-every=0"
    )


@pytest.fixture
def strategy(monkeypatch):
    """The strategies that have run, the last one last."""
    seen, start = [], BaseStrategy.start

    def remember(self, *args, **kwargs):
        seen.append(self)
        return start(self, *args, **kwargs)

    monkeypatch.setattr(BaseStrategy, "start", remember)
    return seen


@pytest.fixture
def unused_branch(monkeypatch):
    """A model with a branch that no batch uses, as the experts of a mixture without samples."""

    class Branches(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.used, self.unused = nn.Linear(width, width), nn.Linear(width, width)

        def forward(self, x):
            return self.used(x) if x.numel() else self.unused(x)

    def make(shape, classes):
        body = nn.Sequential(nn.Flatten(), nn.Linear(torch.Size(shape).numel(), 4))
        return nn.Sequential(body, Branches(4), nn.Linear(4, classes))

    monkeypatch.setitem(models.MODELS, "unused-branch", of_images(make))
    return 'model="unused-branch"'
