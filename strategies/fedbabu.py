"""FedBABU: Oh, Kim, Yun, FedBABU: Toward Enhanced Representation for Federated Image
Classification, ICLR 2022."""

from fedapps.method import WITHOUT_HEAD, BaseStrategy, Plan


class FedBABU(BaseStrategy):
    """Body aggregation and body update: the head keeps its random initial values for ever.

    Symbols: N `num-clients`, K `num-rounds`, f `fraction-train`, tau `local-epochs`,
    B `batch-size`, tau_f `finetune-epochs`, s `shards-per-client`, p `server-data`;
    mu of FedProx+BABU is `prox-mu`.
    The head is frozen, so no gradient is computed for it; the paper sets its learning rate to
    zero, which gives the same updates. When a client is evaluated, it fine-tunes `finetune-part`.
    """

    citation = "Oh, Kim, Yun 2022"
    exchanges = "body"
    figures = (WITHOUT_HEAD,)

    def plan(self, round_: int, client: int) -> Plan:
        """Exchange and train the body only."""
        body = self.layout.body
        return self.exchange(round_, body, self.stage(round_, body))
