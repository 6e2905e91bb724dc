"""The noise of distributed privacy: each client of a secure sum adds its part, in integers.

Kairouz, Liu, Steinke: The Distributed Discrete Gaussian Mechanism for Federated Learning with
Secure Aggregation, ICML 2021. At least t clients are in a sum. Each clips its update to the norm S,
and rounds it towards zero to multiples of 2^-24, which makes no norm larger. To each of the d
entries it adds a discrete Gaussian of standard deviation s = z S / sqrt(t). So the noise of the sum
has z S or more.

If a client changes the sum by at most Delta, then by their Proposition 14 the Renyi divergence of
order a is at most (a / 2) (Delta / (z S) + sqrt(d) tau)^2, where for n clients

    tau = 10 sum_{k=1}^{n-1} exp(-2 pi^2 (2^24 s)^2 k / (k + 1)).

With 2^24 s of 16 or more and n of at most 500, tau is below 10^-1000. So the divergence is that of
the Gaussian mechanism.
"""

import math
from collections.abc import Mapping

import numpy as np

from fedapps.core.draws import generator, secret_seed
from fedapps.core.errors import RunError
from fedapps.core.privacy_settings import PrivacySettings
from fedapps.core.settings import Settings
from fedapps.models.layers import Arrays
from fedapps.secure.masks import PART, SCALE

# Steps of 2^-24 that a client's noise may have as its standard deviation. With fewer, tau counts;
# with more, a float64 draw, which has 52 bits, could not take every value.
FEWEST_STEPS, MOST_STEPS = 2.0**4, 2.0**40


def on_grid(arrays: Mapping[str, np.ndarray]) -> Arrays:
    """Return arrays rounded towards zero to multiples of 2^-24 (float64, by name)."""
    return {key: np.trunc(SCALE * value) / SCALE for key, value in arrays.items()}


def deviation(dp: PrivacySettings, least: int) -> float:
    """Return the standard deviation of a client's noise, in steps of 2^-24.

    At least `least` clients add theirs. Raises `RunError` if the noise is too small or too large.
    """
    steps = SCALE * dp.noise_multiplier * dp.clip_norm / math.sqrt(least)
    if steps and not FEWEST_STEPS <= steps <= MOST_STEPS:
        how, limit = ("least", FEWEST_STEPS) if steps < FEWEST_STEPS else ("most", MOST_STEPS)
        raise RunError(
            f"dp.noise-multiplier = {dp.noise_multiplier:g}: times dp.clip-norm = "
            f"{dp.clip_norm:g} it must be at {how} {limit * math.sqrt(least) / SCALE:.3g} (or 0) "
            'with dp.mode = "distributed"'
        )
    return steps


def own_part(settings: Settings, round_: int, client: int, least: int, size: int) -> np.ndarray:
    """Return a client's noise in a round, int64 [size], in steps of 2^-24."""
    seed = secret_seed() if settings.dp.secret_noise else settings.seed
    draws = generator(seed, "dp-distributed", round_, client)
    return discrete_gaussian(draws, deviation(settings.dp, least), size)


def discrete_gaussian(draws: np.random.Generator, deviation: float, size: int) -> np.ndarray:
    """Return draws (int64 [size]) of integers k with probability ~ exp(-k^2 / (2 deviation^2)).

    A Gaussian k + u of variance A = B + deviation / 2, where B = deviation^2 and k is the nearest
    integer, is kept with probability exp((k + u)^2 / 2A - k^2 / 2B - 1 / (4 deviation)). This is
    at most 1, since |u| <= 1/2, and makes the probability of k that of the discrete Gaussian for
    every u. About one in 2 deviation is drawn again. Exact up to the 52 bits of NumPy's draws.
    """
    found = np.zeros(size, np.int64)
    if not deviation:
        return found
    wide, most = math.sqrt(deviation**2 + deviation / 2), 1 / (4 * deviation)
    for start in range(0, size, PART):
        part = found[start : start + PART]
        left = np.arange(len(part))
        while len(left):
            gauss = draws.standard_normal(len(left))
            nearest = np.rint(wide * gauss)
            less = ((nearest / deviation) ** 2 - gauss**2) / 2 + most  # -log of the probability
            kept = draws.standard_exponential(len(left)) >= less
            part[left[kept]] = nearest[kept]
            left = left[~kept]
    return found
