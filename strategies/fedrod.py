"""FedROD: Chen, Chao, On Bridging Generic and Personalized FL for Image Classification, 2022."""

from fedapps.method import FINETUNING, BaseStrategy, Plan, replace


class FedROD(BaseStrategy):
    """phi and the generic head h_G are averaged; each client adds a personal head, which stays.

    Symbols: N `num-clients`, T `num-rounds`, r `fraction-train`, E `local-epochs`,
    B `batch-size`, eta `lr`; both heads have the shape of the last `head-layers`.
    A client predicts with the sum of generic and personal logits (some libraries use the personal
    head alone).
    The balanced softmax and the personal head are in clients/fedrod.py.
    A newcomer trains its personal head for one round; phi and h_G are frozen.
    """

    citation = "Chen, Chao 2022"
    needs_classes = True  # the prior of the balanced softmax
    needs_cut = True  # the body's output goes into both heads
    exchanges = "everything"
    unused = FINETUNING
    clips_by_sample = False

    def newcomer_plan(self, round_: int, client: int) -> Plan:
        """Train the personal head alone, which is no part of the model."""
        return replace(self.alone(self.plan(round_, client)), stages=(self.stage(1, ()),))
