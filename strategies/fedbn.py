"""FedBN: Li et al., Federated Learning on Non-IID Features via Local Batch Normalization, 2021."""

from fedapps.method import BaseStrategy, Plan, log


class FedBN(BaseStrategy):
    """FedAvg on everything but BatchNorm: its parameters and statistics stay on each client.

    Symbols: N `num-clients`, T `num-rounds`, r `fraction-train`, E `local-epochs`,
    B `batch-size`, eta `lr`.
    BatchNorms are found by module type; on a model without any this is FedAvg.
    """

    citation = "Li et al. 2021"
    exchanges = "all but BatchNorm"

    def setup(self) -> None:
        """Say so if nothing is local."""
        if not self.layout.norms:
            log.warning("fedbn: %s has no BatchNorm, so this is fedavg", self.settings.model)

    def plan(self, round_: int, client: int) -> Plan:
        """Train everything, exchange all but the BatchNorms."""
        names = self.layout.names
        shared = self.layout.without_norms(names)
        return self.exchange(round_, shared, self.stage(round_, names))
