"""Differential privacy: every number against one that was computed another way."""

import itertools
import math
import re
import weakref
from functools import cache
from statistics import NormalDist

import numpy as np
import pytest
import torch
from flwr.serverapp import RdpAccountant
from flwr.supercore.privacy_accounting import (
    GaussianPrivacyEvent,
    NeighboringRelation,
    PrivacyConfig,
    SamplingMethod,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from threadpoolctl import threadpool_limits
from torch import nn

from fedapps import client_app, models
from fedapps.core import config, registry
from fedapps.core.draws import generator, sample_clients, sample_poisson, secret_seed
from fedapps.core.errors import DivergedError, RunError
from fedapps.core.flower import renyi
from fedapps.engine import accounting, privacy
from fedapps.engine.rounds import Rounds
from fedapps.method.conversation import Question
from fedapps.method.update import ClientUpdate
from fedapps.models import build
from fedapps.models.blocks import of_images
from fedapps.models.layers import layout_of
from fedapps.training.channel import Channel
from fedapps.training.plan import Plan
from fedapps.training.privacy import check_plan, clipped_difference, postprocess, privatize
from fedapps.training.workspace import Workspace
from fedapps.wire.questions import pack_question, unpack_answers
from fedapps.wire.serial_grid import SerialGrid
from tests.support import ROOT
from tests.support.killed import differences
from tests.support.marks import THOROUGH
from tests.support.rdp import sampled_gaussian, to_epsilon

PAGE = (ROOT / "docs" / "privacy.md").read_text("utf-8")
SHAPES = {"conv1.weight": (6, 4), "fc1.weight": (3, 5), "fc1.bias": (3,)}
LAYOUT = layout_of(build("lenet5", (1, 8, 8), 3, seed=0), 1, "shared", False)


@cache
def make_settings(**changes):
    """Settings of a run; `dp_clip_norm` is the key dp.clip-norm, `num_clients` num-clients."""
    keys = {
        ("dp." + k.removeprefix("dp_") if k.startswith("dp_") else k).replace("_", "-"): value
        for k, value in changes.items()
    }
    return config.read(config.defaults() | {"strategy": "fedavg"} | keys)


def central(**changes):
    options = {"num_clients": 10, "fraction_train": 0.5, "dp_mode": "central"}
    settings = make_settings(**(options | changes))
    return privacy.MODES[settings.dp.mode](settings, LAYOUT, {}, range(settings.num_clients))


def arrays_of(draws, scale=1.0, shapes=SHAPES):
    return {k: (scale * draws.normal(size=shape)).astype("f4") for k, shape in shapes.items()}


def updates_of(seed, count, scale=1.0):
    """A start and so many updates: some hardly moved, some far."""
    draws = np.random.default_rng(seed)
    start = arrays_of(draws)
    moves = [arrays_of(draws, scale * 10.0 ** draws.uniform(-2, 1)) for _ in range(count)]
    return start, [
        ClientUpdate(i, {k: start[k] + move[k] for k in start}, 1 + i, weight=1.0 + i)
        for i, move in enumerate(moves)
    ]


def vector(arrays):
    return np.concatenate([np.asarray(a, np.float64).ravel() for a in arrays.values()])


def released(guard, start, updates, round_=1):
    (update,) = guard.release(round_, iter(updates), lambda: start)
    return update.arrays


def by_hand(start, updates, limit, expected):
    """w + (1/m) sum_i (w_i - w) min(1, S / ||w_i - w||), in NumPy."""
    w = vector(start)
    steps = [vector(update.arrays) - w for update in updates]
    clipped = [step * min(1.0, limit / np.linalg.norm(step)) for step in steps]
    return w + sum(clipped, np.zeros_like(w)) / expected


cases = st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 9), st.sampled_from([1e-3, 1.0, 1e3]))


# Clipping and the mean ----------------------------------------------------------------------------


@given(cases, st.sampled_from([1e-4, 1.0, 1e6]))
def test_clipping_is_that_of_one_vector(case, limit):
    seed, _, scale = case
    start, (update,) = updates_of(seed, 1, scale)
    difference, norm = clipped_difference(update.arrays, start, limit)
    step = vector(update.arrays) - vector(start)
    assert norm == pytest.approx(np.linalg.norm(step), rel=1e-12)
    assert np.linalg.norm(vector(difference)) <= limit * (1 + 1e-12)
    np.testing.assert_allclose(vector(difference), step * min(1, limit / norm), rtol=1e-12)
    assert all(a.dtype == np.float64 for a in difference.values())
    difference, norm = clipped_difference(start, start, limit)  # Flower 1.41 divides by its norm
    assert norm == 0.0 and not vector(difference).any()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_has_no_norm_is_not_clipped_and_never_leaves(bad):
    """min(1, S / NaN) is 1: all other entries would keep their size."""
    start, (update,) = updates_of(3, 1, 100.0)
    update.arrays["fc1.bias"][1] = bad
    for act in (
        lambda: clipped_difference(update.arrays, start, 1.0),
        lambda: sent(start, update.arrays),
    ):
        with pytest.raises(DivergedError, match=r"^training diverged: fc1\.bias is not finite$"):
            act()


def test_the_norm_does_not_depend_on_the_threads_of_blas():
    news = np.random.default_rng(0).normal(size=(20, 50_000))
    found = set()
    for threads in (1, 2):
        with threadpool_limits(threads, "blas"):
            found.add(tuple(clipped_difference({"w": w}, {"w": 0 * w}, 1.0)[1] for w in news))
    assert len(found) == 1


@settings(max_examples=40)
@given(cases, st.sampled_from([0.01, 1.0, 1e9]))
def test_without_noise_the_release_is_the_clipped_mean_of_numpy(case, limit):
    """Whatever number of clients came: m = 5 is what divides."""
    seed, count, scale = case
    start, updates = updates_of(seed, count, scale)
    guard = central(dp_clip_norm=limit, dp_noise_multiplier=0)
    (update,) = guard.release(1, iter(updates), lambda: start)
    assert (update.client, update.weight, update.num_examples, update.metrics) == (-1, 1.0, 1, {})
    found = update.arrays
    assert {k: (a.shape, a.dtype) for k, a in found.items()} == {
        k: (shape, np.float32) for k, shape in SHAPES.items()
    }
    expected = by_hand(start, updates, limit, 5)
    np.testing.assert_allclose(vector(found), expected, rtol=1e-6, atol=1e-6 * abs(expected).max())


def test_updates_are_dropped_one_by_one():
    """Never a list of whole models: when one comes, those before the last one are gone."""
    start, updates = updates_of(0, 6)
    alive = []

    def stream():
        while updates:
            update = updates.pop()
            array = update.arrays["fc1.weight"]
            alive.append(weakref.ref(array))
            del array
            yield update
            del update
            assert sum(ref() is not None for ref in alive) <= 1

    released(central(), start, stream())
    assert len(alive) == 6


def test_clients_with_other_layers_are_not_mixed_up():
    start, updates = updates_of(0, 2)
    del updates[1].arrays["fc1.bias"]
    with pytest.raises(RunError, match=r'^dp\.mode = "central": client 1 uploads other layers$'):
        released(central(), start, updates)


# Noise --------------------------------------------------------------------------------------------


def assert_gaussian(sample, deviation):
    """Mean, deviation and quantiles of N(0, deviation^2), within five standard errors."""
    size = len(sample)
    assert abs(sample.mean()) < 5 * deviation / math.sqrt(size)
    assert abs(sample.std() / deviation - 1) < 5 / math.sqrt(2 * size)
    for share in (0.025, 0.25, 0.75, 0.975):
        below = (sample < NormalDist(0, deviation).inv_cdf(share)).mean()
        assert abs(below - share) < 5 * math.sqrt(share * (1 - share) / size)


def test_central_noise_is_gaussian_with_z_s_over_m():
    start = {"fc1.weight": np.zeros((100, 50), "f4"), "fc2.weight": np.zeros(3000, "f4")}
    guard = central(dp_clip_norm=0.3, dp_noise_multiplier=1.7)
    draws = [released(guard, start, [], round_) for round_ in range(1, 11)]
    assert_gaussian(np.concatenate([vector(d) for d in draws]), 1.7 * 0.3 / 5)
    assert_gaussian(vector({k: d["fc1.weight"] for k, d in enumerate(draws)}), 1.7 * 0.3 / 5)
    first, second = vector(draws[0]), vector(draws[1])
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 / math.sqrt(len(first))
    assert abs(np.corrcoef(first[:3000], first[5000:])[0, 1]) < 5 / math.sqrt(3000)


def test_secret_noise_comes_from_nowhere_else():
    start, updates = updates_of(1, 4)
    runs = [central(seed=1, dp_secret_noise=True) for _ in range(2)]
    models = [vector(released(run, start, updates)) for run in runs]
    assert (models[0] != models[1]).all()
    samples = [[run.select(t, [], range(10)) for t in range(1, 30)] for run in runs]
    assert samples[0] != samples[1]
    again = [runs[0].select(t, [], range(10)) for t in range(1, 30)]
    assert samples[0] == again  # `select` is asked again
    assert len({secret_seed() for _ in range(100)}) == 100
    assert max(secret_seed().bit_length() for _ in range(50)) > 120


def test_a_variance_is_never_negative():
    """Noise on BatchNorm statistics that travel would make the model useless."""
    mean, variance = next((m, v) for m, v in pairs(LAYOUT))
    noisy = {mean: np.array([-1.0, 2.0]), variance: np.array([-1.0, 2.0]), "fc1.bias": -np.ones(1)}
    found = postprocess(noisy, LAYOUT)
    assert {k: v.tolist() for k, v in found.items()} == {
        mean: [-1.0, 2.0], variance: [0.0, 2.0], "fc1.bias": [-1.0]
    }  # fmt: skip


def pairs(layout):
    """Names of a BatchNorm's mean and variance."""
    for key in sorted(layout.norms):
        if key.endswith("running_mean"):
            yield key, key.replace("running_mean", "running_var")


# Who takes part -----------------------------------------------------------------------------------


@given(st.integers(0, 2**32 - 1), st.integers(1, 500), st.floats(0.001, 1))
def test_poisson_sampling_draws_clients_in_order(seed, clients, fraction):
    chosen = sample_poisson(seed, 1, clients, fraction)
    assert chosen == sorted(set(chosen)) == sample_poisson(seed, 1, clients, fraction)
    assert set(chosen) <= set(range(clients))
    assert fraction < 1 or len(chosen) == clients


def test_poisson_sampling_draws_each_client_by_itself_with_m_over_n():
    rounds, clients = 4000, 40
    taken = np.zeros((rounds, clients))
    for round_ in range(rounds):
        taken[round_, sample_poisson(0, round_, clients, 0.26)] = 1  # m = 10
    error = math.sqrt(0.25 * 0.75 / rounds)
    assert (abs(taken.mean(0) - 0.25) < 5 * error).all()
    counts = taken.sum(1)
    assert counts.var() == pytest.approx(40 * 0.25 * 0.75, rel=0.15)  # binomial: independent
    assert abs(np.corrcoef(taken[:, 0], taken[:, 1])[0, 1]) < 5 / math.sqrt(rounds)


def test_each_mode_draws_clients_as_it_says():
    poisson = central(seed=3)
    fixed = central(seed=3, dp_sampling="fixed")
    others = [central(seed=3, dp_mode=mode) for mode in ("none", "local")]
    for round_ in range(1, 20):
        selected = [round_ % 10]  # by the strategy, which the accountant knows nothing of
        assert poisson.select(round_, selected, range(10)) == sample_poisson(3, round_, 10, 0.5)
        assert fixed.select(round_, selected, range(10)) == sample_clients(3, round_, 10, 0.5)
        for mode in others:
            assert mode.select(round_, selected, range(10)) == selected


# Epsilon ------------------------------------------------------------------------------------------


def accountant(z, m, n, delta, sampling="POISSON", relation="ADD_OR_REMOVE_ONE"):
    sampling, relation = SamplingMethod[sampling], NeighboringRelation[relation]
    mine = RdpAccountant(PrivacyConfig(delta, n, relation, sampling))
    event = GaussianPrivacyEvent(z, m, n)
    return mine, lambda: mine.compose(event)


@pytest.mark.parametrize(
    ("population", "sampled", "z", "rounds", "delta", "epsilon"),
    [  # TensorFlow Privacy, compute_dp_sgd_privacy_test.py
        (60_000, 150, 1.3, 15 * 400, 1e-5, 0.7242234026109595),
        (100_000, 100, 1.0, 30 * 1000, 1e-7, 1.4154988495444845),
    ],
)
def test_epsilon_is_the_published_one(population, sampled, z, rounds, delta, epsilon):
    share = sampled / population
    options = {"num_clients": population, "fraction_train": share, "dp_delta": delta}
    guard = central(dp_noise_multiplier=z, **options)
    guard.state[privacy.RELEASES] = np.array(rounds)
    orders = np.arange(2, 100)
    by_formula = to_epsilon(orders, rounds * sampled_gaussian(share, z, orders), delta)
    for expected in (epsilon, by_formula):
        assert guard.epsilon() == pytest.approx(expected, rel=1e-9)


def begun(guard, rounds, plans):
    """Epsilon after each of some rounds."""
    found = []
    for _ in range(rounds):
        guard.begin(plans)
        found.append(guard.epsilon())
    return found


PLAN = Plan(round=1, download=LAYOUT.names, stages=(), upload=LAYOUT.names)


def test_epsilon_per_round_is_the_accountants():
    mine, compose = accountant(0.8, 5, 10, 1e-3)
    expected = []
    for _ in range(4):
        compose()
        expected.append(mine.get_epsilon(1e-3))
    for plans in ({3: PLAN, 4: PLAN}, {}):  # a round without clients is a release too
        guard = central(dp_noise_multiplier=0.8, dp_delta=1e-3)
        assert begun(guard, 4, plans) == pytest.approx(expected)


def test_the_series_of_a_release_is_added_up_once_for_all_rounds(monkeypatch):
    """It takes half a second with samples of a fixed size."""
    composed, compose = [], RdpAccountant.compose
    monkeypatch.setattr(
        RdpAccountant, "compose", lambda own, *how: composed.append(how) or compose(own, *how)
    )
    guard = central(dp_noise_multiplier=0.913, dp_delta=1e-3, dp_sampling="fixed")
    found = begun(guard, 5, {})
    assert len(composed) == 1
    for rounds, epsilon in enumerate(found, 1):
        assert epsilon == pytest.approx(of_fixed_samples(0.913, 5, 10, rounds, 1e-3))


def of_fixed_samples(z, m, n, rounds, delta):
    """At each order, the smaller RDP of two that hold: Wang et al. 2019, and no sampling at all."""
    mine, step = accountant(z / 2, m, n, delta, "WITHOUT_REPLACEMENT", "REPLACE_ONE")
    step()
    orders, sampled = map(np.asarray, renyi(mine))
    return to_epsilon(orders, rounds * np.minimum(sampled, orders / (2 * (z / 2) ** 2)), delta)


@pytest.mark.parametrize("rounds", [1, 10, 300])
@pytest.mark.parametrize(("z", "clients"), [(1.0, 20), (8.0, 20), (50.0, 100)])
def test_samples_of_a_fixed_size_never_cost_more_than_no_sampling(z, clients, rounds):
    """Whoever is drawn, one replaced client changes the sum by at most 2 S: the RDP is a / (2 s^2).

    Here s = z / 2. The bound for samples alone can be larger, and is where m is almost N.
    """

    def epsilon(drawn):
        options = {"num_clients": clients, "fraction_train": drawn / clients, "dp_delta": 1e-5}
        guard = central(dp_noise_multiplier=z, dp_sampling="fixed", **options)
        guard.state[privacy.RELEASES] = np.array(rounds)
        return guard.epsilon()

    found = [epsilon(drawn) for drawn in (1, clients // 2, clients - 1, clients)]
    assert found == sorted(found)
    orders = np.asarray(renyi(accountant(z, 1, 1, 1e-5)[0])[0])  # all that the accountant has
    without = to_epsilon(orders, rounds * orders / (2 * (z / 2) ** 2), 1e-5)
    assert found[-1] == pytest.approx(without)
    # 1 of N: far less, by the formula for whole orders, of which the accountant knows a better one
    assert found[0] == pytest.approx(of_fixed_samples(z, 1, clients, rounds, 1e-5))
    assert found[0] < 0.7 * without


def test_epsilon_of_local_noise_is_of_the_client_that_was_asked_most_often():
    """Gaussian mechanism with sensitivity 2 S, no sampling: closed form of the RDP, a / (2 z^2)."""
    guard = central(dp_mode="local", dp_noise_multiplier=6.0, dp_delta=1e-3)
    assert guard.epsilon() == 0.0
    for clients in ([0, 1], [1, 2], [1, 5], [2, 7]):
        guard.begin(dict.fromkeys(clients, PLAN))
    assert guard.state[privacy.RELEASES].tolist() == [1, 3, 2, 0, 0, 1, 0, 1, 0, 0]
    orders = np.arange(2, 200)
    exact = to_epsilon(orders, 3 * orders / (2 * 3.0**2), 1e-3)
    mine, compose = accountant(3.0, 1, 1, 1e-3, "NO_AMPLIFICATION")
    for _ in range(3):
        compose()
    assert guard.epsilon() == pytest.approx(mine.get_epsilon(1e-3))
    assert guard.epsilon() == pytest.approx(exact, rel=1e-2)  # it has orders between, too


@pytest.mark.parametrize("options", [{}, {"dp_sampling": "fixed"}, {"dp_mode": "local"}])
def test_epsilon_falls_with_noise_over_its_whole_range_and_grows_with_rounds(options):
    """dp-accounting would say 0 for a multiplier of 1e-160."""
    guards = [central(dp_noise_multiplier=z, **options) for z in (1e-3, 0.1, 10, 1000)]
    found = [begun(guard, 2, {0: PLAN}) for guard in guards]
    for (first, second), (later, _) in itertools.pairwise(found):
        assert second > first > later >= 0
    assert found[0][0] > 1e5


@pytest.mark.parametrize("mode", ["local", "central"])
@pytest.mark.parametrize("persistent", [True, False])
def test_constants_that_get_noise_are_named_once(tiny_npz, monkeypatch, caplog, mode, persistent):
    def make(shape, classes):
        body = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 4), nn.BatchNorm1d(4))
        body.register_buffer("places", torch.linspace(1, 2, 4), persistent=persistent)
        return nn.Sequential(body, nn.Linear(4, classes))

    monkeypatch.setitem(models.MODELS, "constants", of_images(make))
    keys = 'strategy="fedavg" model="constants" num-clients=3 fraction-train=1.0 dp.delta=0.01'
    space = Workspace(config.read(config.parse([f'{tiny_npz} {keys} dp.mode="{mode}"'])))
    strategy = registry.strategy_class("fedavg")(space)
    found = privacy.MODES[mode](space.settings, space.layout, {}, range(3))
    for round_ in (1, 2):
        found.begin({client: strategy.plan(round_, client) for client in range(3)})
    told = f'dp.mode = "{mode}": 0.places, no parameters, also get noise'
    assert [told in record.getMessage() for record in caplog.records] == [True] * persistent


def test_without_noise_nothing_is_private_and_without_dp_nothing_is_claimed(caplog, capfd):
    assert begun(central(), 1, {})[0] > 0
    assert (caplog.text, capfd.readouterr().err) == ("", "")  # the accountant is quiet
    assert begun(central(dp_noise_multiplier=0), 2, {}) == [math.inf, math.inf]
    assert begun(central(dp_mode="none"), 2, {1: PLAN}) == [None, None]


# Adaptive clipping --------------------------------------------------------------------------------


def moved(norms):
    """A start and updates of these norms in some direction."""
    start = {"fc1.bias": np.zeros(3, "f4")}
    turns = np.random.default_rng(0).normal(size=(len(norms), 3))
    turns *= (np.asarray(norms) / np.linalg.norm(turns, axis=1))[:, None]
    return start, [ClientUpdate(i, {"fc1.bias": v.astype("f4")}, 1) for i, v in enumerate(turns)]


def adapted(norms, rounds, **changes):
    """S after so many rounds in which all clients have these norms; m is their number."""
    options = {"num_clients": len(norms), "fraction_train": 1.0, "dp_adaptive": True}
    guard = central(**(options | changes))
    start, updates = moved(norms)
    history = []
    for round_ in range(1, rounds + 1):
        released(guard, start, updates, round_)
        history.append(guard.clip_norm)
    return np.array(history)


@pytest.mark.parametrize("first", [THOROUGH(1e-3), 50.0])
@pytest.mark.parametrize("target", [0.1, 0.9])
def test_s_converges_to_the_quantile_of_norms(target, first):
    norms = np.random.default_rng(1).lognormal(size=200)
    options = {"dp_target_quantile": target, "dp_clip_norm": first, "dp_clip_lr": 0.5}
    quiet = adapted(norms, 250, dp_noise_multiplier=0, **options)
    assert np.mean(norms <= quiet[-1]) == pytest.approx(target, abs=0.02)
    noisy = adapted(norms, 250, dp_noise_multiplier=1.0, **options)  # sigma_b = m / 20 = 10
    within = [np.mean(norms <= s) for s in noisy[150:]]
    assert np.mean(within) == pytest.approx(target, abs=0.03)
    assert np.std(noisy[150:]) > 0


def test_a_step_of_s_is_that_of_the_paper():
    norms = [0.5, 0.9, 1.1, 3.0, 4.0]
    changes = {"dp_clip_norm": 1.0, "dp_clip_lr": 0.3, "dp_target_quantile": 0.7}
    (s,) = adapted(norms, 1, dp_noise_multiplier=0, **changes)
    assert s == pytest.approx(math.exp(-0.3 * (2 / 5 - 0.7)), rel=1e-12)
    sigma, logs = 0.4, []
    for seed in range(200):
        options = {"dp_noise_multiplier": 0.2, "dp_count_noise": sigma, "seed": seed}
        logs.append(math.log(adapted(norms, 1, **options, **changes)[0]))
    shares = np.array(logs) / -0.3 + 0.7  # b~ = 2/5 + N(0, sigma^2) / m, hardly ever cut off
    assert_gaussian(shares - 0.4, sigma / 5)


def test_the_vectors_get_more_noise_so_that_both_cost_what_z_costs():
    guard = central(dp_adaptive=True, dp_noise_multiplier=0.8, dp_count_noise=0.6)
    assert guard.vector_noise**-2 + (2 * guard.count_noise) ** -2 == pytest.approx(0.8**-2)
    assert guard.epsilon() == central(dp_noise_multiplier=0.8).epsilon()
    start = {"fc1.weight": np.zeros(20_000, "f4")}
    assert_gaussian(vector(released(guard, start, [])), guard.vector_noise / 5)
    assert central(num_clients=100, dp_adaptive=True).count_noise == 50 / 20


def test_noise_is_that_of_the_norm_that_clipped():
    """Not of the next round's, as in Flower 1.41."""
    options = {"dp_clip_norm": 2.0, "dp_clip_lr": 1.0, "dp_target_quantile": 0.9}
    guard = central(dp_adaptive=True, dp_noise_multiplier=0.4, **options)
    start, limit = {"fc1.weight": np.zeros(20_000, "f4")}, 2.0
    for round_ in (1, 2, 3):
        sample = vector(released(guard, start, [], round_))
        assert_gaussian(sample, guard.vector_noise * limit / 5)
        assert guard.clip_norm > 1.1 * limit
        limit = guard.clip_norm


@pytest.mark.parametrize(("norm", "share"), [(0.5, 1.0), (1.0, 1.0), (1.001, 0.0)])
def test_more_clients_than_expected_make_no_share_outside_of_0_and_1(norm, share):
    """Ten were drawn where five were expected; a norm of S is within S."""
    guard = central(dp_adaptive=True, dp_noise_multiplier=0, dp_clip_lr=0.3)
    start = {"fc1.bias": np.zeros(3, "f4")}
    update = {"fc1.bias": np.array([norm, 0, 0], "f4")}
    released(guard, start, [ClientUpdate(i, update, 1) for i in range(10)])
    assert guard.clip_norm == pytest.approx(math.exp(-0.3 * (share - 0.5)))


# Local noise --------------------------------------------------------------------------------------


def sent(received, upload, client=4, plan=PLAN, **changes):
    chosen = make_settings(**({"dp_mode": "local"} | changes))
    return privatize(chosen, LAYOUT, plan, client, received, upload)


def test_a_client_clips_its_own_update():
    start, (update,) = updates_of(5, 1, 10.0)
    found = sent(start, update.arrays, dp_clip_norm=0.5, dp_noise_multiplier=0)
    expected = by_hand(start, [update], 0.5, 1)
    np.testing.assert_allclose(vector(found), expected, rtol=1e-6, atol=1e-6)
    for mode in ("none", "central"):
        assert sent(start, update.arrays, dp_mode=mode) is update.arrays


def test_local_noise_is_gaussian_with_z_s_and_differs_by_client_and_round():
    start = {"fc1.weight": np.zeros(20_000, "f4")}
    options = {"dp_clip_norm": 0.3, "dp_noise_multiplier": 1.7}
    base = sent(start, start, **options)["fc1.weight"]
    assert_gaussian(base.astype(np.float64), 1.7 * 0.3)
    np.testing.assert_array_equal(sent(start, start, **options)["fc1.weight"], base)
    later = Plan(round=2, download=LAYOUT.names, stages=(), upload=LAYOUT.names)
    for other in ({"client": 5}, {"plan": later}, {"seed": 1}, {"dp_secret_noise": True}):
        other = sent(start, start, **options, **other)
        assert abs(np.corrcoef(other["fc1.weight"], base)[0, 1]) < 5 / math.sqrt(20_000)


@pytest.mark.parametrize(("changes", "reason"), [
    ({"sends": {"phi/x": (1,)}}, "has clients send more than layers"),
    ({"channel": Channel(address="a:1", token="")}, "has clients send more than layers"),
    ({"upload": ()}, "uploads nothing"),
    ({"download": LAYOUT.body}, f"uploads {LAYOUT.head[0]}, but clients start from other"),
    ({"also_keep": LAYOUT.head}, f"uploads {LAYOUT.head[0]}, but clients start from other"),
])  # fmt: skip
@pytest.mark.parametrize("mode", ["central", "local"])
def test_a_plan_under_which_more_would_leave_is_refused(changes, reason, mode):
    values = {"round": 1, "download": LAYOUT.names, "stages": (), "upload": LAYOUT.names}
    plan = Plan(**(values | changes))
    text = rf'^dp\.mode = "{mode}": this strategy {reason}.*; use "none"$'
    for guard in (central(dp_mode=mode), central(dp_mode=mode)):
        with pytest.raises(RunError, match=text):
            guard.begin({1: plan})
    if mode == "local":  # the client trusts no server
        start, (update,) = updates_of(0, 1)
        with pytest.raises(RunError, match=text):
            sent(start, update.arrays, plan=plan)
    check_plan(make_settings(), LAYOUT, plan)


# What is refused ----------------------------------------------------------------------------------


REFUSED = {
    "dp.delta = 0.1: must be below 1 / num-clients = 0.1": {"dp_delta": 0.1},
    'presum = true: dp.mode = "central" needs every client\'s update; use false': {"presum": True},
    'dp.mode = "central": with server-data the server trains on samples of clients, without noise; '
    "use server-data=0": {"server_data": 0.1},
    "dp.count-noise = 0.5: must be above dp.noise-multiplier / 2 = 0.5 (0 means m/20 = 0.25)": {
        "dp_adaptive": True, "dp_noise_multiplier": 1.0, "dp_count_noise": 0.5,
    },
    "dp.noise-multiplier = 1e-160: must be 0, or from 0.001 to 1000": {
        "dp_noise_multiplier": 1e-160,
    },
    'dp.adaptive = true: only with dp.mode = "central"': {"dp_mode": "local", "dp_adaptive": True},
}  # fmt: skip


def test_settings_that_do_not_fit_are_refused_in_one_line():
    for text, changes in REFUSED.items():
        with pytest.raises(RunError, match=rf"^{re.escape(text)}$"):
            central(**changes)
    for fine in ({"presum": True}, {"server_data": 0.1, "dp_mode": "none"}):
        central(**({"dp_mode": "local"} | fine))


@pytest.mark.parametrize("mode", ["central", "local"])
@pytest.mark.parametrize(
    ("field", "value", "key", "off"),
    [("patience", 3, "patience=3", 0), ("keep_best", True, "keep-best=true", "false")],
)
def test_no_round_is_chosen_by_exact_accuracies(field, value, key, off, mode):
    chosen = {"evaluate_on": "validation", "validation_fraction": 0.2, field: value}
    why = f"{key} chooses a round by scores of clients, without noise"
    line = f'dp.mode = "{mode}": {why}; use {key.partition("=")[0]}={off}'
    with pytest.raises(RunError, match=rf"^{re.escape(line)}$"):
        central(dp_mode=mode, **chosen)
    central(dp_mode="none", **chosen)


def counts_asked(strategy):
    return Question("class-counts", 10)


@pytest.mark.parametrize(("mode", "hook", "own", "fits"), [
    ("central", "screen", lambda self, round_, updates: updates, False),
    ("local", "screen", lambda self, round_, updates: updates, True),  # the noise is in them
    ("central", "question", counts_asked, False),
    ("local", "question", counts_asked, False),
    ("central", "answered", lambda self, answers: None, False),
    ("central", "end_round", lambda self, round_: {}, True),
])  # fmt: skip
def test_a_strategy_that_sees_more_than_noisy_updates_is_refused(mode, hook, own, fits, tiny_npz):
    _, space = space_of("cnn", tiny_npz)
    make = type("Own", (registry.strategy_class("fedavg"),), {hook: own})
    chosen = config.read(space_of("cnn", tiny_npz)[0] | {"strategy": "fedavg", "dp.mode": mode})
    if fits:
        Rounds(make(space, chosen))
        return
    reason = f"replaces {hook}, and only" if mode == "central" else "asks clients a question, "
    with pytest.raises(RunError, match=rf'^dp\.mode = "{mode}": this strategy {reason}.*"none"$'):
        Rounds(make(space, chosen))


@pytest.mark.parametrize("method", ["lgfedavg", "feddyn", "scaffold", "local", "pfedsim", "asking"])
def test_central_privacy_advises_local_privacy_only_where_it_works(method, tiny_npz):
    flat, space = space_of("cnn", tiny_npz)
    name = "fedavg" if method == "asking" else method
    make = registry.strategy_class(name)
    if method == "asking":
        make = type("Own", (make,), {"question": counts_asked})

    def run(mode):
        Rounds(make(space, config.read(flat | {"strategy": name, "dp.mode": mode})))

    with pytest.raises(RunError, match=r"replaces .* is made private; use ") as central:
        run("central")
    try:
        run("local")
    except RunError:
        assert str(central.value).endswith('; use "none"')
    else:
        assert str(central.value).endswith('; use "local" or "none"')


@pytest.mark.parametrize("mode", ["none", "local", "distributed"])
def test_a_client_that_adds_noise_answers_no_question(mode, flat_config, monkeypatch):
    """Whatever the server says: it is asked as a server would that has left out the check."""
    client = registry.client_class("fedavg")
    monkeypatch.setattr(client, "answer", lambda self, name: [float(len(self.train_data[1]))])
    options = f'strategy="fedavg" secure-sum=true dp.mode="{mode}"'
    grid = SerialGrid(client_app.app, flat_config(options), 1)
    (node,) = grid.get_node_ids()
    sent = grid.push_messages([pack_question([0, 1], node, "samples", "")])
    if mode == "none":
        (reply,) = grid.pull_messages(sent)
        answers, failures = unpack_answers([0, 1], reply)
        assert answers.keys() == {0, 1} and not failures
    else:
        text = rf'^dp\.mode = "{mode}": samples: answers get no noise; use "none"$'
        with pytest.raises(RunError, match=text):
            grid.pull_messages(sent)


def test_central_privacy_refuses_an_end_by_failures_of_who_was_drawn():
    """Failures are exact: whether such a run ends would tell who was in a round."""
    line = r'^dp\.mode = "central": max-failures=%d ends a run by failures of the clients that were'
    for limit in (0, 2):
        with pytest.raises(RunError, match=line % limit + ".*; use max-failures=-1$"):
            central(max_failures=limit)
        central(max_failures=limit, dp_mode="local")  # the server knows whom it asks
    central(max_failures=-1)


def test_a_machine_without_the_accountant_says_what_to_install(monkeypatch):
    def missing(config):
        raise ImportError('pip install "flwr[dp]"')

    monkeypatch.setattr(accounting, "RdpAccountant", missing)
    for mode in ("central", "local"):
        with pytest.raises(RunError, match=r'^dp\.mode: pip install "flwr\[dp\]"$'):
            central(dp_mode=mode)


def test_a_false_sense_of_privacy_is_warned_of():
    def told(**changes):
        return privacy.warnings(make_settings(**changes))

    assert told() == []
    assert told(dp_clip_norm=3.0) == ['dp.clip-norm = 3.0 has no effect with dp.mode = "none"']
    assert "no privacy" in told(dp_mode="central")[0]
    assert "nothing is private" in told(dp_mode="central", dp_noise_multiplier=0)[0]
    assert told(dp_mode="local", dp_secret_noise=True) == []


@pytest.mark.parametrize("mode", ["central", "local"])
def test_means_over_all_clients_are_not_private_and_a_run_says_so(mode, tmp_path, tiny_npz):
    """Values of bytes have constants; those of a table are scaled by what all clients have."""
    lines = [f"{k},{k % 7},{k % 2}" for k in range(60)]
    (tmp_path / "own.csv").write_text("\n".join(["a,b,label", *lines]), "utf-8")
    run = f'num-clients=3 model="mlp" dp.mode="{mode}" min-samples=2'

    def told(*keys):
        return privacy.of_pooled_values(Workspace(config.read(config.parse([run, *keys]))))

    own = f'dataset="{tmp_path}/own.csv"'
    line = told(own)[-1]
    assert "epsilon does not cover these" in line
    assert line.endswith("; for real data, use values that are scaled already, or devices")
    assert not told(own, 'dp.mode="none"') and not told(own, "dp.noise-multiplier=0.0")
    assert not any("scaled" in line for line in told(tiny_npz, 'model="cnn"'))
    devices = 'dataset="device" input-shape="2" task="regression"'
    assert not told(devices)


@pytest.mark.parametrize(("mode", "clients", "told"), [
    ("central", 0, True), ("central", 6, False), ("local", 0, False), ("none", 0, False),
])  # fmt: skip
def test_a_number_of_clients_that_the_data_say_is_not_private(mode, clients, told, tmp_path):
    """m, which divides the central noise, comes from it; local noise does not depend on it."""
    people = np.repeat(np.arange(6), 10)
    images = np.zeros((60, 8, 8, 1), np.uint8)
    np.savez(tmp_path / "own.npz", images=images, labels=people % 3, groups=people)
    run = f'dataset="{tmp_path}/own.npz" partitioner="natural" num-clients={clients} min-samples=2'
    flat = config.parse([f'{run} model="mlp" dp.mode="{mode}"'])
    found = privacy.of_pooled_values(Workspace(config.read(flat)))
    lines = [line for line in found if "num-clients" in line]
    assert [line.partition(", as public")[0][-1] for line in lines] == ["6"] * told


def test_what_one_client_alone_can_add_to_the_model_is_named(tmp_path, tiny_npz):
    """A row with a category, or a class, that nobody else has makes the model larger."""

    def table(name, *more):
        rows = [f"{k},{'fm'[k % 2]},{'ab'[k % 2]}" for k in range(60)]
        (tmp_path / name).write_text("\n".join(["age,sex,label", *rows, *more]), "utf-8")
        return f'dataset="{tmp_path / name}"'

    def space(*keys):
        run = 'num-clients=3 dp.mode="central" min-samples=2 partitioner="iid"'
        return Workspace(config.read(config.parse([run, 'model="mlp"', *keys])))

    def told(*keys):
        return [n for n in privacy.of_pooled_values(space(*keys)) if "shape" in n]

    one, more = table("one.csv"), table("more.csv", "9,x,b", "9,f,c")
    shapes = [{k: v.shape for k, v in space(own).initial.items()} for own in (one, more)]
    assert shapes[0] != shapes[1]
    (line,) = told(one)
    assert "columns with their categories and the classes are those found in the samples" in line
    named = "name them in an .npz (class_names), or use devices"
    assert line.endswith(f"which epsilon does not cover; for real data, set columns; {named}")
    (line,) = told(one, 'columns="age,sex=f|m"')
    assert "columns" not in line and "the classes are those found" in line
    numbers = one, 'target-column="age" task="regression"'
    (line,) = told(*numbers)
    assert "classes" not in line and line.endswith("for real data, set columns")
    assert not told(*numbers, 'columns="sex=f|m,label=a|b"')
    assert not told(one, 'dp.mode="none"') and not told(one, "dp.noise-multiplier=0.0")

    (line,) = told(tiny_npz, 'model="cnn"')
    assert "the classes are those found" in line
    with np.load(tiny_npz.split('"')[1]) as file:
        np.savez(tmp_path / "named.npz", **file, class_names=np.array([*map(str, range(10))]))
    assert not told(f'dataset="{tmp_path}/named.npz" model="cnn"')
    assert not told('dataset="device" input-shape="2"')
    assert not told('dataset="digits" model="cnn"')  # its classes are known, as it is


@cache
def space_of(model, tiny):
    flat = config.parse([tiny, 'num-clients=4 device="cpu"', f'model="{model}"'])
    return flat, Workspace(config.read(flat))


def test_distributed_privacy_works_with_the_same_methods_as_central_as_the_page_says():
    """A test holds this table against the code (`tests/engine/test_combinations.py`)."""
    assert "**Distributed privacy** works with the same methods" in PAGE
    page = (ROOT / "docs" / "methods.md").read_text("utf-8")
    rows = re.findall(r"^\| (\w+) \| (yes|no) \| (yes|no) \| (yes|no) \|", page, re.M)
    assert {name for name, *_ in rows} == {*registry.names()}
    assert all(central == shared_out for _, central, _, shared_out in rows)


# Whole runs ---------------------------------------------------------------------------------------

RUN = 'model="lenet5" num-clients=4 num-rounds=3 finetune-epochs=0 evaluate-every=0 seed=3'
CLIP = 1.13
NOISY = f'dp.mode="central" dp.clip-norm={CLIP} dp.noise-multiplier=0.05 dp.sampling="fixed" '


def replayed(fits, m):
    """The server's model by NumPy: from the recorded updates, round by round."""
    model = {k: v.astype(np.float64) for k, v in fits[0][0].workspace.initial.items()}
    norms = []
    for round_ in sorted({request.plan.round for _, _, request, _ in fits}):
        updates = [u for _, _, request, u in fits if request.plan.round == round_]
        start = {key: model[key].astype("f4") for key in updates[0].arrays}
        norms += [np.linalg.norm(vector(u.arrays) - vector(start)) for u in updates]
        mean = by_hand(start, updates, CLIP, m)
        draws, at = generator(3, "dp-noise", round_), 0
        for key, value in start.items():
            noise = draws.standard_normal(value.shape)
            part = mean[at : at + value.size].reshape(value.shape)
            model[key] = part + 0.05 * CLIP / m * noise
            at += value.size
    return model, norms


@pytest.mark.parametrize("method", ["fedper", THOROUGH("fedseq"), THOROUGH("fedbn")])
def test_a_whole_run_is_that_of_numpy(method, serial_run, fits, read_model, read_rounds):
    """Slices only: what is not uploaded gets no noise."""
    options = f'strategy="{method}" fedseq.unfreeze-rounds="0,5,6,7"'
    folder = serial_run(RUN, NOISY, options)
    client = fits[0][0]
    expected, norms = replayed(fits, m=2)
    if method == "fedper":  # some were clipped, some were not
        assert max(norms) > CLIP > min(norms)
    found, initial = read_model(folder), client.workspace.initial
    shared = set(fits[0][3].arrays)
    assert shared < set(initial)
    for key, value in found.items():
        np.testing.assert_allclose(value, expected[key], rtol=1e-5, atol=1e-6)
        if key not in shared:
            np.testing.assert_array_equal(value, initial[key])
    rows = read_rounds(folder)
    for row in (row for row in rows if row["phase"] == "train"):
        expected = of_fixed_samples(0.05, 2, 4, row["round"], 1e-5)
        assert row["epsilon"] == pytest.approx(expected)
    assert rows[-1]["epsilon"] == rows[2]["epsilon"]  # fine-tuning releases nothing


@pytest.mark.parametrize("mode", ["central", "local"])
def test_personal_layers_are_those_of_a_run_without_noise(mode, serial_run, fits):
    """In round 1 all start alike; what stays on the client is what it trained."""
    base = [RUN, 'strategy="fedper" num-rounds=1']
    serial_run(*base)
    plain = {client.client: state for client, state, *_ in fits}
    fits.clear()
    serial_run(*base, NOISY, f'dp.mode="{mode}"')
    assert {client.client for client, *_ in fits} == plain.keys()
    for client, state, _, _ in fits:
        assert state.keys() == plain[client.client].keys()
        for key, value in state.items():
            np.testing.assert_array_equal(value.numpy(), plain[client.client][key].numpy())


@pytest.mark.parametrize("more", ["", "presum=true"])
def test_the_server_gets_local_noise(more, serial_run, fits, read_model, read_rounds):
    """Of clients with other sample counts; these are exact, so that they are no weights."""
    base = [RUN, 'strategy="fedbabu" num-rounds=1 fraction-train=1.0', more]
    serial_run(*base)
    trained = {update.client: update for *_, update in fits}
    fits.clear()
    options = 'dp.mode="local" dp.clip-norm=0.2 dp.noise-multiplier=0.1'
    folder = serial_run(*base, options)
    for client, _, request, update in fits:
        start = {key: request.arrays[key] for key in update.arrays}
        draws = generator(3, "dp-local", 1, client.client)
        expected, at = by_hand(start, [trained[client.client]], 0.2, 1), 0
        for value in update.arrays.values():
            part = expected[at : at + value.size].reshape(value.shape)
            noise = 0.1 * 0.2 * draws.standard_normal(value.shape)
            np.testing.assert_allclose(value, part + noise, rtol=1e-5, atol=1e-6)
            at += value.size
    assert len({update.num_examples for *_, update in fits}) > 1
    for key, value in read_model(folder).items():
        if key in fits[0][3].arrays:
            stack = [update.arrays[key].astype(np.float64) for *_, update in fits]
            mean = np.mean(stack, 0)
            np.testing.assert_allclose(value, mean, rtol=1e-5, atol=1e-6)
    mine, compose = accountant(0.05, 1, 1, 1e-5, "NO_AMPLIFICATION")
    compose()
    assert read_rounds(folder)[0]["epsilon"] == pytest.approx(mine.get_epsilon(1e-5))


@pytest.mark.parametrize(
    "options",
    ['dp.mode="central" dp.adaptive=true dp.noise-multiplier=0.1', 'dp.mode="local"'],
)
def test_the_number_of_supernodes_changes_nothing(options, serial_run):
    base = [RUN, 'strategy="fedbabu" fraction-train=0.75', options]
    assert differences(*(serial_run(*base, num_supernodes=n) for n in (1, 3))) == []


def test_a_round_without_clients_is_noise_alone(serial_run, tiny_npz, read_model, read_rounds):
    seed = next(s for s in range(99) if not sample_poisson(s, 1, 4, 0.25))
    folder = serial_run(RUN, f'strategy="fedbabu" fraction-train=0.25 num-rounds=1 seed={seed}',
        'dp.mode="central" dp.noise-multiplier=0.5 dp.clip-norm=0.1 finetune-epochs=1',
    )  # fmt: skip
    (row,) = read_rounds(folder)
    assert (row["clients"], row["failures"], row["train_loss"]) == (0, 0, None)
    assert row["epsilon"] > 0 and row["accuracy_personalized"] is not None
    model = read_model(folder)
    flat = config.parse([tiny_npz, RUN, f"seed={seed}"])
    initial = Workspace(config.read(flat)).initial
    head = {key for key in model if key.startswith("classifier.")}
    assert_gaussian(vector({k: model[k] - initial[k] for k in model.keys() - head}), 0.5 * 0.1)
    assert all(np.array_equal(model[key], initial[key]) for key in head)


def test_a_final_phase_spends_nothing_and_hides_nothing(serial_run, read_rounds):
    """FedSeq's fine-tuning releases nothing, so its row has the epsilon of the round before it."""
    options = 'strategy="fedseq" num-rounds=2 dp.mode="central" dp.noise-multiplier=5.0'
    first, second, last = read_rounds(serial_run(options, "dp.delta=1e-3"))
    assert last["phase"] == "finetune"
    assert last["epsilon"] == second["epsilon"] > first["epsilon"] > 0


def test_the_norm_of_every_round_is_an_event(serial_run, read_csv):
    options = 'dp.mode="central" dp.adaptive=true dp.noise-multiplier=0.1 dp.clip-norm=0.5'
    folder = serial_run(RUN, 'strategy="fedavg"', options)
    events = [row for row in read_csv(folder, "events.csv") if row["kind"] == "clip-norm"]
    assert [row["round"] for row in events] == ["1", "2", "3"]
    assert {row["client"] for row in events} == {"server"}
    assert events[0]["detail"] == "0.5"
    assert len({row["detail"] for row in events}) == 3


# What the page says -------------------------------------------------------------------------------


def test_the_epsilons_of_the_page():
    columns = " *".join([r"([\d.]+) \|"] * 7)
    rows = re.findall(rf"^\| {columns}$", PAGE, re.M)
    assert len(rows) == 4
    for row in rows:
        n, m, rounds, z, *expected = map(float, row)
        options = {"num_clients": int(n), "fraction_train": m / n, "dp_delta": 1e-6}
        modes = ({}, {"dp_sampling": "fixed"}, {"dp_mode": "local"})
        for mode, value in zip(modes, expected, strict=True):
            guard = central(**options, **mode, dp_noise_multiplier=z)
            share = m / n if "dp_mode" in mode else 1
            guard.state[privacy.RELEASES] = np.array(int(rounds * share))
            assert round(guard.epsilon(), 2) == value
