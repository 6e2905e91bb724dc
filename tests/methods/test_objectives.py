"""FedDyn's objective against a few lines of its own; facts of Ditto and FedRoD."""

from collections import OrderedDict
from math import prod

import numpy as np
import pytest
import torch
from torch import nn

from fedapps import models
from fedapps.models.blocks import of_images
from tests.support.methods import rehearsal_of
from tests.support.references import final


def test_feddyn_hbar_is_the_mean_of_all_memory(serial_run, fits, strategy):
    """Also of what gets noise."""
    serial_run('strategy="feddyn" num-rounds=3 dp.mode="local" dp.clip-norm=0.1')
    memories = {client.client: state for client, state, *_ in fits}
    means = {k: v for k, v in strategy[-1].state.items() if k.startswith("hbar/")}
    assert means
    for name, hbar in means.items():
        key = name.replace("hbar/", "g/")
        total = sum(state[key].numpy() for state in memories.values())
        np.testing.assert_allclose(hbar, total / 6, atol=1e-12, rtol=0)


def test_fedrods_body_does_not_depend_on_the_personal_head(small, serial_run, read_model, fits):
    """With a class that only the other client has: its prior of -inf is no NaN. And clipped."""
    options = 'strategy="fedrod" max-norm=0.5 partitioner="classes" classes-per-client="0-1/2,1"'
    one = read_model(serial_run(small, options))
    before = final(fits, 0)[0]["personal/head.weight"]
    with pytest.MonkeyPatch.context() as patch:
        cls = type(fits[0][0])
        patch.setattr(cls, "kept", lambda self, prefix="": {})  # personal heads start anew
        two = read_model(serial_run(small, options))
    assert not torch.equal(before, final(fits, 0)[0]["personal/head.weight"])
    for key, value in one.items():
        assert np.isfinite(value).all()
        np.testing.assert_array_equal(value, two[key])


def test_fedrods_personal_head_trains_its_batchnorms(tiny_npz, monkeypatch):
    """After a single step its running mean is a tenth of the mean that went in."""

    def make(shape, classes):
        body = nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), 4))
        hidden = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU())
        return nn.Sequential(OrderedDict(body=body, hidden=hidden, out=nn.Linear(5, classes)))

    monkeypatch.setitem(models.MODELS, "normed-head", of_images(make))
    keys = 'strategy="fedrod" model="normed-head" head-layers=2 local-epochs=1'
    run = rehearsal_of("fedrod", f"{tiny_npz.replace('=8', '=1000')} {keys}")
    client = run.make(0)
    with torch.no_grad():
        inputs = client.model.hidden[0](client.model.body(client.train_data[0]))
    run.train(0, run.strategy.plan(1, 0))
    found = run.clients[0]["personal/hidden.1.running_mean"]
    torch.testing.assert_close(found, 0.1 * inputs.mean(0), rtol=1e-4, atol=1e-6)
