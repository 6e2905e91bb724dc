"""Split learning on a model of four linear layers in float64."""

import pytest
import torch

from fedapps import models
from fedapps.core import config, registry
from fedapps.models.blocks import of_images
from tests.support.split_float64 import LR, MOMENTUM, double, four_linear, four_with_norm
from tests.support.split_rounds import LONG


@pytest.fixture
def world(monkeypatch, flat_config, tiny_npz):
    """Return world(*run_config) -> a strategy in float64 on the model of four linear layers."""
    monkeypatch.setitem(models.MODELS, "four-linear", of_images(four_linear))
    monkeypatch.setitem(models.MODELS, "four-with-norm", of_images(four_with_norm))
    torch.set_default_dtype(torch.float64)

    def make(*run_config):
        base = (
            f'model="four-linear" fraction-train=1.0 lr={LR} momentum={MOMENTUM} '
            f"local-epochs=2 num-rounds=2 join-timeout={LONG} step-timeout={LONG}"
        )
        settings = config.read(flat_config(tiny_npz, "alpha=0.3", base, *run_config))
        strategy = registry.strategy_class(settings.strategy)(double(settings))
        return strategy

    yield make
    torch.set_default_dtype(torch.float32)
