"""FedALA: the facts of its specification, each against a few lines of plain torch or NumPy."""

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from clients.fedala import FedALAClient
from clients.fedavg import FedAvgClient
from clients.fedper import FedPerClient
from fedapps.method import rehearse, under
from strategies.fedala import FedALA
from strategies.fedavg import FedAvg
from strategies.fedper import FedPer

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


@pytest.mark.parametrize("layers", [1, 2])
def test_with_w_0_and_without_steps_it_is_fedper(rehearsal, layers):
    run = rehearsal(ETA_0, f"fedala.ala-layers={layers}")
    other = rehearsal(f"head-layers={layers}", strategy=FedPer, client=FedPerClient)
    for _ in range(3):
        run.rounds(1)
        other.rounds(1)
        body = run.layout.keys_of(run.layout.names[:-layers])
        same({k: run.strategy.arrays[k] for k in body}, {k: other.strategy.arrays[k] for k in body})
        for client, state in run.clients.items():
            own = under(state, "theta_l/")
            same(own, under(other.clients[client], "model/"))
            state |= {f"W/{key}": torch.zeros_like(value) for key, value in own.items()}


def test_bytes_are_fedavg_s(serial_run, tiny_npz, read_csv):
    runs = [f'model="lenet5-1" strategy="{name}"' for name in ("fedala", "fedavg")]
    rows = [read_csv(serial_run(tiny_npz, options), "rounds.csv") for options in runs]
    for mine, theirs in zip(*rows, strict=True):
        assert (mine["bytes_up"], mine["bytes_down"]) == (theirs["bytes_up"], theirs["bytes_down"])


def test_as_many_weights_as_parameters_of_the_top_layers():
    options = "num-clients=2 fraction-train=1.0 local-epochs=1 batch-size=512 fedala.max-epochs=1"
    run = rehearse(FedALA, FedALAClient, f'strategy="fedala" model="cnn" {options}')
    run.rounds(2)
    assert sum(w.numel() for w in under(run.clients[0], "W/").values()) == 512 * 10 + 10


def test_weights_begin_with_a_client_s_second_round(rehearsal):
    run = rehearsal("fedala.max-epochs=1")
    run.strategy.select = lambda round_: {1: [0], 2: [1], 3: [0, 1]}[round_]
    run.rounds(2)
    assert not under(run.clients[0], "W/") and not under(run.clients[1], "W/")
    run.rounds(1)
    assert under(run.clients[0], "W/") and under(run.clients[1], "W/")
    assert 2 not in run.clients


class Watched(FedALAClient):
    """Holds every mixture to its bounds, at every batch."""

    def mix(self, model):
        super().mix(model)
        kept = under(self.state, "W/")
        for key, (theta, own, shared, w) in self.mixed.items():
            assert w.min() >= 0 and w.max() <= 1
            begun = kept.get(key, torch.ones_like(w))
            assert torch.equal(w[own == shared], begun[own == shared]), "no gradient, no step"
            low, high = torch.minimum(own, shared), torch.maximum(own, shared)
            assert (low <= theta).all() and (theta <= high).all()


def test_weights_and_mixture_are_within_bounds_after_every_batch(rehearsal):
    run = rehearsal("fedala.ala-lr=50.0", "fedala.ala-layers=4", client=Watched)
    run.rounds(3)
    weights = torch.cat([w.flatten() for w in under(run.clients[0], "W/").values()])
    assert weights.min() == 0 and weights.max() == 1


def test_lower_layers_are_the_shared_ones_when_local_training_starts(rehearsal):
    run = rehearsal("fedala.ala-layers=2")
    run.rounds(1)
    made = client_before_training(run, 1)
    now = {key: value.numpy() for key, value in made.model.state_dict().items()}
    top = run.layout.keys_of(run.layout.names[-2:])
    for key, shared in run.strategy.arrays.items():
        assert np.array_equal(now[key], shared) == (key not in top), key


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


def phases(made):
    """Record (phase, samples) of every training of a client."""
    done, train = [], made.train

    def note(plan, phase, *rest, data=None, **more):
        labels = made.train_data[1] if data is None else data[1]
        done.append((phase, len(labels), sum(stage.epochs for stage in plan.stages)))
        return train(plan, phase, *rest, data=data, **more)

    made.train = note
    return done


def test_start_stage_has_at_least_11_epochs_and_later_rounds_one(rehearsal):
    run = rehearsal("fedala.sample-percent=33", "fedala.threshold=1000.0")
    for epochs in (0, 11, 1, 1):
        made, plan = run.make(0), run.strategy.plan(run.round + 1, 0)
        done = phases(made)
        made.train_round(plan, dict(run.strategy.arrays))
        own = len(made.train_data[1])
        assert done == epochs * [("ala", own * 33 // 100, 1)] + [("train", own, 1)]
        run.rounds(1)


def test_weights_go_on_from_round_to_round(rehearsal):
    run = rehearsal(ETA_0)
    run.rounds(2)
    for state in run.clients.values():
        state |= {key: torch.full_like(w, 0.25) for key, w in state.items() if key[:2] == "W/"}
    run.rounds(1)
    for state in run.clients.values():
        assert all((w == 0.25).all() for w in under(state, "W/").values())


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


def test_a_client_is_evaluated_with_what_it_has(rehearsal):
    run = rehearsal("fedala.ala-lr=20.0")
    run.strategy.select = lambda round_: [0]
    run.rounds(1)
    run.strategy.arrays[HEAD] = run.strategy.arrays[HEAD] + np.float32(0.1)
    shared = torch.tensor(run.strategy.arrays[HEAD])
    figures, initial, personalized = scores(run, 2)  # never selected
    assert torch.equal(initial, shared) and torch.equal(personalized, shared)
    assert figures["finetune_macs"] == 0
    figures, initial, personalized = scores(run, 0)  # once: no W yet
    assert torch.equal(initial, shared) and not torch.equal(personalized, shared)
    assert figures["finetune_macs"] > 0
    assert not under(run.clients[0], "W/")


def test_batchnorm_statistics_are_as_received_when_local_training_starts(rehearsal):
    run = rehearsal("fedala.ala-layers=3", "fedala.max-epochs=2", model="resnet18")
    run.rounds(1)
    made = client_before_training(run, 0)
    now = made.model.state_dict()
    statistics = [key for key in run.layout.shapes if key not in run.layout.parameters]
    assert statistics
    for key in statistics:
        np.testing.assert_array_equal(now[key], run.strategy.arrays[key])
    assert not any(key in statistics for key in under(made.state, "W/"))
