"""FedAS's certain facts (docs/papers/fedas.md); its twin has the formulas."""

import copy

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from clients.fedas import FedASClient
from fedapps.method import ClientUpdate, rehearse
from strategies.fedas import FedAS

KEYS = 'strategy="fedas" num-clients=3 fraction-train=1.0 local-epochs=2 lr=0.05'


def test_an_evaluation_aligns_the_body_alone_in_a_copy(tiny_npz):
    run = rehearse(FedAS, FedASClient, f"{tiny_npz} {KEYS} fedas.align-lr=0.5")
    run.rounds(2)
    before = copy.deepcopy(run.clients)
    client, plan = run.make(1), run.strategy.evaluation_plan(2, 1)
    assert [stage.lr for stage in plan.stages] == [pytest.approx(0.5)]
    client.evaluate_round(plan, run.strategy.download(2, 1, plan))
    for key, value in client.model.state_dict().items():
        same = np.array_equal(value, run.clients[1][f"model/{key}"])
        assert same == (key in run.layout.keys_of(run.layout.head)), key
        assert same or not np.array_equal(value, run.strategy.arrays[key])
    assert all(
        torch.equal(v, run.clients[c][k]) for c, own in before.items() for k, v in own.items()
    )


@pytest.mark.parametrize("bn_stats", ["batch", "local"])
def test_the_information_of_a_lone_last_sample_counts(tiny_npz, bn_stats):
    """It joins the batch before it, because a BatchNorm of a batch needs two."""
    keys = f'{KEYS} model="lenet5" bn-stats="{bn_stats}"'
    size = len(rehearse(FedAS, FedASClient, f"{tiny_npz} {keys}").make(0).train_data[1]) - 1
    data = tiny_npz.replace("batch-size=8", f"batch-size={size}")
    run = rehearse(FedAS, FedASClient, f"{data} {keys}")
    client = run.make(0)
    client.after_training(run.strategy.plan(1, 0))
    x, y = client.train_data
    found = torch.autograd.grad(cross_entropy(client.model(x), y), [*client.model.parameters()])
    trace = sum(float((g**2).sum()) for g in found)
    assert client.sends["fisher/trace"].item() == pytest.approx(trace, rel=1e-5)


def test_what_a_batch_does_not_use_has_no_information(tiny_npz, unused_branch):
    """The gradient with respect to it is zero."""
    run = rehearse(FedAS, FedASClient, f"{tiny_npz.replace('=8', '=1000')} {KEYS} {unused_branch}")
    client = run.make(0)
    client.after_training(run.strategy.plan(1, 0))
    x, y = client.train_data
    cross_entropy(client.model(x), y).backward()
    found = {key: p.grad for key, p in client.model.named_parameters()}
    assert [key for key, g in found.items() if g is None] == ["1.unused.weight", "1.unused.bias"]
    trace = sum(float((g**2).sum()) for g in found.values() if g is not None)
    assert client.sends["fisher/trace"].item() == pytest.approx(trace, rel=1e-5)


def test_without_any_information_the_mean_is_plain(tiny_npz):
    server = rehearse(FedAS, FedASClient, f"{tiny_npz} {KEYS}").strategy
    extras = {"fisher/trace": np.zeros(1, np.float32)}
    updates = [
        ClientUpdate(c, {"a": np.full(2, c, np.float32)}, n, weight=float(n), extras=extras)
        for c, n in ((1, 9), (2, 1))
    ]
    assert server.aggregate(1, iter(updates))["a"].tolist() == [1.5, 1.5]
