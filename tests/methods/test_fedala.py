"""FedALA: the facts of its specification, each against a few lines of plain torch or NumPy."""

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from clients.fedala import FedALAClient
from clients.fedavg import FedAvgClient
from fedapps.method import rehearse, under
from strategies.fedala import FedALA
from strategies.fedavg import FedAvg

ETA_0 = "fedala.ala-lr=0.0"
HEAD = "classifier.fc.weight"


@pytest.fixture
def rehearsal(tiny_npz):
    """Return make(*run-config, strategy=, client=, ...): three clients in every round."""

    def make(*options, strategy=FedALA, client=FedALAClient, model="lenet5-1", batch=8, epochs=1):
        data = tiny_npz.replace("batch-size=8", f"batch-size={batch}")
        base = f'{data} model="{model}" num-clients=3 fraction-train=1.0 lr=0.1'
        own = f'local-epochs={epochs} strategy="{strategy.__name__.lower()}"'
        return rehearse(strategy, client, " ".join([base, own, *options]))

    return make


def same(ones, others):
    assert ones.keys() == others.keys()
    for key in ones:
        np.testing.assert_array_equal(ones[key], others[key], err_msg=key)


def client_before_training(run, client, plan=None):
    """A client as it is when its local training starts in the next round."""
    plan = plan or run.strategy.plan(run.round + 1, client)
    made = run.make(client)
    begin = made.train

    def stop(plan, phase, *rest, **more):
        if phase == "train":
            raise KeyboardInterrupt
        return begin(plan, phase, *rest, **more)

    made.train = stop
    with pytest.raises(KeyboardInterrupt):
        made.train_round(plan, dict(run.strategy.arrays))
    return made


def test_without_steps_of_w_it_is_fedavg_bit_by_bit(rehearsal):
    run = rehearsal(ETA_0, "fedala.ala-layers=2", "fedala.max-epochs=1")
    first, other = rehearsal(), rehearsal(strategy=FedAvg, client=FedAvgClient)
    other.rounds(1)
    for one in (run, first):  # the first round is FedAvg's whatever eta is
        one.rounds(1)
        same(one.strategy.arrays, other.strategy.arrays)
    assert not any(under(state, "W/") for state in first.clients.values())
    for _ in range(2):
        run.rounds(1)
        other.rounds(1)
        same(run.strategy.arrays, other.strategy.arrays)


def ala(run, client, epochs, threshold, eta):
    """The start stage in plain torch, p = 1 and one batch an epoch; returns W and the losses."""
    own = {key: value.clone() for key, value in under(run.clients[client], "theta_l/").items()}
    shared = {key: torch.tensor(run.strategy.arrays[key]) for key in own}
    made = run.make(client)
    images, labels = made.train_data
    lower = {key: torch.tensor(value) for key, value in run.strategy.arrays.items()}
    weights = {key: torch.ones_like(value, requires_grad=True) for key, value in own.items()}
    losses = []
    while len(losses) < epochs:
        theta = {key: own[key] + (shared[key] - own[key]) * w for key, w in weights.items()}
        logits = torch.func.functional_call(made.model, lower | theta, (images,))
        loss = cross_entropy(logits, labels)
        gradients = torch.autograd.grad(loss, [*weights.values()])
        losses.append(loss.item())
        with torch.no_grad():
            for w, gradient in zip(weights.values(), gradients, strict=True):
                w.copy_((w - eta * gradient).clamp(0, 1))
        if len(losses) > 10 and np.std(losses[-10:]) < threshold:
            break
    return weights, losses


@pytest.mark.parametrize("threshold, taken", [(1.0, 11), (0.0, 14), (None, None)])
def test_start_stage_in_plain_torch(rehearsal, threshold, taken, monkeypatch):
    eta = 2000.0
    size = {"batch": 96, "epochs": 8}
    options = ["fedala.sample-percent=100", f"fedala.ala-lr={eta}", "fedala.max-epochs=14"]
    if threshold is None:  # one that is reached on the way
        run = rehearsal(*options, "fedala.threshold=0.0", **size)
        run.rounds(1)
        _, losses = ala(run, 0, 14, 0.0, eta)
        spread = [np.std(losses[n - 10 : n]) for n in (11, 12)]
        assert spread[1] < 0.8 * spread[0], "else rounding decides"
        threshold, taken = (spread[0] + spread[1]) / 2, 12
    run = rehearsal(*options, f"fedala.threshold={threshold}", **size)
    said = []
    monkeypatch.setattr("clients.fedala.log.warning", lambda text, *rest: said.append(text % rest))
    run.rounds(1)
    wanted, losses = ala(run, 0, 14, threshold, eta)
    assert len(losses) == taken
    made = client_before_training(run, 0)
    found = under(made.state, "W/")
    assert min(w.min() for w in found.values()) < 0.9, "W has moved"
    for key, w in wanted.items():
        torch.testing.assert_close(found[key], w.detach(), rtol=1e-3, atol=1e-4)
    assert bool(said) == (taken == 14)


def scores(run, client):
    """The client's figures and its models (head weights) at the first score and in the end."""
    made = run.make(client)
    models = []
    personalize = made.personalize

    def between(plan):
        models.append(made.model.state_dict()[HEAD].clone())
        done = personalize(plan)
        models.append(made.model.state_dict()[HEAD].clone())
        return done

    made.personalize = between
    plan = run.strategy.evaluation_plan(run.round, client)
    return made.evaluate_round(plan, dict(run.strategy.arrays)).metrics, *models


def test_an_evaluation_mixes_then_learns_and_keeps_nothing(rehearsal):
    run = rehearsal("fedala.ala-lr=20.0")
    run.rounds(2)
    before = {name: value.clone() for name, value in run.clients[0].items()}
    _, initial, personalized = scores(run, 0)
    own, shared = before[f"theta_l/{HEAD}"], torch.tensor(run.strategy.arrays[HEAD])
    torch.testing.assert_close(initial, own + (shared - own) * before[f"W/{HEAD}"])
    assert not torch.equal(initial, personalized)
    same(run.clients[0], before)
