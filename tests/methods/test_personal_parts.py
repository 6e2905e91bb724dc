"""LG-FedAvg, FedPer and FedBN: what stays with a client, and who guards it."""

import msgspec
import numpy as np
import pytest
from torch import nn

from fedapps.core import registry
from fedapps.core.errors import RunError


def test_lg_fedavg_and_fedper_are_opposites(serial_run, fits, read_rounds):
    low = "conv1,conv2,fc1"
    one = serial_run('strategy="lgfedavg"')
    two = serial_run(f'strategy="fedper" fedper.personal-layers="{low}"')
    assert (one / "model.safetensors").read_bytes() == (two / "model.safetensors").read_bytes()
    assert (one / "clients.csv").read_bytes() == (two / "clients.csv").read_bytes()
    serial_run('strategy="fedper"')
    names = {key.partition(".")[0] for key in fits[-1][3].arrays}
    assert names == set(low.split(","))  # FedPer sends what LG-FedAvg keeps
    assert [row["bytes_up"] for row in read_rounds(one)] == [4 * 5_130 * 3] * 2


def test_lg_fedavg_after_a_warm_up(serial_run, fits, read_rounds, read_model):
    folder = serial_run('strategy="lgfedavg" lgfedavg.warmup-rounds=1 num-rounds=4')
    everything, last = 4 * 188_810, 4 * 5_130
    rows, seen = read_rounds(folder), set()
    for row in rows[1:]:
        clients = {f[0].client for f in fits if f[2].plan.round == row["round"]}
        fresh = clients - seen
        seen |= clients
        assert row["bytes_down"] == len(fresh) * everything + (3 - len(fresh)) * last
        assert row["bytes_up"] == 3 * last
    assert rows[0]["bytes_up"] == 3 * everything and rows[0]["phase"] == "train-warmup"
    missing = 6 - len(seen)  # evaluated with the warm-up's layers, which they lack
    assert rows[-1]["bytes_eval"] == missing * everything + (6 - missing) * last
    warm = read_model(serial_run('strategy="fedavg" num-rounds=1'))
    for key, value in read_model(folder).items():
        assert np.array_equal(value, warm[key]) == (not key.startswith("fc2."))


def test_fedbn_keeps_batchnorms(serial_run, fits):
    serial_run('strategy="fedbn" model="lenet5"')
    client, state, _, update = fits[-1]
    modules = dict(client.model.named_modules())
    norms = {
        key
        for key in client.workspace.initial
        if isinstance(modules[key.rpartition(".")[0]], nn.BatchNorm2d)
    }
    assert len(norms) == 8
    assert {key.removeprefix("model/") for key in state} == norms
    assert set(update.arrays) == set(client.workspace.initial) - norms
    option = serial_run('strategy="fedbn" model="lenet5"')
    general = serial_run('strategy="fedavg" model="lenet5" bn-local=true')
    assert (option / "clients.csv").read_bytes() == (general / "clients.csv").read_bytes()


@pytest.mark.parametrize("layer", ["fc2", "fc2:rest", "fc2:norms", "conv1"])
def test_a_client_guards_its_personal_layers(serial_run, monkeypatch, layer):
    plan = registry.strategy_class("fedper").plan

    def curious(self, round_, client):
        return msgspec.structs.replace(plan(self, round_, client), upload=(layer,))

    monkeypatch.setattr(registry.strategy_class("fedper"), "plan", curious)
    if layer in ("fc2", "fc2:rest"):
        with pytest.raises(RunError, match=r"the plan uploads fc2.*personal layers"):
            serial_run('strategy="fedper"')
    else:
        serial_run('strategy="fedper"')


def test_fedbns_client_guards_its_batchnorms(serial_run, monkeypatch):
    plan = registry.strategy_class("fedbn").plan

    def curious(self, round_, client):
        return msgspec.structs.replace(plan(self, round_, client), upload=("conv1",))

    monkeypatch.setattr(registry.strategy_class("fedbn"), "plan", curious)
    with pytest.raises(RunError, match=r"the plan uploads conv1.*personal layers"):
        serial_run('strategy="fedbn" model="lenet5"')
