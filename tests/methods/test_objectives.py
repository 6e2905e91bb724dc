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
from tests.support.references import (
    assert_close,
    final,
    grad,
    moved,
    reference,
    sgd,
)


def test_feddyn(small, serial_run, flat_config, fits, read_model):
    """`prox-mu` pulls to w, too, but the memories know alpha alone."""
    alpha, mu = 0.3, 0.05
    options = f'strategy="feddyn" feddyn.strength={alpha} prox-mu={mu} num-rounds=3'
    folder = serial_run(small, options)
    ref = reference(flat_config, small, options)
    w = ref.start
    zero = {k: torch.zeros_like(v) for k, v in w.items()}
    g, h = [zero, zero], zero
    for round_ in (1, 2, 3):
        thetas = []
        for i in (0, 1):

            def gradient(p, x, y, w=w, memory=g[i]):
                pull = moved(moved(p, w, -1), memory, -1 / alpha)  # alpha (p - w) - g_i
                return moved(moved(grad(p, x, y), pull, alpha), moved(p, w, -1), mu)

            thetas.append(sgd(w, ref.batches(i, round_), gradient))
        g = [moved(g[i], moved(thetas[i], w, -1), -alpha) for i in (0, 1)]
        mean = ref.mean(thetas, plain=True)
        h = moved(h, moved(mean, w, -1), -alpha)
        w = moved(mean, h, -1 / alpha)
    assert_close(read_model(folder), w)
    for client in (0, 1):
        assert_close(final(fits, client)[0], g[client], "g/")


@pytest.mark.parametrize("privacy", ["", ' dp.mode="local" dp.clip-norm=0.1'])
def test_feddyn_hbar_is_the_mean_of_all_memory(tiny_npz, serial_run, fits, strategy, privacy):
    serial_run(tiny_npz, 'strategy="feddyn" num-rounds=5' + privacy)
    memories = {client.client: state for client, state, *_ in fits}
    means = {k: v for k, v in strategy[-1].state.items() if k.startswith("hbar/")}
    assert means
    for name, hbar in means.items():
        key = name.replace("hbar/", "g/")
        total = sum(state[key].numpy() for state in memories.values())
        np.testing.assert_allclose(hbar, total / 6, atol=1e-12, rtol=0)


def test_dittos_w_is_fedavgs(tiny_npz, serial_run):
    one, two = (serial_run(tiny_npz, f'strategy="{m}"') for m in ("ditto", "fedavg"))
    assert (one / "model.safetensors").read_bytes() == (two / "model.safetensors").read_bytes()


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
