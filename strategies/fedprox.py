"""FedProx: Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020."""

from fedapps.method import BaseStrategy, log


class FedProx(BaseStrategy):
    """FedAvg with (mu/2)||w - w_t||^2 added to the local loss; mu is the key `fedprox.prox-mu`.

    Symbols: N `num-clients`, T `num-rounds`, r `fraction-train`, E `local-epochs`,
    B `batch-size`, eta `lr`, mu `prox-mu`.
    The plan is FedAvg's; its stage contains mu, which is 0.01 by default for this method, and the
    trainer adds the proximal term: `add_proximal` in fedapps/training/stage_run.py.
    The mean has weights n_k; the paper draws clients by them, and takes a plain mean.
    A newcomer gets the shared model, and fine-tunes it.
    """

    citation = "Li et al. 2020"
    exchanges = "everything"

    def setup(self) -> None:
        """Warn if there is no proximal term."""
        if not self.settings.prox_mu:
            log.warning("fedprox: prox-mu = 0, so this is fedavg")
