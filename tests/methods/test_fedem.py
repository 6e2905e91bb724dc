"""FedEM: what is written, newcomers, and what begins anew; its twin has the formulas."""

import math

import numpy as np
import torch
from torch import nn

from clients.fedem import FedEMClient
from fedapps import models
from fedapps.core import config
from fedapps.device import personalized
from fedapps.method import rehearse
from fedapps.method.local import begin, receive
from fedapps.models.blocks import of_images
from fedapps.models.layers import as_sent
from strategies.fedem import FedEM


def test_a_written_model_is_the_mixture(small, flat_config, tmp_path):
    run = rehearse(
        FedEM, FedEMClient, config.read(flat_config(small, 'strategy="fedem" model="mlp"'))
    )
    run.rounds(2)
    client, plan = run.make(0), run.strategy.evaluation_plan(2, 0)
    receive(client, plan, run.strategy.download(2, 0, plan))
    personalized.save(tmp_path / personalized.FILE, client)
    loaded = personalized.load(tmp_path)
    images, _ = client.test_data
    with torch.no_grad():
        expected = client.predict(images)
        torch.testing.assert_close(loaded.module(images), expected)
        torch.testing.assert_close(expected.exp().sum(1), torch.ones(len(images)))
    assert len({float(part.fc2.fc.weight.sum()) for part in loaded.module.components}) == 3


def test_components_have_the_constants_of_the_model_in_their_places(tiny_npz, monkeypatch):
    def make(shape, classes):
        body = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 4))
        body.register_buffer("places", torch.linspace(-1, 1, 5))
        return nn.Sequential(body, nn.Linear(4, classes))

    monkeypatch.setitem(models.MODELS, "constants", of_images(make))
    made = rehearse(FedEM, FedEMClient, f'{tiny_npz} strategy="fedem" model="constants"').strategy
    for m in range(2, 1 + made.options.components):
        same = {k for k, v in made.arrays.items() if np.array_equal(v, made.state[f"c/{m}/{k}"])}
        assert same - {"1.bias"} == {"0.places"}  # three entries can get the order that they have
        for key, value in made.arrays.items():
            entries = np.sort(made.state[f"c/{m}/{key}"], axis=None)
            np.testing.assert_array_equal(entries, np.sort(value, axis=None))


def test_a_newcomer_first_trains_batchnorm_statistics_that_stay_on_clients():
    keys = 'strategy="fedem" model="lenet5" bn-stats="local" num-clients=4 unseen-clients="3"'
    run = rehearse(FedEM, FedEMClient, f"{keys} local-epochs=1 fedem.components=2")
    run.rounds(1)
    plan = run.strategy.newcomer_plan(1, 3)
    assert plan.stages and plan.receives
    client = run.make(3)
    before = client.module().state_dict()
    told = client.evaluate_round(plan, as_sent(run.strategy.newcomer_download(1, 3, plan))).metrics
    assert told["finetune_batches"] > 0 and np.isfinite(told["loss"])
    moved = {k for k, v in client.module().state_dict().items() if not torch.equal(v, before[k])}
    norms = {k for k in moved if k.startswith("components.0.") and "running_" in k}
    assert norms  # those of the first component, which is the run's model


def test_in_a_devices_next_run_the_weights_begin_anew(small, flat_config):
    """The components are other ones, so weights of an earlier run say nothing of them."""
    text = flat_config(small, 'strategy="fedem" model="lenet5" bn-stats="local"')
    run = rehearse(FedEM, FedEMClient, config.read(text))
    run.rounds(1)
    client = run.make(0)
    assert {name.partition("/")[0] for name in client.state} == {"em", "model", "norms2", "norms3"}
    begin(client)
    assert {name.partition("/")[0] for name in client.state} == {"model"}
