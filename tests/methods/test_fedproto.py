"""FedProto's certain facts (docs/papers/fedproto.md), beside the formulas in plain PyTorch."""

import copy

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

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


@pytest.mark.parametrize("weighting", ["samples", "plain"])
def test_a_round_is_equations_7_3_and_6(tiny_npz, weighting):
    """The second round: one step of each client, and the prototypes after it."""
    keys = f'fedproto.lambda=10.0 fedproto.weighting="{weighting}" alpha=0.3'
    run = rehearsal(tiny_npz.replace("alpha=10.0", ""), keys)
    run.rounds(1)
    before, state = copy.deepcopy(run.clients), copy.deepcopy(run.strategy.state)
    run.rounds(1)
    found = {j: [] for j in range(3)}
    for client, own in before.items():
        model, (x, y) = model_of(run, own), run.make(client).train_data
        far = (features(model, x) - torch.tensor(state["p/mean"])[y]) ** 2
        known = torch.tensor(state["p/count"])[y] > 0
        (cross_entropy(model(x), y) + 10.0 * (far.mean(1) * known).mean()).backward()
        for key, parameter in model.named_parameters():
            parameter.data -= run.strategy.settings.lr * parameter.grad
            np.testing.assert_allclose(
                run.clients[client][f"model/{key}"], parameter.detach(), atol=1e-6
            )
        for j in set(y.tolist()):
            own = features(model, x[y == j]).detach().double()
            found[j] += [own] if weighting == "samples" else [own.mean(0, keepdim=True)]
    for j, parts in found.items():
        mean = torch.cat(parts).mean(0)
        np.testing.assert_allclose(run.strategy.state["p/mean"][j], mean, atol=1e-5)
    counts = np.bincount(np.concatenate([run.make(c).train_data[1] for c in range(4)]))
    np.testing.assert_array_equal(run.strategy.state["p/count"], counts)
    initial = run.strategy.workspace.initial
    assert all(np.array_equal(value, initial[key]) for key, value in run.strategy.arrays.items())


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


def test_without_a_pull_it_is_local(tiny_npz, serial_run, read_csv):
    base = tiny_npz, "num-rounds=3 momentum=0.5 local-epochs=2"
    keys = 'fedproto.lambda=0.0 fedproto.predict="head"'
    mine = serial_run(*base, f'strategy="fedproto" {keys}')
    alone = serial_run(*base, 'strategy="local" local.match-compute=true')
    for one, other in zip(
        read_csv(mine, "clients.csv"), read_csv(alone, "clients.csv"), strict=True
    ):
        assert one["loss"] == other["loss"] and one["accuracy_initial"] == other["accuracy_initial"]
