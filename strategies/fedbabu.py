"""FedBABU: Oh, Kim, Yun, FedBABU: Toward Enhanced Representation for Federated Image
Classification, ICLR 2022."""

from fedapps.method import WITHOUT_HEAD, BaseStrategy, Plan


class FedBABU(BaseStrategy):
    """Body aggregation and body update: the head keeps its random initial values in all rounds.

    Symbols: N `num-clients`, K `num-rounds`, f `fraction-train`, tau `local-epochs`,
    B `batch-size`, tau_f `finetune-epochs`, s `shards-per-client`, p `server-data`;
    mu of FedProx+BABU is `prox-mu`.
    The head is frozen, so no gradient is computed for it. The paper instead sets the head's
    learning rate to zero, which gives the same updates. In an evaluation, each client fine-tunes
    the layers of `finetune-part`.
    A newcomer gets the body and the initial head, and fine-tunes, as all clients do.
    """

    citation = "Oh, Kim, Yun 2022"
    exchanges = "body"
    figures = (WITHOUT_HEAD,)

    def plan(self, round_: int, client: int) -> Plan:
        """Train and exchange the body only."""
        body = self.layout.body
        return self.exchange(round_, body, self.stage(round_, body))
