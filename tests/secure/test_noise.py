"""The noise of distributed privacy: discrete Gaussians, and values on the grid."""

import math
from fractions import Fraction
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedapps.core import config
from fedapps.core.errors import RunError
from fedapps.secure import noise
from fedapps.secure.client import least
from fedapps.secure.masks import PART

SIZE = 200_000


def settings(**changes):
    """Settings with the keys dp.clip-norm, dp.noise-multiplier, ... and a seed."""
    keys = {f"dp.{key.replace('_', '-')}": value for key, value in changes.items()}
    keys = {"seed" if key == "dp.seed" else key: value for key, value in keys.items()}
    mode = {"strategy": "fedavg", "secure-sum": True, "dp.mode": "distributed"}
    return config.read(config.defaults() | mode | keys)


@pytest.mark.parametrize("deviation", [0.8, 3.0, 16.0])
def test_every_integer_has_the_probability_of_the_discrete_gaussian(deviation):
    """Also where a rounded Gaussian has another one: at 0.8, for example, of 0."""
    found = noise.discrete_gaussian(np.random.default_rng(1), deviation, SIZE)
    reach = np.arange(-200, 201)
    shares = np.exp(-(reach**2) / (2 * deviation**2))
    shares /= shares.sum()
    seen = dict(zip(*np.unique(found, return_counts=True), strict=True))
    for k, share in zip(reach.tolist(), shares, strict=True):
        if share * SIZE > 100:
            assert abs(seen.get(k, 0) / SIZE - share) < 5 * math.sqrt(share / SIZE)
    assert found.dtype == np.int64
    if deviation < 1:
        gauss = NormalDist(0, deviation)
        rounded = gauss.cdf(0.5) - gauss.cdf(-0.5)
        assert abs(rounded - shares[200]) > 10 * math.sqrt(shares[200] / SIZE)


@pytest.mark.parametrize("deviation", [5e6, noise.MOST_STEPS])
def test_large_noise_is_gaussian_down_to_its_last_bits(deviation):
    found = noise.discrete_gaussian(np.random.default_rng(2), deviation, SIZE)
    assert abs(found.mean()) < 5 * deviation / math.sqrt(SIZE)
    assert abs(found.std() / deviation - 1) < 5 / math.sqrt(2 * SIZE)
    for share in (0.001, 0.25, 0.75, 0.999):
        below = (found < NormalDist(0, deviation).inv_cdf(share)).mean()
        assert abs(below - share) < 5 * math.sqrt(share * (1 - share) / SIZE)
    for bit in range(4):
        assert abs((found >> bit & 1).mean() - 0.5) < 5 * 0.5 / math.sqrt(SIZE)
    for lag in (1, PART):
        assert abs(np.corrcoef(found[lag:], found[:-lag])[0, 1]) < 5 / math.sqrt(SIZE - lag)


def test_noise_is_of_a_seed_a_round_and_a_client_or_of_nobody():
    base = noise.own_part(settings(), 1, 4, 3, 1000)
    np.testing.assert_array_equal(noise.own_part(settings(), 1, 4, 3, 1000), base)
    for other in (
        noise.own_part(settings(), 2, 4, 3, 1000),
        noise.own_part(settings(), 1, 5, 3, 1000),
        noise.own_part(settings(seed=1), 1, 4, 3, 1000),
        noise.own_part(settings(secret_noise=True), 1, 4, 3, 1000),
        noise.own_part(settings(secret_noise=True), 1, 4, 3, 1000),
    ):
        assert abs(np.corrcoef(other, base)[0, 1]) < 5 / math.sqrt(1000)
    secret = [noise.own_part(settings(secret_noise=True), 1, 4, 3, 9).tolist() for _ in range(2)]
    assert secret[0] != secret[1]
    assert not noise.own_part(settings(noise_multiplier=0.0), 1, 4, 3, 1000).any()


@pytest.mark.parametrize("count", [3, 4, 5, 6, 7, 100, 500])
def test_those_that_must_stay_have_all_of_the_noise_together(count):
    """And all clients at most one and a half times as much."""
    dp = settings(noise_multiplier=1.7, clip_norm=0.3).dp
    one = (noise.deviation(dp, least(count)) / 2**24) ** 2
    assert least(count) * one == pytest.approx((1.7 * 0.3) ** 2, rel=1e-12)
    assert count * one <= 1.5 * (1.7 * 0.3) ** 2 * (1 + 1e-12)


def test_with_the_least_noise_that_is_accepted_tau_is_as_small_as_we_say():
    """Its exponents are largest for k = 1; there are at most 499."""
    log10 = math.log10(10 * 499) - math.pi**2 * noise.FEWEST_STEPS**2 * math.log10(math.e)
    assert log10 < -1000


def test_noise_that_the_grid_cannot_hold_is_refused():
    fewest, most = (4 * 2.0**bits / 2**24 for bits in (4, 40))  # 16 clients: sqrt(16) = 4
    for fine in (fewest, most):
        noise.deviation(settings(clip_norm=fine).dp, 16)
    for steps in (fewest * 0.999, most * 1.001):
        with pytest.raises(RunError, match=r"^dp\.noise-multiplier = 1: times dp\.clip-norm = .*"):
            noise.deviation(settings(clip_norm=steps).dp, 16)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20))
def test_rounding_to_the_grid_makes_no_norm_larger(values):
    found = noise.on_grid({"a": np.array(values)})["a"].tolist()
    for value, rounded in zip(values, found, strict=True):
        assert (Fraction(rounded) * 2**24).denominator == 1
        assert abs(rounded) <= abs(value) and rounded * value >= 0
        assert abs(Fraction(value) - Fraction(rounded)) < Fraction(1, 2**24)
