"""LG-FedAvg: Liang et al., Think Locally, Act Globally, NeurIPS workshop 2019."""

from typing import Annotated

from fedapps.method import Count, MethodSettings, NonNegative, Plan, RunError, WarmUp, doc


class Settings(MethodSettings, frozen=True):
    """LG-FedAvg's own keys."""

    global_layers: Annotated[Count, doc("number of last layers that are shared")]
    warmup_rounds: Annotated[NonNegative, doc("rounds of FedAvg at the beginning")]


class LGFedAvg(WarmUp):
    """High layers are global, low layers are local: the opposite of FedPer.

    Symbols: N `num-clients`, T `num-rounds`, r `fraction-train`, E `local-epochs`,
    B `batch-size`, eta `lr`; the global model is the last `global-layers` layers.
    Some libraries swap high and low layers. The paper starts from a model that FedAvg has trained;
    set `warmup-rounds` to begin with rounds of FedAvg. The authors' code takes the plain mean, not
    the paper's with weights n_i, and scores each client's best round.
    A newcomer has the low layers of the warm-up, and fine-tunes; without that it trains them for a
    round.
    """

    citation = "Liang et al. 2019"
    exchanges = "last layers"
    sends_its_model = False
    options: Settings

    def setup(self) -> None:
        """Check that at least one layer stays on the clients."""
        super().setup()
        count, names = self.options.global_layers, self.layout.names
        if count >= len(names):
            raise RunError(
                f"lgfedavg.global-layers = {count}: the model has {len(names)} layers; "
                "leave at least one"
            )

    def warmup_rounds(self) -> int:
        """The number of rounds of FedAvg: `warmup-rounds`."""
        return self.options.warmup_rounds

    def personal_plan(self, round_: int, client: int) -> Plan:
        """Train all layers and exchange the last `global-layers` layers."""
        names = self.layout.names
        shared = names[-self.options.global_layers :]
        return self.exchange(round_, shared, self.stage(round_, names))
