"""kNN-Per: what is scored and written; its twin has the formulas."""

import pytest
import torch

from clients.knnper import KNNPerClient
from fedapps.core import config
from fedapps.device import personalized
from fedapps.method import rehearse
from fedapps.models.layers import put
from strategies.knnper import KNNPer


def test_the_shared_model_is_scored_alone_too(small, flat_config):
    keys = 'strategy="knnper" knnper.capacity=7 knnper.weight=1.0'
    run = rehearse(KNNPer, KNNPerClient, config.read(flat_config(small, keys)))
    run.rounds(2)
    told, client = run.evaluate(client=1), run.make(1)
    put(client.model, run.strategy.arrays)
    x, y = client.test_data
    for name, model in (("global", client.model.eval()), ("accuracy_initial", client.predict)):
        right = float((model(x).argmax(1) == y).double().mean())
        assert told[name] == pytest.approx(right)
    assert told["global"] != told["accuracy_initial"] == told["accuracy_personalized"]


def test_a_written_model_has_its_datastore(small, flat_config, tmp_path):
    flat = flat_config(small, 'strategy="knnper" model="mlp" knnper.capacity=30')
    run = rehearse(KNNPer, KNNPerClient, config.read(flat))
    run.rounds(1)
    client = run.make(0)
    put(client.model, run.strategy.arrays)
    personalized.save(tmp_path / personalized.FILE, client)
    loaded = personalized.load(tmp_path)
    images, _ = client.test_data
    with torch.no_grad():
        torch.testing.assert_close(loaded.module(images), client.predict(images))
    assert int((loaded.module.labels >= 0).sum()) == min(30, len(client.train_data[1]))
