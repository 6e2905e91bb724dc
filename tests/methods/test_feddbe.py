"""FedDBE's certain facts (docs/papers/feddbe.md), beside the formulas in plain PyTorch."""

import copy

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from clients.feddbe import FedDBEClient
from fedapps.method import put, rehearse
from strategies.feddbe import FedDBE

KEYS = 'strategy="feddbe" num-clients=3 fraction-train=1.0 local-epochs=3'


def parts(run, arrays):
    """Body and head of a copy of the model with these arrays, in training mode."""
    made = copy.deepcopy(run.strategy.workspace.model).requires_grad_().train()
    put(made, arrays)
    *body, head = made.children()
    return torch.nn.Sequential(*body), head, made


def descend(model, extra=()):
    with torch.no_grad():
        for p in (*model.parameters(), *extra):
            p -= 0.05 * p.grad
            p.grad = None


@pytest.mark.parametrize("mu", [1.0, 0.3])
def test_three_rounds_are_those_of_the_page(tiny_npz, mu):
    """A batch is all samples of a client. Round 1 finds zbar^g, rounds 2 and 3 train."""
    keys = f"feddbe.kappa=5.0 feddbe.mean-momentum={mu}"
    run = rehearse(FedDBE, FedDBEClient, f"{tiny_npz.replace('=8', '=1000')} {KEYS} {keys}")
    data = [run.make(client).train_data for client in range(3)]
    n = np.array([len(y) for _, y in data])
    initial = copy.deepcopy(run.strategy.arrays)
    run.rounds(1)
    body, *_ = parts(run, initial)
    aim = sum(len(y) * mu * body(x).mean(0).detach() for x, y in data) / n.sum()
    np.testing.assert_allclose(run.strategy.state["z/mean"], aim, atol=1e-6)
    assert all(np.array_equal(v, initial[k]) for k, v in run.strategy.arrays.items())
    assert not any(run.clients.values())
    w, memories = initial, [torch.zeros_like(aim, requires_grad=True) for _ in range(3)]
    for _ in (2, 3):
        sent = []
        for (x, y), memory in zip(data, memories, strict=True):
            body, head, model = parts(run, w)
            r = torch.zeros_like(aim)
            for _ in range(3):
                z = body(x)
                r = (1 - mu) * r.detach() + mu * z.mean(0)
                loss = cross_entropy(head(z + memory), y) + 5.0 * 0.5 * ((r - aim) ** 2).mean()
                loss.backward()
                descend(model, [memory])
            sent.append({k: v.numpy().copy() for k, v in model.state_dict().items()})
        w = {k: sum(m * own[k] for m, own in zip(n, sent, strict=True)) / n.sum() for k in w}
        run.rounds(1)
    for key, value in w.items():
        np.testing.assert_allclose(run.strategy.arrays[key], value, atol=2e-5, err_msg=key)
    for client, memory in enumerate(memories):
        found = run.clients[client]["memory/z"]
        np.testing.assert_allclose(found, memory.detach(), atol=1e-6)
        assert found.abs().max() > 1e-4
    client = run.make(1)
    plan = run.strategy.evaluation_plan(3, 1)
    client.evaluate_round(plan, run.strategy.download(3, 1, plan))
    body, head, _ = (part.eval() for part in parts(run, run.strategy.arrays))
    outputs = head(body(client.test_data[0]) + memories[1]).detach()
    np.testing.assert_allclose(client.predict(client.test_data[0]).detach(), outputs, atol=1e-4)


def test_round_1_asks_all_clients_for_their_means_only(tiny_npz, serial_run, read_csv):
    folder = serial_run(tiny_npz, 'strategy="feddbe" num-rounds=2')
    first, second = read_csv(folder, "rounds.csv")
    assert (first["phase"], first["clients"], first["bytes_up"]) == ("initialize", "6", "12288")
    assert (second["phase"], second["clients"]) == ("train", "3")


def test_a_round_that_nobody_answers_is_not_the_initialization(tiny_npz):
    """Else all features would be pulled to 0, which nobody has sent."""
    run, late = (rehearse(FedDBE, FedDBEClient, f"{tiny_npz} {KEYS}") for _ in range(2))
    strategy = late.strategy
    phases = [strategy.phase(round_) for round_ in (1, 2)]
    assert phases == ["initialize", "initialize"] and strategy.select(2) == [0, 1, 2]
    late.round = 1  # nobody has answered
    late.rounds(1)
    assert strategy.state["z/mean"].any() and strategy.state["z/round"].item() == 2
    assert [strategy.phase(round_) for round_ in (2, 3)] == ["initialize", "train"]
    run.rounds(1)
    assert strategy.plan(3, 0) == run.strategy.plan(3, 0) != strategy.plan(2, 0)


@pytest.mark.parametrize("rounds", [1, 2])
def test_a_run_that_only_initializes_says_so(tiny_npz, serial_run, read_model, capsys, rounds):
    folder = serial_run(tiny_npz, f'strategy="feddbe" num-rounds={rounds}')
    said = "warning: feddbe: the only round finds the mean of features, so nothing is trained"
    assert (said in capsys.readouterr().out) == (rounds == 1)
    initial = rehearse(FedDBE, FedDBEClient, f'{tiny_npz} strategy="feddbe"').strategy.arrays
    same = [(value == initial[key]).all() for key, value in read_model(folder).items()]
    assert all(same) if rounds == 1 else not any(same)
