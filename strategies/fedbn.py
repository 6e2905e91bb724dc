"""FedBN: Li et al., Federated Learning on Non-IID Features via Local Batch Normalization, 2021."""

from fedapps.method import BaseStrategy, Plan


class FedBN(BaseStrategy):
    """FedAvg on all layers except BatchNorms, whose parameters and statistics stay on each client.

    Symbols: N `num-clients`, T `num-rounds`, r `fraction-train`, E `local-epochs`,
    B `batch-size`, eta `lr`.
    BatchNorms are found by module type. A model without BatchNorm is refused, because then the
    method would be FedAvg. The mean has weights n_k; Algorithm 1 has a plain one.
    A newcomer has initial BatchNorms, and fine-tunes; without fine-tuning it trains them for a
    round.
    """

    citation = "Li et al. 2021"
    exchanges = "all but BatchNorm"
    needs_norms = True
    unused = ("bn-local",)

    def plan(self, round_: int, client: int) -> Plan:
        """Train all layers and exchange all except the BatchNorms."""
        names = self.layout.names
        shared = self.layout.without_norms(names)
        return self.exchange(round_, shared, self.stage(round_, names))
