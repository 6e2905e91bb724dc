"""FedROD: Chen, Chao, On Bridging Generic and Personalized FL for Image Classification, 2022."""

from fedapps.method import FINETUNING, BaseStrategy, Plan, Stage


class FedROD(BaseStrategy):
    """phi and the generic head h_G are averaged; a personal head on top never travels.

    Symbols: N `num-clients`, T `num-rounds`, r `fraction-train`, E `local-epochs`,
    B `batch-size`, eta `lr`; both heads have the shape of the last `head-layers`.
    The prediction is generic plus personal logits (some libraries use the personal head alone).
    The balanced softmax and the personal head are in clients/fedrod.py.
    """

    citation = "Chen, Chao 2022"
    exchanges = "everything"
    unused = FINETUNING
    clips_by_sample = False

    def plan(self, round_: int, client: int) -> Plan:
        """Train and exchange phi and h_G; the client adds its personal head."""
        names = self.layout.names
        return self.exchange(round_, names, self.stage(round_, names))

    def finetuning(self, round_: int) -> tuple[Stage, ...]:
        """None: the personal head is the personalization."""
        return ()
