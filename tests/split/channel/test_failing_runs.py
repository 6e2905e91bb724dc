"""Whole runs in which a client, all clients or the server fails."""

import time

import numpy as np
import pytest
import torch

from fedapps.core.errors import RunError
from fedapps.split.client import SplitClient
from strategies.fedfc import FedFC
from tests.support.split_rounds import RUN, SOON

NAN_DETAIL = "training diverged: sent smashed data that are not finite"


@pytest.mark.parametrize(
    ("fault", "detail"),
    [("spoiling", NAN_DETAIL), ("raising", "ValueError: a fault of its own")],
)
def test_a_run_ends_although_a_client_fails(
    serial_run, tiny_npz, read_csv, read_rounds, read_model, request, fault, detail
):
    request.getfixturevalue(fault)
    start = time.monotonic()
    folder = serial_run(tiny_npz, RUN, keep_going=fault == "raising")
    events = read_csv(folder, "events.csv")
    assert [(e["round"], e["client"], e["kind"], e["detail"]) for e in events] == [
        ("1", "1", "failure", detail)
    ]
    (row,) = read_rounds(folder)
    assert (row["clients"], row["failures"]) == (3, 1)
    assert row["train_loss"] > 0
    assert all(np.isfinite(value).all() for value in read_model(folder).values())
    assert time.monotonic() - start < SOON


def test_nobody_waits_for_a_client_that_cannot_even_begin(
    serial_run, tiny_npz, read_csv, sessions, monkeypatch
):
    def setup(client):
        if client.client == 1:
            raise ValueError("a fault of its own")

    monkeypatch.setattr(SplitClient, "setup", setup)
    folder = serial_run(tiny_npz, RUN)
    why = "ValueError: a fault of its own"
    assert [session.lost for session in sessions] == [{1: why}]
    events = {(e["client"], e["kind"], e["detail"]) for e in read_csv(folder, "events.csv")}
    assert events == {("1", "failure", why)}  # also of the evaluation


@pytest.mark.parametrize("keep_going", [True, False])
def test_the_servers_own_fault_ends_the_run(
    serial_run, tiny_npz, tmp_path, monkeypatch, keep_going
):
    """In one line that names it, whatever its clients raise; they are not left waiting."""

    def step(self, round_, wave):
        raise ZeroDivisionError("first line\nsecond line")

    monkeypatch.setattr(FedFC, "step", step)
    start = time.monotonic()
    with pytest.raises(RunError) as caught:
        serial_run(tiny_npz, RUN, f'runs-dir="{tmp_path}"', keep_going=keep_going)
    assert str(caught.value) == "the server's layers: ZeroDivisionError: first line second line"
    assert time.monotonic() - start < SOON
    (log,) = tmp_path.glob("*/log.txt")
    line = step.__code__.co_firstlineno + 1
    assert log.read_text().count(f'{__file__}", line {line}, in step\n') == 1


def test_a_run_in_which_all_clients_fail_ends(serial_run, tiny_npz, monkeypatch):
    def loss(client, logits, labels):
        raise ValueError(f"of client {client.client}")

    monkeypatch.setattr(SplitClient, "loss", loss)
    start = time.monotonic()
    with pytest.raises(RunError) as caught:
        serial_run(tiny_npz, RUN)
    assert str(caught.value) == (
        "round 1: 3 of 3 clients failed (all failed); client 0: ValueError: of client 0"
    )
    assert time.monotonic() - start < SOON


@pytest.mark.parametrize(
    "method",
    [
        "fedfc", "sflv1", 'sflv1" sflv1.sync="round', "sflv2", 'sflv2" sflv2.order="batch',
        "splitlearning",
    ],
)  # fmt: skip
def test_ruinous_features_cost_one(
    serial_run, tiny_npz, read_csv, read_model, monkeypatch, capsys, method
):
    """Features of +-1e6 with random labels: finite, below max-value, and far from what can be.

    Divergence ends no run, also where another failure would; it is not advised to set a key that
    these methods refuse.
    """
    loss, draws = SplitClient.loss, torch.Generator().manual_seed(0)

    def lie(client, logits, labels):
        if client.client == 1:
            signs = 2 * torch.randint(0, 2, logits.shape, generator=draws) - 1
            logits = logits * 0 + 1e6 * signs
            labels = labels[torch.randperm(len(labels), generator=draws)]
        return loss(client, logits, labels)

    monkeypatch.setattr(SplitClient, "loss", lie)
    folder = serial_run(tiny_npz, RUN, f'strategy="{method}" num-rounds=2', keep_going=False)
    events = read_csv(folder, "events.csv")
    assert [(e["round"], e["client"], e["kind"]) for e in events] == [
        ("1", "1", "failure"), ("2", "1", "failure"),
    ]  # fmt: skip
    assert all(e["detail"].startswith("training diverged: a batch's loss is ") for e in events)
    advice = "warning: round 1: training diverged at 1 of 3 clients: lower lr = 0.05\n"
    assert advice in capsys.readouterr().out
    assert all(np.abs(value).max() < 10 for value in read_model(folder).values())


def test_too_few_workers_for_split_clients_are_named_at_once(world):
    """With the cure in the message; devices have a process each, and no worker is counted."""
    strategy, nodes = world("channel-nodes=5"), [11, 12, 13, 14, 15, 16]
    with pytest.raises(RunError, match="5 SuperNodes must work at the same time, but 2 can; ") as e:
        strategy.train_nodes(nodes, workers=2)
    assert "init-args-num-cpus=5" in str(e.value)
    assert strategy.train_nodes(nodes, workers=5) == nodes[:5]
    assert strategy.train_nodes(nodes, workers=0) == nodes[:5]
    assert world().train_nodes(nodes, workers=2) == nodes[:1]
    assert world().train_nodes(nodes, workers=0) == nodes
