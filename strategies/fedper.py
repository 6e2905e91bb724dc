"""FedPer: Arivazhagan et al., Federated Learning with Personalization Layers, 2019."""

from typing import Annotated

from fedapps.method import BaseStrategy, MethodSettings, Plan, Slice, doc


class Settings(MethodSettings, frozen=True):
    """FedPer's own keys."""

    personal_layers: Annotated[str, doc('layers that stay on the client: fc1,fc2; "": the head')]


class FedPer(BaseStrategy):
    """Base layers are averaged, personalization layers stay; all are trained jointly.

    Symbols: N `num-clients`, T `num-rounds`, r `fraction-train`, E `local-epochs`,
    B `batch-size`, eta `lr`, W_P `personal-layers` (by default the last `head-layers`).
    A newcomer has the initial head, and fine-tunes; without fine-tuning it trains the head for a
    round.
    """

    citation = "Arivazhagan et al. 2019"
    exchanges = "body"
    options: Settings

    def plan(self, round_: int, client: int) -> Plan:
        """Train all layers and exchange the base layers."""
        return self.exchange(round_, self.base, self.stage(round_, self.layout.names))

    @property
    def base(self) -> Slice:
        """All layers that are not personal."""
        named = self.options.personal_layers
        key = "fedper.personal-layers"
        personal = self.layout.named(named, key) if named else self.layout.head
        return tuple(name for name in self.layout.names if name not in personal)
