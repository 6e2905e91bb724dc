"""What all modes of differential privacy have in common: what they offer, and what they refuse."""

from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from fedapps.core import log
from fedapps.core.errors import RunError
from fedapps.core.privacy_settings import PrivacySettings
from fedapps.core.settings import Settings
from fedapps.core.words import some
from fedapps.engine.accounting import Mechanism
from fedapps.engine.checks import AVERAGING
from fedapps.method.flower import BaseStrategy
from fedapps.method.update import Updates
from fedapps.models.layers import Arrays, Layout
from fedapps.training.plan import Plan
from fedapps.training.privacy import check_plan

# Central privacy holds only with the standard versions of these hooks: they average updates of one
# common model, and get only updates from clients. A method's own `screen` would see updates before
# the noise.
ASKS = ("answered", "question")
RESTS_ON = tuple(sorted((*AVERAGING, *ASKS)))
LEAST_NOISE = 1e-3  # below it the accountant's arithmetic fails: it gives 0 for no privacy at all
RELEASES = "dp/releases"  # its name in a strategy's state

Reference = Callable[[], Arrays]  # returns the arrays that all clients downloaded


def reference_of(strategy: BaseStrategy, round_: int) -> Arrays:
    """Return the server's values of the layers that every client downloads and uploads."""
    plan = strategy.plan(round_, strategy.workspace.population.some_client)
    return {key: strategy.arrays[key] for key in strategy.layout.shared(plan.upload)}


class PrivacyMode:
    """What every mode of differential privacy offers; this one, "none", leaves updates unchanged.

    `state` is the strategy's state: a mode stores there what it needs from round to round.
    `clients` are those that train.
    """

    mechanism: Mechanism | None = None  # what a round releases, as the accountant sees it
    begun = 0  # rounds that this process has begun

    def __init__(
        self, settings: Settings, layout: Layout, state: Arrays, clients: Sequence[int]
    ) -> None:
        self.settings = settings
        self.clients = clients
        self.dp: PrivacySettings = settings.dp
        self.layout = layout
        self.state = state
        self.prepare()

    def prepare(self) -> None:
        """Check the settings, and put into the state what counts; raises `RunError`."""

    def check_strategy(self, strategy: BaseStrategy) -> None:
        """Refuse a strategy whose hooks would break the guarantee of the mode."""

    def select(self, round_: int, selected: Sequence[int], there: Collection[int]) -> list[int]:
        """Return the clients to train; here those that the strategy has selected."""
        return list(selected)

    def begin(self, plans: Mapping[int, Plan]) -> dict[str, str]:
        """Check and count what a round is about to release; return events (kind: detail)."""
        self.begun += 1
        return {}

    def release(self, round_: int, updates: Updates, reference: Reference) -> Updates:
        """Return the updates that the strategy may see."""
        return updates

    def releases(self) -> int:
        """Return the number of releases so far; of a client with the most, if they differ.

        Without privacy, these are the rounds that this process has begun.
        """
        return self.begun

    def epsilon(self) -> float | None:
        """Return the epsilon spent up to and including this round; None without privacy."""
        return None


class DifferentialPrivacy(PrivacyMode):
    """Common to all privacy: the checks of settings, and epsilon."""

    mechanism: Mechanism

    def prepare(self) -> None:
        """Refuse settings that would break the guarantee, or hide that there is none."""
        super().prepare()
        limit = 1 / len(self.clients)
        if not self.dp.delta < limit:
            raise RunError(
                f"dp.delta = {self.dp.delta:g}: must be below 1 / num-clients = {limit:g}"
            )
        if 0 < self.dp.noise_multiplier < LEAST_NOISE:
            raise RunError(
                f"dp.noise-multiplier = {self.dp.noise_multiplier:g}: must be 0, or from "
                f"{LEAST_NOISE:g} to 1000"
            )
        if self.settings.server_data:
            raise RunError(
                f'dp.mode = "{self.dp.mode}": with server-data the server trains on samples of '
                "clients, without noise; use server-data=0"
            )
        patience = self.settings.patience
        if patience or self.settings.keep_best:
            key = f"patience={patience}" if patience else "keep-best=true"
            off = "patience=0" if patience else "keep-best=false"
            raise RunError(
                f'dp.mode = "{self.dp.mode}": {key} chooses a round by scores of clients, '
                f"without noise; use {off}"
            )

    def begin(self, plans: Mapping[int, Plan]) -> dict[str, str]:
        """Check every plan; the first time, name what noise could harm for good."""
        for plan in plans.values():
            check_plan(self.settings, self.layout, plan)
        if not self.begun:
            self._warn_of_buffers({key for p in plans.values() for key in p.upload})
        return super().begin(plans)

    def _warn_of_buffers(self, uploaded: Collection[str]) -> None:
        """Warn of what is no parameter: nobody can tell whether it is a constant."""
        layout = self.layout
        known = layout.parameters | layout.norms
        if noisy := sorted({*layout.shared(tuple(uploaded))} - known):
            log.warning(
                'dp.mode = "%s": %s, no parameters, also get noise, which training may not undo;'
                " register constants with persistent=False",
                self.dp.mode,
                some(noisy),
            )

    def releases(self) -> int:
        """Return the largest count in the state."""
        return int(np.max(self.state[RELEASES]))

    def epsilon(self) -> float:
        """Return epsilon for the releases so far."""
        return self.mechanism.epsilon(self.releases(), self.dp.delta)
