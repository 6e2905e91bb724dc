"""Split learning: a failed client, oversampling, parts for threads; twins have the formulas."""

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedapps.split.rules import LARGEST_FRAME, levelled
from tests.support.split_float64 import batches, play
from tests.support.split_rounds import opened


def test_split_learning_goes_on_from_what_a_failed_client_had_received(world):
    strategy = world('strategy="splitlearning" splitlearning.cut=2 num-clients=4')
    received, session = {}, SimpleNamespace(tokens=range(4), relayed={})

    def waves(clients, relay):
        (client,) = clients
        received[client] = {key: float(value.ravel()[0]) for key, value in relay.items()}
        if client != 1:
            session.relayed[client] = {"l1.bias": np.full(3, client)}
        return []

    session.waves = waves
    strategy.serve(1, session)
    keys = strategy.layout.shared(("l1", "l2"))
    assert received.pop(0) == {key: strategy.arrays[key].ravel()[0] for key in keys}
    assert received == {1: {"l1.bias": 0}, 2: {"l1.bias": 0}, 3: {"l1.bias": 2}}
    assert strategy.client_layers == {"l1.bias": pytest.approx([3, 3, 3])}


@pytest.mark.parametrize("name", ["fedfc", "sflv1", "sflv2"])
def test_oversampling_recycles_the_batches_of_clients_with_fewer(world, name):
    together = 'sflv2.order="batch"'
    strategy = world(f'strategy="{name}" num-clients=3 {name}.oversample=true {together}')
    waves, step = [], type(strategy).step

    def record(round_, wave):
        waves.append({s.client: s.labels.tolist() for s in wave})
        return step(strategy, round_, wave)

    strategy.step = record
    play(strategy)
    own = {c: [y.tolist() for _, y in batches(strategy, c, 1, 0)] for c in range(3)}
    most = max(len(batches_) for batches_ in own.values())
    assert min(len(batches_) for batches_ in own.values()) < most
    for i, wave in enumerate(waves[:most]):
        assert wave == {c: own[c][i % len(own[c])] for c in range(3)}
    assert len(waves) == 2 * most


@pytest.mark.parametrize("name", ["fedfc", "sflv1", "sflv2"])
def test_oversampling_costs_no_client_more_than_the_limit(world, name):
    """Whatever one device claims to have; the others have 2, 3 and 4 batches of up to 8."""
    limit = f"{name}.oversample=true {name}.oversample-limit=3"
    strategy = world(f'strategy="{name}" num-clients=4 {limit}')
    claimed = {0: 16, 1: 2**39, 2: 24, 3: 32}
    strategy.devices = {client: {"train": count} for client, count in claimed.items()}
    with strategy.running():
        plans = opened(strategy, 1)
        assert {c: plan.stages[0].batches for c, plan in plans.items() if c != 1} == {
            0: 9, 2: 9, 3: 9,
        }  # fmt: skip
        assert strategy._session.rules.batches == {0: 9, 1: 2**36, 2: 9, 3: 9}
        strategy._session.abort()


def test_no_claim_of_a_device_ends_the_run_at_its_start(world):
    """With all data in one batch, this one's features would be far too large for a frame."""
    strategy = world('strategy="fedfc" num-clients=3 batch-size=1000000000')
    claimed = {0: 16, 1: 2**39, 2: 24}
    strategy.devices = {client: {"train": count} for client, count in claimed.items()}
    with strategy.running():
        assert strategy._channel.limit == LARGEST_FRAME


def test_oversampling_in_a_simulation_has_no_limit(world):
    """There the server knows what each client has."""
    strategy = world('strategy="sflv1" sflv1.oversample=true sflv1.oversample-limit=1')
    with strategy.running():
        plans = opened(strategy, 1)
        most = max(map(strategy.batches, plans))
        assert {plan.stages[0].batches for plan in plans.values()} == {most}
        assert most > min(map(strategy.batches, plans))
        strategy._session.abort()


@given(
    st.dictionaries(st.integers(0, 99), st.integers(1, 50), min_size=2, max_size=9),
    st.integers(51, 2**40),
    st.integers(1, 20),
)
def test_less_than_half_of_the_clients_cost_the_others_no_more_than_the_limit(own, claim, limit):
    honest = max(own.values())
    claims = {-1 - i: claim + i for i in range((len(own) - 1) // 2)}
    found = levelled(own | claims, limit)
    assert all(own[c] <= found[c] <= max(own[c], limit * honest) for c in own)
    assert set(levelled(own).values()) == {honest}


def test_parts_made_for_threads_are_alike_and_carry_no_hooks(world):
    """They are copies of one model, made before the threads start."""
    space = world('strategy="fedfc"').workspace
    parts = [space.restricted(("l1", "l2")) for _ in range(8)]
    with ThreadPoolExecutor(8) as threads:
        macs = list(threads.map(lambda p: p.trainer.profile.layer_macs("l2"), parts))
    assert len(set(macs)) == 1
    assert not any(m._forward_hooks for part in parts for m in part.model.modules())
    assert all(part.data is space.data for part in parts)
