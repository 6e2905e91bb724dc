"""FedROD: Chen, Chao, On Bridging Generic and Personalized FL for Image Classification, 2022."""

from fedapps.config import Settings as RunSettings
from fedapps.errors import RunError
from fedapps.plan import Plan, Stage
from fedapps.strategy import BaseStrategy
from fedapps.workspace import Workspace


class FedROD(BaseStrategy):
    """phi and the generic head h_G are averaged; a personal head on top never travels.

    The prediction is generic plus personal logits (some libraries use the personal head alone).
    """

    citation = "Chen, Chao 2022"
    exchanges = "everything"

    def __init__(self, workspace: Workspace, settings: RunSettings | None = None) -> None:
        super().__init__(workspace, settings)
        clip = self._clip()
        if clip and clip.mode == "sample":
            raise RunError('clip-mode = "sample": fedrod trains a second head, use "batch"')

    def plan(self, round_: int, client: int) -> Plan:
        """Train and exchange phi and h_G; the client adds its personal head."""
        names = self.layout.names
        return self.exchange(round_, names, self.stage(round_, names))

    def finetuning(self, round_: int) -> tuple[Stage, ...]:
        """None: the personal head is the personalization."""
        return ()
