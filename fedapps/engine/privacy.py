"""Differential privacy on the server: all modes, and the one in which the server adds the noise.

Central (McMahan et al., Learning Differentially Private Recurrent Language Models, ICLR 2018): the
server clips each update and adds noise to their mean; the strategy sees only this noisy mean.
In the other modes (`client_noise.py`), each client clips its update and adds noise itself
(`fedapps.training.privacy`, which also defines an update). docs/privacy.md says what each mode
guarantees.
"""

import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from fedapps.core.config import defaults
from fedapps.core.draws import generator, sample_clients, sample_poisson, sample_size, secret_seed
from fedapps.core.errors import RunError
from fedapps.core.flower import NeighboringRelation, SamplingMethod
from fedapps.core.privacy_settings import PrivacySettings
from fedapps.core.settings import Settings
from fedapps.data.forms import is_own
from fedapps.engine.accounting import Mechanism
from fedapps.engine.checks import replaced
from fedapps.engine.client_noise import Distributed, Local
from fedapps.engine.privacy_mode import (
    ASKS,
    RELEASES,
    RESTS_ON,
    DifferentialPrivacy,
    PrivacyMode,
    Reference,
)
from fedapps.engine.robust import refuse_presum
from fedapps.method.flower import BaseStrategy
from fedapps.method.update import SERVER, ClientUpdate, Updates
from fedapps.training.plan import Plan
from fedapps.training.privacy import check_plan, clipped_difference, postprocess
from fedapps.training.workspace import Workspace

CLIP_NORM = "dp/clip-norm"  # its name in a strategy's state


class Central(DifferentialPrivacy):
    """w + (1/m) (sum_i clip(w_i - w, S) + N(0, (z S)^2)), m the expected number of clients.

    The denominator m is fixed, so one client changes the sum by at most S, whichever clients take
    part; a client that failed counts as an update of zero. Adaptive clipping (Andrew et al.,
    Differentially Private Learning with Adaptive Clipping, NeurIPS 2021): S follows a quantile of
    the updates' norms, S <- S exp(-eta (b - gamma)), b the noisy share of updates with a norm of at
    most S. State: `dp/releases`, `dp/clip-norm`.
    """

    def prepare(self) -> None:
        """Find the noise, and count from zero."""
        super().prepare()
        refuse_presum(self.settings, 'dp.mode = "central"')
        if (limit := self.settings.max_failures) >= 0:
            raise RunError(
                f'dp.mode = "central": max-failures={limit} ends a run by failures of the clients '
                "that were drawn, without noise; use max-failures=-1"
            )
        self.seed = secret_seed() if self.dp.secret_noise else self.settings.seed
        self.expected = sample_size(len(self.clients), self.settings.fraction_train)
        self.count_noise, self.vector_noise = adaptive_noise(self.dp, self.expected)
        self.mechanism = self._mechanism()
        self.mechanism.accountant(self.dp.delta)  # a missing package ends the run here
        self.state[RELEASES] = np.zeros((), np.int64)
        self.state[CLIP_NORM] = np.array(self.dp.clip_norm)

    def check_strategy(self, strategy: BaseStrategy) -> None:
        """Refuse a strategy that does more than average updates of one common model."""
        if own := replaced(strategy, RESTS_ON):
            others = '"local" or "none"' if self._fits_local(strategy) else '"none"'
            raise RunError(
                f'dp.mode = "central": this strategy replaces {", ".join(own)}, and only the '
                f"plain mean of updates of one common model is made private; use {others}"
            )

    def _fits_local(self, strategy: BaseStrategy) -> bool:
        """Tell whether local privacy would take a strategy, and its first and its last plan."""
        try:
            for round_ in (1, self.settings.num_rounds):
                plan = strategy.plan(round_, strategy.workspace.population.some_client)
                check_plan(self.settings, self.layout, plan)
        except Exception:  # the author's code can raise anything, and return no plan
            return False
        return not (replaced(strategy, ASKS) or self.settings.dp.adaptive)

    def select(self, round_: int, selected: Sequence[int], there: Collection[int]) -> list[int]:
        """Draw from all clients, as the accountant assumes; then drop those that are not there."""
        s = self.settings
        draw = sample_poisson if self.dp.sampling == "poisson" else sample_clients
        drawn = draw(self.seed, round_, len(self.clients), s.fraction_train)
        return [client for index in drawn if (client := self.clients[index]) in there]

    def begin(self, plans: Mapping[int, Plan]) -> dict[str, str]:
        """Count a release, even in a round without clients; report S if it is adaptive."""
        super().begin(plans)
        self.state[RELEASES] = self.state[RELEASES] + 1
        return {"clip-norm": f"{self.clip_norm:.6g}"} if self.dp.adaptive else {}

    @property
    def clip_norm(self) -> float:
        """S, the clipping norm of this round."""
        return float(self.state[CLIP_NORM])

    def release(self, round_: int, updates: Updates, reference: Reference) -> Updates:
        """Add up all updates one by one, then yield only their noisy mean."""
        w, limit = reference(), self.clip_norm
        total = {key: np.zeros(value.shape) for key, value in w.items()}
        balance = 0.0  # sum_i (b_i - 1/2), b_i = 1 if norm <= S, else 0: a client adds +-1/2
        for update in updates:
            if update.arrays.keys() != w.keys():
                raise RunError(f'dp.mode = "central": client {update.client} uploads other layers')
            difference, norm = clipped_difference(update.arrays, w, limit)
            for key, value in difference.items():
                total[key] += value
            balance += 0.5 if norm <= limit else -0.5
        draws = generator(self.seed, "dp-noise", round_)
        for key, value in total.items():
            value += self.vector_noise * limit * draws.standard_normal(value.shape)
            value /= self.expected
            value += w[key]
        if self.dp.adaptive:
            self.adapt(balance + self.count_noise * draws.standard_normal())
        yield ClientUpdate(SERVER, postprocess(total, self.layout), 1, weight=1.0)

    def adapt(self, balance: float) -> None:
        """Set the next round's S; a share that noise put outside [0, 1] counts as 0 or 1."""
        within = min(max(0.5 + balance / self.expected, 0.0), 1.0)
        step = self.dp.clip_lr * (within - self.dp.target_quantile)
        self.state[CLIP_NORM] = np.array(self.clip_norm * math.exp(-step))

    def _mechanism(self) -> Mechanism:
        """Return a release as the accountant sees it.

        With Poisson sampling, neighboring data sets differ by one added or removed client, which
        changes the sum by at most S. With samples of fixed size, one client is replaced, which
        changes the sum by at most 2 S, so the noise counts half.
        """
        z, m, clients = self.dp.noise_multiplier, self.expected, len(self.clients)
        if self.dp.sampling == "poisson":
            relation = NeighboringRelation.ADD_OR_REMOVE_ONE
            return Mechanism(z, m, clients, SamplingMethod.POISSON, relation)
        relation = NeighboringRelation.REPLACE_ONE
        return Mechanism(z / 2, m, clients, SamplingMethod.WITHOUT_REPLACEMENT, relation)


MODES: dict[str, type[PrivacyMode]] = {
    "none": PrivacyMode,
    "central": Central,
    "local": Local,
    "distributed": Distributed,
}


def adaptive_noise(dp: PrivacySettings, expected: int) -> tuple[float, float]:
    """Return sigma_b and z_Delta, the noise on the count and (in units of S) on the updates.

    z_Delta = (z^-2 - (2 sigma_b)^-2)^(-1/2), so that both together cost as much privacy as z alone
    (Andrew et al., Theorem 1). Raises `RunError` if the count alone costs at least as much as that.
    """
    z = dp.noise_multiplier
    if not dp.adaptive or not z:
        return 0.0, z
    sigma = dp.count_noise or expected / 20
    left = z**-2 - (2 * sigma) ** -2 if z < 2 * sigma else 0.0
    if not left > 0:
        raise RunError(
            f"dp.count-noise = {dp.count_noise:g}: must be above dp.noise-multiplier / 2 = "
            f"{z / 2:g} (0 means m/20 = {expected / 20:g})"
        )
    return sigma, left**-0.5


def of_pooled_values(space: Workspace) -> list[str]:
    """Return a warning for each thing from all clients' samples that a run's epsilon leaves out."""
    s = space.settings
    if not s.dp.noise:
        return []
    found = _of_shape(space)
    if s.dp.mode == "central" and dict(s.flat).get("num-clients") == 0:
        found.append(
            "num-clients = 0: the data say how many clients there are, and epsilon counts this"
            f" number, {s.num_clients}, as public; for real data, set num-clients"
        )
    if space.data.pooled:
        found.append(
            f"{space.dataset.name}: values are scaled by mean and deviation over all clients,"
            " without noise; epsilon does not cover these, and exported models have them; for real"
            " data, use values that are scaled already, or devices"
        )
    return found


def _of_shape(space: Workspace) -> list[str]:
    """Return a warning if samples of a single client can change the shapes of the model."""
    s, data = space.settings, space.dataset
    if not is_own(s.dataset):
        return []
    several = data.has_labels or data.targets.choices > 2  # two can be no and yes
    classes = data.targets.is_whole and several and data.targets != data.inputs
    parts = (
        ("the columns with their categories", "set columns", data.columns and not s.columns),
        ("the tokens", "use devices", data.inputs.is_whole and not s.text_length),
        (
            "the classes",
            "name them in an .npz (class_names), or use devices",
            classes and not data.named,
        ),
    )
    found = {what: cure for what, cure, there in parts if there}
    if not found:
        return []
    return [
        f"{data.name}: {' and '.join(found)} are those found in the samples of all clients, and"
        " give the model its shape, which epsilon does not cover; for real data, "
        + "; ".join(found.values())
    ]


def warnings(settings: Settings) -> list[str]:
    """Return a warning if the settings look private but give no privacy."""
    dp, known, flat = settings.dp, defaults(), dict(settings.flat)
    changed = [k for k in flat if k[:3] == "dp." and k != "dp.budget" and flat[k] != known[k]]
    if dp.mode == "none":
        return [f'{key} = {flat[key]} has no effect with dp.mode = "none"' for key in changed]
    if not dp.noise_multiplier:
        return ["dp.noise-multiplier = 0: updates are clipped, but nothing is private"]
    if not dp.secret_noise:
        return [
            "dp noise is drawn from the seed, which gives no privacy; use dp.secret-noise=true for "
            "real data"
        ]
    return []
