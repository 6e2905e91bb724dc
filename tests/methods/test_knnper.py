"""kNN-Per: what a client predicts, in NumPy, from the model and its training samples."""

import numpy as np
import pytest
import torch

from clients.knnper import KNNPerClient
from fedapps.core import config
from fedapps.device import personalized
from fedapps.method import rehearse
from fedapps.models.layers import put
from strategies.knnper import KNNPer


def softmax(z):
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


@pytest.mark.parametrize(("k", "capacity"), [(3, 1000), (10, 7), (50, 20)])
def test_probabilities_are_those_of_the_equations(small, flat_config, k, capacity):
    keys = f"knnper.k={k} knnper.capacity={capacity} knnper.weight=0.3 knnper.scale=0.5"
    run = rehearse(
        KNNPer, KNNPerClient, config.read(flat_config(small, f'strategy="knnper" {keys}'))
    )
    run.rounds(2)
    client = run.make(1)
    put(client.model, run.strategy.arrays)
    p = {key: value.astype(float) for key, value in run.strategy.arrays.items()}
    (x, y), (asked, labels) = client.train_data, client.test_data
    chosen = client.chosen(len(y)).numpy()
    assert len(chosen) == min(capacity, len(y)) == len(set(chosen))

    def features(images):
        return images.flatten(1).numpy() @ p["body.1.weight"].T + p["body.1.bias"]

    store, names = features(x)[chosen], y.numpy()[chosen]
    expected = np.zeros((len(asked), 3))
    for row, f in enumerate(features(asked)):
        squares = ((store - f) ** 2).sum(1)
        near = np.argsort(squares)[:k]
        votes = np.exp(-squares[near] / (4 * 0.5))
        for name, vote in zip(names[near], votes, strict=True):
            expected[row, name] += 0.3 * vote / votes.sum()
    model = softmax(features(asked) @ p["head.weight"].T + p["head.bias"])
    expected += 0.7 * model
    with torch.no_grad():
        np.testing.assert_allclose(client.predict(asked).exp().numpy(), expected, atol=2e-6)
    told = run.evaluate(client=1)
    right = (expected.argmax(1) == labels.numpy()).mean()
    assert told["accuracy_initial"] == told["accuracy_personalized"] == pytest.approx(right)
    assert told["global"] == pytest.approx((model.argmax(1) == labels.numpy()).mean())


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
