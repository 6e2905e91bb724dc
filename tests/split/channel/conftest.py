"""Split learning with three clients, and faults of one of them."""

import math

import pytest

from fedapps.core import config
from fedapps.split.client import SplitClient
from fedapps.training.workspace import Workspace
from strategies.fedfc import FedFC
from tests.support.split_rounds import BAD, LONG


@pytest.fixture
def world(flat_config, tiny_npz):
    """Return world(*run_config) -> FedFC, three clients and the small cnn, cut after layer 1.

    Messages are left out: what a client computes is handed to the strategy directly.
    """

    def make(*run_config):
        base = (
            f'{tiny_npz} strategy="fedfc" fedfc.cuts="1" num-clients=3 fraction-train=1.0 '
            f"local-epochs=2 round-timeout={LONG} join-timeout={LONG} step-timeout={LONG}"
        )
        strategy = FedFC(Workspace(config.read(flat_config(base, *run_config))))
        return strategy

    return make


@pytest.fixture
def raising(monkeypatch):
    """Client 1 raises in its second step."""
    loss, calls = SplitClient.loss, []

    def bad(client, logits, labels):
        calls.append(client.client)
        if calls.count(BAD) == 2 and client.client == BAD:
            raise ValueError("some text\na fault of its own")
        return loss(client, logits, labels)

    monkeypatch.setattr(SplitClient, "loss", bad)


@pytest.fixture
def spoiling(monkeypatch):
    """Client 1 computes NaN from the start."""
    loss = SplitClient.loss

    def bad(client, logits, labels):
        return loss(client, logits * (math.nan if client.client == BAD else 1.0), labels)

    monkeypatch.setattr(SplitClient, "loss", bad)
