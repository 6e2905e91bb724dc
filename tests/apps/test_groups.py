"""Runs with `group`: a failure costs one client alone, and runs repeat bit by bit."""

import weakref

import numpy as np
import pytest
import torch

from clients.fedavg import FedAvgClient
from fedapps.method import Costs, replace
from fedapps.training.stacked.group import Group
from fedapps.training.stacked.run import GroupRun
from fedapps.training.trainer import Trainer
from fedapps.wire import fleet
from strategies.fedavg import FedAvg

RUN = 'strategy="fedavg" num-clients=4 fraction-train=1.0 num-rounds=1 model="lenet5"'
BROKEN = 2


def same(one, other):
    return all(np.array_equal(value, other[key]) for key, value in one.items())


def not_finite(client, outputs, targets):
    return outputs.sum() * float("nan")


def no_luck(client, outputs, targets):
    raise ValueError("no luck")


def of_the_model(client, outputs, targets):
    return client.task.loss(outputs, targets) + next(client.model.parameters()).square().sum()


@pytest.mark.parametrize(("act", "why"), [(not_finite, "diverged"), (no_luck, "no luck")])
def test_one_client_that_fails_costs_its_group_nothing(
    tiny_npz, serial_run, read_csv, read_model, monkeypatch, act, why
):
    """The others of its group are trained one after the other: the very bits of group = 0."""

    def loss(client, outputs, targets):
        broken = client.client == BROKEN and client.model.training  # as when it trains alone
        return act(client, outputs, targets) if broken else client.task.loss(outputs, targets)

    monkeypatch.setattr(FedAvgClient, "loss", loss)
    models = []
    for option in ("", "group=4"):
        folder = serial_run(tiny_npz, RUN, "finetune-epochs=0", option)
        (event,) = read_csv(folder, "events.csv")
        assert event["client"] == str(BROKEN) and why in event["detail"]
        models.append(read_model(folder))
    assert same(*models)


def test_a_group_that_runs_out_of_memory_has_given_it_back_before_its_clients_go_on_alone(
    tiny_npz, serial_run, monkeypatch
):
    held, left, train = [], [], Trainer.train

    def out_of_memory(group, outputs, batch):
        held[:] = [weakref.ref(group), weakref.ref(outputs)]
        raise torch.OutOfMemoryError("CUDA out of memory")

    def alone(trainer, *arguments, **options):
        left.append([thing() for thing in held])
        return train(trainer, *arguments, **options)

    monkeypatch.setattr(GroupRun, "_values", out_of_memory)
    monkeypatch.setattr(Trainer, "train", alone)
    serial_run(tiny_npz, RUN, "finetune-epochs=0 group=4")
    assert left == [[None, None]] * 4


def test_a_loss_that_reads_the_model_runs_alone(tiny_npz, serial_run, read_model, monkeypatch):
    monkeypatch.setattr(FedAvgClient, "loss", of_the_model)
    alone, together = (read_model(serial_run(tiny_npz, RUN, o)) for o in ("", "group=4"))
    assert same(alone, together)


@pytest.mark.parametrize(("option", "nodes"), [("", 1), ("", 2), ("group=3", 1)])
def test_messages_with_few_large_updates_give_the_same_numbers(
    tiny_npz, serial_run, read_model, untimed_rounds, monkeypatch, option, nodes
):
    """A model of any size is large here, so each client, or group, has a message of its own."""
    found = []
    for limit in (fleet.PORTION, 1):
        monkeypatch.setattr(fleet, "PORTION", limit)
        folder = serial_run(tiny_npz, RUN, option, num_supernodes=nodes)
        model = {name: array.tolist() for name, array in read_model(folder).items()}
        found.append((untimed_rounds(folder), model))
    assert found[0] == found[1]


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_run_repeats_bit_by_bit(tiny_npz, serial_run, read_model, nodes):
    options = [tiny_npz, RUN, 'group=3 dp.mode="local"']
    assert same(*(read_model(serial_run(*options, num_supernodes=nodes)) for _ in range(2)))


@pytest.mark.parametrize("option", [
    'clip-percentile=50.0 clip-mode="sample" model="cnn"',
    'clip-percentile=50.0 prox-mu=0.1 augment="crop-flip"',
    'adapter-rank=2 optimizer="adam" lr=0.001',
    'bn-stats="batch"',
    'bn-local=true dp.mode="local" score-last=true',
    'unseen-clients="1" score-without-head=true',
])  # fmt: skip
def test_settings_go_with_groups(tiny_npz, serial_run, read_model, read_rounds, capsys, option):
    alone, together = (serial_run(tiny_npz, RUN, o, option) for o in ("", "group=3"))
    told = capsys.readouterr().out
    assert ('one after the other: clip-mode = "sample"' in told) == ("sample" in option)
    assert ("scores depend on how samples are batched" in told) == ("batch" in option)
    before, after = read_model(alone), read_model(together)
    for key, value in before.items():
        np.testing.assert_allclose(after[key], value, rtol=1e-4, atol=1e-5, err_msg=key)
    for column in ("train_macs", "cost_paper", "failures"):
        assert [r[column] for r in read_rounds(alone)] == [r[column] for r in read_rounds(together)]


def test_hooks_find_the_model_as_training_alone_leaves_it(tiny_npz, serial_run, monkeypatch):
    """Also after a last stage that trains nothing: none of its layers has a BatchNorm."""
    found = {}

    def plan(strategy, round_, client):
        stage = strategy.stage(round_, ("conv1", "fc1"))
        nothing = replace(stage, layers=("fc1:norms",))
        return strategy.exchange(round_, strategy.layout.names, stage, nothing)

    def after_training(client, plan):
        asking = [parameter.requires_grad for parameter in client.model.parameters()]
        found.setdefault(client.client, []).append(asking)
        return Costs()

    monkeypatch.setattr(FedAvg, "plan", plan)
    monkeypatch.setattr(FedAvgClient, "after_training", after_training)
    for option in ("group=0", "group=4"):
        serial_run(tiny_npz, RUN, option)
    assert len(found) == 4
    for alone, together in found.values():
        assert alone == together and any(alone) and not all(alone)


def test_auto_and_a_group_of_one(tiny_npz, serial_run, monkeypatch):
    sizes = []
    train = Group.train

    def record(group, stages, lessons):
        sizes.append(len(lessons))
        train(group, stages, lessons)

    monkeypatch.setattr(Group, "train", record)
    serial_run(tiny_npz, RUN, 'model="mlp" group="auto" finetune-epochs=0')
    assert sizes == [4]
    serial_run(tiny_npz, RUN, "group=1 finetune-epochs=0")
    assert sizes == [4, 1, 1, 1, 1]
