"""FedProto's certain facts (docs/papers/fedproto.md); its twin has the formulas."""

import copy

import numpy as np
import pytest
import torch

from clients.fedproto import FedProtoClient
from fedapps.core import config, registry
from fedapps.method import put, rehearse
from strategies.fedproto import FedProto
from tests.support.methods import needed

KEYS = 'strategy="fedproto" num-clients=4 fraction-train=1.0 local-epochs=1'


def rehearsal(tiny_npz, keys):
    """A batch is all samples of a client, so their order does not matter."""
    return rehearse(FedProto, FedProtoClient, f"{tiny_npz.replace('=8', '=1000')} {KEYS} {keys}")


def model_of(run, state):
    made = copy.deepcopy(run.strategy.workspace.model).eval().requires_grad_()
    put(made, {key.removeprefix("model/"): value for key, value in state.items()})
    return made


def features(model, x):
    return torch.nn.Sequential(*[*model.children()][:-1])(x).flatten(1)


def test_a_client_predicts_the_nearest_known_prototype(tiny_npz):
    run = rehearsal(tiny_npz, "")
    run.rounds(2)
    state = run.strategy.state
    state["p/count"][1] = 0
    made = run.make(0)
    plan = run.strategy.evaluation_plan(2, 0)
    made.evaluate_round(plan, run.strategy.download(2, 0, plan))
    x, _ = made.test_data
    z = features(model_of(run, run.clients[0]), x).detach().numpy()
    far = ((z[:, None] - state["p/mean"]) ** 2).sum(2)
    outputs = made.module()(x).detach().numpy()
    np.testing.assert_allclose(outputs[:, [0, 2]], -far[:, [0, 2]], rtol=1e-4)
    np.testing.assert_allclose(outputs[:, 1], -far[:, [0, 2]].max(1), rtol=1e-4)
    np.testing.assert_array_equal(made.predict(x).detach().numpy(), outputs)


@pytest.mark.parametrize(("method", "sent", "kept"), [
    ("fedproto", "p", "p"), ("fedpac", "own", "centroids"),
])  # fmt: skip
@pytest.mark.parametrize("lie", [[1e6, 0, 0], [3.0, -2.0, 1e6], [-5.0, -5.0, 1.0]])
def test_counts_of_classes_weigh_no_more_than_the_samples_of_a_client(
    method, sent, kept, lie, flat_config, tiny_npz
):
    """Client 0 lies about its samples; the others' classes stay those that they have."""
    made = config.read(flat_config(tiny_npz, f'strategy="{method}" {needed(method)}'))
    run = rehearse(registry.strategy_class(method), registry.client_class(method), made)
    strategy = run.strategy
    updates = [run.train(client, strategy.plan(1, client)) for client in range(4)]
    for update in updates:
        assert update.extras[f"{sent}/count"].sum() == update.num_examples
        of_client_0 = np.full_like(update.extras[f"{sent}/mean"], update.client == 0)
        update.extras[f"{sent}/mean"] = of_client_0
    updates[0].extras[f"{sent}/count"] = np.array(lie, np.float32)
    strategy.aggregate(1, iter(updates))
    own = np.maximum(lie, 0)
    own = own * min(1, updates[0].num_examples / own.sum())
    others = sum(update.extras[f"{sent}/count"] for update in updates[1:])
    np.testing.assert_allclose(strategy.state[f"{kept}/count"], own + others, rtol=1e-6)
    share = strategy.state[f"{kept}/mean"][:, 0]
    np.testing.assert_allclose(share, own / (own + others), rtol=1e-6)
