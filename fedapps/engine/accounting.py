"""Compute epsilon, the privacy budget that a run has spent, with Flower's accountant."""

import math
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
        accountant = self.accountant(delta)
        if not releases or not self.noise:
            return math.inf if releases else 0.0
        # The accountant rightly leaves out RDP orders whose series does not converge.
        with without_lines("absl", lambda record: "failed to converge" in record.getMessage()):
            event = GaussianPrivacyEvent(self.noise, self.sampled, self.population)
            accountant.compose(event, releases)
            return accountant.get_epsilon(delta)

    def accountant(self, delta: float) -> RdpAccountant:
        """Return a new accountant of Flower; raises `RunError` if its package is not installed."""
        config = PrivacyConfig(delta, self.population, self.relation, self.sampling)
        try:
            return RdpAccountant(config)
        except ImportError as error:
            raise RunError(f"dp.mode: {error}") from error
