"""FedALA: FedAvg without W, what is told, what an evaluation keeps; its twin has the formulas."""

import numpy as np
import pytest
import torch

from clients.fedala import FedALAClient
from fedapps.method import rehearse
from strategies.fedala import FedALA

HEAD = "classifier.fc.weight"


@pytest.fixture
def rehearsal(tiny_npz):
    """Return make(*run-config, strategy=, client=, ...): three clients in every round."""

    def make(*options, strategy=FedALA, client=FedALAClient):
        base = f'{tiny_npz} model="lenet5-1" num-clients=3 fraction-train=1.0 lr=0.1'
        own = f'local-epochs=1 strategy="{strategy.__name__.lower()}"'
        return rehearse(strategy, client, " ".join([base, own, *options]))

    return make


def same(ones, others):
    assert ones.keys() == others.keys()
    for key in ones:
        np.testing.assert_array_equal(ones[key], others[key], err_msg=key)


@pytest.mark.parametrize(("threshold", "told"), [(1.0, False), (0.0, True)])
def test_a_start_that_does_not_converge_is_told(rehearsal, threshold, told, monkeypatch):
    run = rehearsal("fedala.ala-lr=20.0 fedala.max-epochs=14", f"fedala.threshold={threshold}")
    said = []
    monkeypatch.setattr("clients.fedala.log.warning", lambda text, *rest: said.append(text % rest))
    run.rounds(1)
    assert not said
    run.rounds(1)
    lines = [f"client {client}: learning W ended after max-epochs" for client in range(3)]
    assert said == (lines if told else [])


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
