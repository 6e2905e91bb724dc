"""Compute epsilon, the privacy budget that a run has spent, with Flower's accountant."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from flwr.serverapp import RdpAccountant

from fedapps.core.errors import RunError, without_lines
from fedapps.core.flower import (
    GaussianPrivacyEvent,
    NeighboringRelation,
    PrivacyConfig,
    SamplingMethod,
)


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

    def accountant(self, delta: float, population: int = 0) -> RdpAccountant:
        """Return a new accountant of Flower; raises `RunError` if its package is not installed."""
        population = population or self.population
        config = PrivacyConfig(delta, population, self.relation, self.sampling)
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
    # An accountant has one population, but what counts is the share of it that is sampled.
    common = math.lcm(*(mechanism.population for mechanism, _ in parts))
    accountant = parts[0][0].accountant(delta, common)
    # The accountant rightly leaves out RDP orders whose series does not converge.
    with without_lines("absl", lambda record: "failed to converge" in record.getMessage()):
        for mechanism, releases in parts:
            sampled = mechanism.sampled * (common // mechanism.population)
            accountant.compose(GaussianPrivacyEvent(mechanism.noise, sampled, common), releases)
        return accountant.get_epsilon(delta)


def alone(noise_multiplier: float) -> Mechanism:
    """Return a release of one client's update, for which no sampling counts.

    With other data, it can change by 2 S, so the noise z S counts half.
    """
    relation = NeighboringRelation.ADD_OR_REMOVE_ONE
    return Mechanism(noise_multiplier / 2, 1, 1, SamplingMethod.NO_AMPLIFICATION, relation)
