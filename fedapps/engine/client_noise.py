"""The server's side of the modes in which clients add the noise: local and distributed privacy."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from fedapps.core.draws import sample_size
from fedapps.core.errors import RunError
from fedapps.engine.accounting import alone
from fedapps.engine.checks import replaced
from fedapps.engine.privacy_mode import ASKS, RELEASES, DifferentialPrivacy, Reference
from fedapps.method.attacks import SIGNS
from fedapps.method.flower import BaseStrategy
from fedapps.method.update import Updates
from fedapps.secure import noise
from fedapps.secure.client import FEWEST, least
from fedapps.secure.masks import LIMIT
from fedapps.training.plan import Plan
from fedapps.training.privacy import postprocess


class Local(DifferentialPrivacy):
    """The server's side of local privacy: count the releases; the clients add the noise.

    A client's updates from two different data sets differ by at most 2 S. The epsilon is that of
    the client that was asked most often. All clients weigh the same, because their sample counts
    have no noise. State: `dp/releases` [N].
    """

    def prepare(self) -> None:
        """Check the settings, and count from zero."""
        super().prepare()
        if self.dp.adaptive:
            raise RunError('dp.adaptive = true: only with dp.mode = "central"')
        self.mechanism = alone(self.dp.noise_multiplier)
        self.mechanism.accountant(self.dp.delta)
        self.state[RELEASES] = np.zeros(self.settings.num_clients, np.int64)

    def check_strategy(self, strategy: BaseStrategy) -> None:
        """Refuse a strategy that asks a question: clients would answer without noise."""
        if replaced(strategy, ASKS):
            raise RunError(
                f'dp.mode = "{self.dp.mode}": this strategy asks clients a question, and the '
                'answers get no noise; use "none"'
            )

    def begin(self, plans: Mapping[int, Plan]) -> dict[str, str]:
        """Count a release for each client that is asked, whether it answers or not."""
        super().begin(plans)
        self.state[RELEASES][list(plans)] += 1
        return {}

    def release(self, round_: int, updates: Updates, reference: Reference) -> Updates:
        """Return the updates with a weight of 1 each; if they are pre-summed, they have it."""
        return updates if self.settings.presum else (replace(u, weight=1.0) for u in updates)


class Distributed(Local):
    """w + (1/m) sum_i (clip(w_i - w, S) + noise_i), m the expected number of clients.

    The server sees only the sum, whose noise has the variance (z S)^2 or more, because each client
    adds its part (`fedapps.secure.noise`). It knows who takes part, so sampling hides nobody from
    it: releases count as with local privacy, and with other data a client changes the sum by at
    most 2 S. State: `dp/releases` [N].
    """

    def prepare(self) -> None:
        """Check that the noise and the sum fit."""
        super().prepare()
        self.expected = sample_size(len(self.clients), self.settings.fraction_train)
        for count in (self.expected, FEWEST):  # of fewer clients, each has more of the noise
            noise.deviation(self.dp, least(count))
        if self.dp.clip_norm * self.expected > LIMIT / 2:  # the other half is for the noise
            raise RunError(
                f"dp.clip-norm = {self.dp.clip_norm:g}: must be at most "
                f"{LIMIT / 2 / self.expected:g}, so that the sum of {self.expected} clients fits "
                "in 64 bits"
            )
        attack = self.settings.attack
        if self.settings.attackers and attack in SIGNS:
            raise RunError(
                f'attack = "{attack}": with dp.mode = "distributed" clients clip what they send,'
                ' and attackers would not; use "label-flip"'
            )

    def release(self, round_: int, updates: Updates, reference: Reference) -> Updates:
        """Add 1/m of the noisy sum to w; its update is a mean of `num_examples` clients."""
        for update in updates:
            w, share = reference(), update.num_examples / self.expected
            new = {k: w[k] + share * v.astype(np.float64) for k, v in update.arrays.items()}
            yield replace(update, arrays=postprocess(new, self.layout), num_examples=1)
