"""Compute epsilon, the privacy budget that a run has spent, with Flower's accountant."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from flwr.serverapp import RdpAccountant

from fedapps.core.errors import RunError, without_lines
from fedapps.core.flower import (
    GaussianPrivacyEvent,
    NeighboringRelation,
    PrivacyConfig,
    SamplingMethod,
    renyi,
)

ANY_DELTA = 0.5  # of an accountant, whose RDP does not depend on it


@dataclass(frozen=True)
class Mechanism:
    """One release as the accountant sees it: how much noise it has, and how clients are sampled.

    `noise` is the standard deviation of the noise divided by the sensitivity.
    """

    noise: float
    sampled: int
    population: int
    sampling: SamplingMethod
    relation: NeighboringRelation

    def epsilon(self, releases: int, delta: float) -> float:
        """Return epsilon at `delta` after this many releases; without noise it is infinite."""
        return composed([(self, releases)], delta)

    def accountant(self, delta: float) -> RdpAccountant:
        """Return a new accountant of Flower; raises `RunError` if its package is not installed."""
        config = PrivacyConfig(delta, self.population, self.relation, self.sampling)
        try:
            return RdpAccountant(config)
        except ImportError as error:
            raise RunError(f"dp.mode: {error}") from error


def composed(parts: Iterable[tuple[Mechanism, int]], delta: float) -> float:
    """Return epsilon at `delta` of mechanisms together, each with its number of releases.

    Their RDP is added up at each order, and then turned into epsilon once. That is far less than
    the sum of their epsilons. Raises `RunError` if they sample clients in different ways: their
    epsilons then say different things, and have no sum.
    """
    parts = [(mechanism, releases) for mechanism, releases in parts if releases]
    if not parts or not all(mechanism.noise for mechanism, _ in parts):
        return math.inf if parts else 0.0
    if len({(mechanism.sampling, mechanism.relation) for mechanism, _ in parts}) > 1:
        raise RunError(
            "dp.mode, dp.sampling: all runs of a federation must have the same, because epsilons of"
            " different kinds do not add up; use those of its first run, or another federation"
        )
    orders = _of_a_release(parts[0][0])[0]
    from dp_accounting.rdp import compute_epsilon

    total = sum(releases * _of_a_release(mechanism)[1] for mechanism, releases in parts)
    return float(compute_epsilon(orders, total, delta)[0])


@lru_cache
def _of_a_release(mechanism: Mechanism) -> tuple[np.ndarray, np.ndarray]:
    """Return the orders, and the RDP of one release at each, which can take half a second.

    With samples of a fixed size, it is at most that of the Gaussian alone, order / (2 noise^2). For
    let both runs draw the same positions: then each release is a mixture over the draws, part by
    part at most one sensitivity apart, and Renyi divergence is jointly quasi-convex (van Erven and
    Harremoes 2014, Theorem 13). The bound of Wang et al. is larger if almost all are drawn.
    """
    # The accountant rightly leaves out RDP orders whose series does not converge.
    with without_lines("absl", lambda record: "failed to converge" in record.getMessage()):
        accountant = mechanism.accountant(ANY_DELTA)
        n, population = mechanism.sampled, mechanism.population
        accountant.compose(GaussianPrivacyEvent(mechanism.noise, n, population))
        orders, rdp = renyi(accountant)
    if mechanism.sampling is SamplingMethod.WITHOUT_REPLACEMENT:
        rdp = np.minimum(rdp, np.asarray(orders) / (2 * mechanism.noise**2))
    return orders, rdp


def alone(noise_multiplier: float) -> Mechanism:
    """Return a release of one client's update, for which no sampling counts.

    With other data, it can change by 2 S, so the noise z S counts half.
    """
    relation = NeighboringRelation.ADD_OR_REMOVE_ONE
    return Mechanism(noise_multiplier / 2, 1, 1, SamplingMethod.NO_AMPLIFICATION, relation)
