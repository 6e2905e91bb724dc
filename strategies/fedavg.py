"""FedAvg: McMahan et al., Communication-Efficient Learning of Deep Networks, AISTATS 2017."""

from fedapps.method import BaseStrategy, Plan


class FedAvg(BaseStrategy):
    """Clients train all layers for E epochs; the server averages them with weights n_i.

    Symbols: N `num-clients`, T `num-rounds`, r (C in the paper) `fraction-train`,
    E `local-epochs`, B `batch-size`, eta `lr`; n_i is the number of client i's training samples.
    A newcomer gets the shared model, and fine-tunes it.
    """

    citation = "McMahan et al. 2017"
    exchanges = "everything"

    def plan(self, round_: int, client: int) -> Plan:
        """Download everything, train everything, upload everything."""
        layers = self.layout.names
        return self.exchange(round_, layers, self.stage(round_, layers))
