"""FedProx: Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020."""

from fedapps.method import BaseStrategy, Plan, log


class FedProx(BaseStrategy):
    """FedAvg with (mu/2)||w - w_t||^2 added to the local loss; mu is the key `fedprox.prox-mu`.

    Symbols: N `num-clients`, T `num-rounds`, r `fraction-train`, E `local-epochs`,
    B `batch-size`, eta `lr`, mu `prox-mu`.
    The trainer adds the proximal term: `add_proximal` in fedapps/training/gradients.py.
    A newcomer gets the shared model, and fine-tunes it.
    """

    citation = "Li et al. 2020"
    exchanges = "everything"

    def setup(self) -> None:
        """Warn if there is no proximal term."""
        if not self.settings.prox_mu:
            log.warning("fedprox: prox-mu = 0, so this is fedavg")

    def plan(self, round_: int, client: int) -> Plan:
        """Use FedAvg's plan; its stage contains mu, which is 0.01 by default for this method."""
        layers = self.layout.names
        return self.exchange(round_, layers, self.stage(round_, layers))
