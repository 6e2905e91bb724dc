"""The keys of the general table `dp`, differential privacy."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta

from fedapps.core.schema import (
    AtLeastZero,
    Fraction,
    MethodSettings,
    OpenFraction,
    Positive,
    Share,
    doc,
)

SEEDED = "noise from the seed: not private"  # what stands beside an epsilon that holds for nobody


def is_seeded(flat: Mapping[str, Any]) -> bool:
    """Tell whether a run-config has noise, but noise that everybody can compute from the seed."""
    return bool(flat.get("dp.noise-multiplier")) and not flat.get("dp.secret-noise")


class PrivacySettings(MethodSettings, frozen=True):
    """Keys of the general table `dp`; docs/privacy.md explains what they guarantee."""

    mode: Annotated[
        Literal["none", "central", "local", "distributed"],
        doc(
            "who adds noise for differential privacy: the server, each client (distributed: its "
            "part of the noise of a secure sum), or nobody"
        ),
    ]
    clip_norm: Annotated[
        Positive, doc("S: largest L2 norm of a client's update, of all uploaded arrays together")
    ]
    noise_multiplier: Annotated[
        float,
        Meta(ge=0, le=1000),
        doc("z: noise on the sum of updates (local: on each) has standard deviation z S; 0: none"),
    ]
    delta: Annotated[
        OpenFraction, doc("the delta for which epsilon is computed; below 1 / num-clients")
    ]
    budget: Annotated[
        AtLeastZero,
        doc("largest epsilon that a run may reach, with all earlier runs of `federation`; 0: any"),
    ]
    sampling: Annotated[
        Literal["poisson", "fixed"],
        doc(
            "central; poisson: draw each client with probability m/N; fixed: draw exactly m "
            "clients (far larger epsilon)"
        ),
    ]
    adaptive: Annotated[bool, doc("central: let S follow a quantile of the updates' norms")]
    target_quantile: Annotated[
        Fraction, doc("adaptive: share of the updates that S should leave unclipped")
    ]
    clip_lr: Annotated[
        Share, doc("adaptive: each round multiplies S by exp(-clip-lr (unclipped share - target))")
    ]
    count_noise: Annotated[
        AtLeastZero,
        doc(
            "adaptive: standard deviation of the noise on the number of unclipped updates; 0: m/20"
        ),
    ]
    secret_noise: Annotated[
        bool,
        doc(
            "draw the noise (central: also the choice of clients) from the system's entropy "
            "instead of the seed"
        ),
    ]

    @property
    def noise(self) -> float:
        """The noise multiplier of the run; 0 if no noise is added."""
        return 0.0 if self.mode == "none" else self.noise_multiplier

    @property
    def protects(self) -> bool:
        """Whether there is noise that nobody can compute from the seed, and then subtract."""
        return bool(self.noise) and self.secret_noise

    @property
    def seeded(self) -> bool:
        """Whether there is noise, but noise that everybody can compute from the seed."""
        return bool(self.noise) and not self.secret_noise

    @property
    def suspicion(self) -> str:
        """Says that its noise may be why numbers get too large; empty without noise."""
        text = f"; the noise of dp.noise-multiplier = {self.noise:g} may be too much"
        return text if self.noise else ""

    @property
    def by_clients(self) -> bool:
        """Whether clients add the noise, because they do not trust the server."""
        return self.shared_out or self.mode == "local"

    @property
    def shared_out(self) -> bool:
        """Whether each client adds a part of the noise, which only their secure sum completes."""
        return self.mode == "distributed"
