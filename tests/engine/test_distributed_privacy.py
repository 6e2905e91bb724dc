"""Runs with distributed privacy: what is in the sum, who may be missing, and what it costs."""

import math
import re
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from flwr.serverapp import RdpAccountant

from fedapps import client_app
from fedapps.core import config
from fedapps.core.errors import RunError
from fedapps.core.flower import (
    GaussianPrivacyEvent,
    NeighboringRelation,
    PrivacyConfig,
    SamplingMethod,
)
from fedapps.engine import masking, summing
from fedapps.engine.accounting import alone
from fedapps.method.update import ClientUpdate
from fedapps.models import build
from fedapps.models.layers import layout_of
from fedapps.secure.noise import own_part
from fedapps.training.plan import Plan
from fedapps.wire.requests import Request
from tests.support.killed import differences
from tests.support.marks import WORKERS
from tests.support.missing import failing
from tests.support.rdp import to_epsilon

CLIENTS = 6
CLIP, Z = 0.5, 0.8
RUN = (
    f'strategy="fedavg" secure-sum=true dp.mode="distributed" num-clients={CLIENTS}'
    f" fraction-train=1.0 num-rounds=2 dp.clip-norm={CLIP} dp.noise-multiplier={Z} evaluate-every=0"
)


@pytest.fixture
def run(serial_run):
    """Return run(*options, **arguments) -> run directory; clients that fail do not end the run."""
    return partial(serial_run, RUN)


@pytest.fixture
def seen(monkeypatch):
    """What goes into the sums: by round, each client's (update, download), settings, and sums."""
    found = {"uploads": {}, "settings": None, "sums": []}

    def masked(update, request, space, store):
        arrays = {key: value.copy() for key, value in update.arrays.items()}
        found["uploads"].setdefault(request.plan.round, {})[request.client] = arrays, request.arrays
        found["settings"] = space.settings
        return masking.masked(update, request, space, store)

    def decoded(total, shapes):
        found["sums"].append(total.view(np.int64).copy())
        return summing_decoded(total, shapes)

    summing_decoded = summing.decoded
    monkeypatch.setattr(client_app, "masked", masked)
    monkeypatch.setattr(summing, "decoded", decoded)
    return found


def steps_of(upload, download):
    """A client's clipped update in whole steps of 2^-24, rounded towards zero, and its norm."""
    moves = {key: upload[key].astype(np.float64) - download[key] for key in upload}
    norm = math.sqrt(sum(float(np.vdot(move, move)) for move in moves.values()))
    scale = min(1.0, CLIP / norm)
    flat = [scale * v for move in moves.values() for v in move.ravel().tolist()]
    return np.array([math.trunc(v * 2**24) for v in flat]), norm


# The sum ------------------------------------------------------------------------------------

MISSING = {  # the steps that fail; n with keys, t that must stay, and u in the sum
    "nobody": ({}, 6, 4, 6),
    "before the keys": ({"keys": [0]}, 5, 4, 5),
    "after the keys": ({"shares": [2, 5]}, 6, 4, 4),
    "in training": ({"train": [1, 4]}, 6, 4, 4),
    "after the upload": ({"unmask": [0, 3]}, 6, 4, 6),
}


@pytest.mark.parametrize("name", MISSING)
def test_the_sum_is_that_of_the_updates_and_of_enough_noise(
    name, run, seen, monkeypatch, read_model
):
    """Bit for bit; and with a third missing, its variance is still (z S)^2."""
    missing, _, needed, there = MISSING[name]
    failing(monkeypatch, missing)
    folder = run('model="lenet5"')
    clients, (*_, total) = seen["uploads"][2], seen["sums"]
    assert len(clients) == there == total[0]
    parts = {client: steps_of(*arrays) for client, arrays in clients.items()}
    assert max(norm for _, norm in parts.values()) > CLIP
    plain = sum(steps for steps, _ in parts.values())
    noises = [
        own_part(seen["settings"], 2, client, needed, len(plain)) for client in sorted(clients)
    ]
    np.testing.assert_array_equal(total[1:], plain + sum(noises))

    added = (total[1:] - plain) / 2**24  # the noise, by what the server has got
    variance = there / needed * (Z * CLIP) ** 2
    assert abs(added.var() / variance - 1) < 5 * math.sqrt(2 / added.size)
    assert abs(added.mean()) < 5 * math.sqrt(variance / added.size)
    assert variance >= (Z * CLIP) ** 2

    model, start = read_model(folder), next(iter(clients.values()))[1]
    at = 1
    for key in next(iter(clients.values()))[0]:
        size, shape = start[key].size, start[key].shape
        step = total[at : at + size].reshape(shape) / 2**24
        expected = start[key] + step / CLIENTS  # m, whoever was there
        if key.endswith("running_var"):
            expected = np.maximum(expected, 0)
        np.testing.assert_allclose(model[key], expected, rtol=1e-6, atol=1e-7)
        at += size
    assert at == total.size


@WORKERS
def test_all_engines_give_the_same_bytes(run):
    whole = run('strategy="fedper"')
    for arguments in ({"workers": 2}, {"num_supernodes": 3}, {"workers": 2, "num_supernodes": 5}):
        assert differences(whole, run('strategy="fedper"', **arguments)) == []


# What it costs ------------------------------------------------------------------------------


def test_epsilon_is_that_of_a_client_that_can_change_the_sum_by_2_s(run, read_rounds):
    """Every client is in every round: RDP a / (2 (z/2)^2) a round, and no sampling."""
    relation, sampling = NeighboringRelation.ADD_OR_REMOVE_ONE, SamplingMethod.NO_AMPLIFICATION
    accountant = RdpAccountant(PrivacyConfig(1e-5, 1, relation, sampling))
    orders = 1 + np.logspace(-3, 4, 20_000)
    rows = [row for row in read_rounds(run("num-rounds=3")) if row["phase"] == "train"]
    assert len(rows) == 3
    for row in rows:
        accountant.compose(GaussianPrivacyEvent(Z / 2, 1, 1))
        assert row["epsilon"] == pytest.approx(accountant.get_epsilon(1e-5))
        exact = to_epsilon(orders, row["round"] * orders / (2 * (Z / 2) ** 2), 1e-5)
        assert row["epsilon"] == pytest.approx(exact, rel=1e-2)


def test_a_budget_holds_for_local_and_distributed_runs_together(run, tmp_path):
    """Both epsilons compare a client with one that has any other data."""
    two, four = (alone(Z).epsilon(rounds, 1e-5) for rounds in (2, 4))
    night = f'federation="{tmp_path / "federation"}" dp.budget={four + 1e-6}'
    run(night)
    run(night, 'dp.mode="local" secure-sum=false')
    line = f"dp.budget = {four:g}: the earlier runs (2) have spent an epsilon of {four:.4g}, and 1"
    with pytest.raises(RunError, match=rf"^{re.escape(line)} more rounds would make it"):
        run(night, "num-rounds=1")
    assert two < four


# What is refused ----------------------------------------------------------------------------

REFUSED = {
    "secure-sum=false": 'dp.mode = "distributed": the noise is shared out in a secure sum; use '
    "secure-sum=true",
    "dp.adaptive=true": 'dp.adaptive = true: only with dp.mode = "central"',
    "dp.clip-norm=1e-6": "dp.noise-multiplier = 0.8: times dp.clip-norm = 1e-06 it must be at "
    'least 1.91e-06 (or 0) with dp.mode = "distributed"',
    "dp.clip-norm=1.5e5": "dp.noise-multiplier = 0.8: times dp.clip-norm = 150000 it must be at "
    'most 1.14e+05 (or 0) with dp.mode = "distributed"',
    "dp.clip-norm=5e10 dp.noise-multiplier=0.0": "dp.clip-norm = 5e+10: must be at most "
    "4.5813e+10, so that the sum of 6 clients fits in 64 bits",
    'attack="scaled" attackers=0.2': 'attack = "scaled": with dp.mode = "distributed" clients clip '
    'what they send, and attackers would not; use "label-flip"',
    'strategy="scaffold"': 'dp.mode = "distributed": this strategy has clients send more than '
    'layers, and no noise is added to the rest; use "none"',
    "server-data=0.1": 'dp.mode = "distributed": with server-data the server trains on samples of '
    "clients, without noise; use server-data=0",
    "dp.delta=0.2": "dp.delta = 0.2: must be below 1 / num-clients = 0.166667",
}


@pytest.mark.parametrize("options", REFUSED)
def test_what_does_not_fit_is_refused_in_one_line(options, run):
    with pytest.raises(RunError) as refused:
        run(options)
    assert str(refused.value) == REFUSED[options]


def test_a_client_refuses_a_plan_under_which_more_would_leave_it(flat_config):
    """Whatever the server says."""
    layout = layout_of(build("lenet5", (1, 8, 8), 3, seed=0), 1, "shared", False)
    plan = Plan(round=1, download=layout.body, stages=(), upload=layout.names)
    arrays = {key: np.zeros(layout.shapes[key], "f4") for key in layout.shared(layout.names)}
    space = SimpleNamespace(settings=config.read(flat_config(RUN)), layout=layout)
    with pytest.raises(RunError, match="but clients start from other values than downloaded"):
        masking.masked(ClientUpdate(0, arrays, 1), Request(0, plan, {}), space, None)
