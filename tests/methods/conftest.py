"""Tiny runs of two clients, and the strategies that ran them."""

import pytest

from fedapps import models
from fedapps.method.flower import BaseStrategy
from fedapps.models.blocks import of_images
from tests.support.references import LR, two_linear


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
