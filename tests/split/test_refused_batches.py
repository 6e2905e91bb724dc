"""Batches that nobody should learn from leave no trace in the server's layers."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fedapps.core import config, registry
from fedapps.method.update import Failure
from fedapps.split.rules import Smashed
from fedapps.split.server_part import ServerPart
from fedapps.training.workspace import Workspace

BAD = 1
METHODS = [
    'strategy="fedfc" fedfc.cuts="2,2,2"',
    'strategy="fedfc" fedfc.cuts="2,1,2"',  # it alone passes the second layer
    'strategy="fedfc" fedfc.cuts="1,2,1" fedfc.weighting="samples"',
    'strategy="sflv1"',
    'strategy="sflv1" sflv1.sync="round"',
    'strategy="sflv2" sflv2.order="batch"',
]


@pytest.fixture
def begun(flat_config, tiny_npz):
    """Return begun(options) -> a strategy in round 1, on a model with BatchNorm."""

    def make(options):
        run = f'{tiny_npz} model="lenet5" num-clients=3 fraction-train=1.0 momentum=0.9'
        strategy = registry.strategy_class(options.split('"')[1])(
            Workspace(config.read(flat_config(run, options)))
        )
        strategy.prepare(1, {client: strategy.plan(1, client) for client in range(3)})
        return strategy

    return make


def waves(strategy, spoiled, clients):
    """Two waves of the same batches; those of client 1 are no numbers, if they are spoiled."""
    draws = torch.Generator().manual_seed(0)
    for batch in range(2):
        wave = []
        for client in range(3):
            shape = strategy._smashed_shape(strategy.plan(1, client))
            data, labels = torch.rand((4, *shape), generator=draws), torch.tensor([0, 1, 2, 0])
            data = data * (torch.nan if spoiled and client == BAD else 1.0)
            wave.append(Smashed(client, (0, batch), data.requires_grad_(), labels))
        yield [smashed for smashed in wave if smashed.client in clients]


def trained(strategy, spoiled, clients):
    """Arrays, statistics and counts of the parts that stay, and the answers."""
    answers = [strategy.step(1, wave) for wave in waves(strategy, spoiled, clients)]
    parts = {id(part): part for part in map(strategy.part_of, (0, 2))}.values()
    states = [part.space.model.state_dict().items() for part in parts]
    values = [{name: value.numpy().copy() for name, value in state} for state in states]
    return values, [(part.samples, part.cost_paper) for part in parts], answers


@pytest.mark.parametrize("options", METHODS)
def test_the_server_learns_as_without_the_client(options, begun):
    """Its layers, statistics, counts and costs are those of a wave of the others alone."""
    values, counts, answers = trained(begun(options), True, (0, 1, 2))
    expected, expected_counts, _ = trained(begun(options), False, (0, 2))
    assert counts == expected_counts
    for mine, theirs in zip(values, expected, strict=True):
        for name, value in theirs.items():
            np.testing.assert_allclose(mine[name], value, rtol=1e-6, atol=1e-7, err_msg=name)
    for answer in answers:
        assert answer[BAD].rejection and not (answer[0].rejection or answer[2].rejection)


def test_what_is_refused_is_one_of_two_that_would_have_counted(begun):
    """With good features of client 1 the same comparison finds a difference."""
    values, _, _ = trained(begun(METHODS[0]), False, (0, 1, 2))
    expected, _, _ = trained(begun(METHODS[0]), False, (0, 2))
    assert any(not np.allclose(values[0][name], expected[0][name]) for name in values[0])


@pytest.mark.parametrize(
    ("options", "failed", "parts"),
    [(METHODS[0], [0, 1, 2], 1), ('strategy="sflv1" sflv1.sync="round"', [BAD], 3)],
)
def test_diverged_parts_of_the_server_fail_clients(options, failed, parts, begun, monkeypatch):
    """Each part is examined once, however many clients share it."""
    strategy, examined, is_finite = begun(options), [], ServerPart.is_finite
    monkeypatch.setattr(ServerPart, "is_finite", lambda p: examined.append(p) or is_finite(p))
    space = strategy.part_of(BAD).space
    next(space.model.parameters()).data.fill_(torch.nan)
    updates = [SimpleNamespace(client=client) for client in range(3)]
    screened = [*strategy.screen(1, iter(updates))]
    assert [result.client for result in screened] == [0, 1, 2]
    assert [r.client for r in screened if isinstance(r, Failure)] == failed
    assert len(examined) == parts
