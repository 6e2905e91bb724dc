"""FedSeq's client: it acts as the base method's client; the plan leaves out the frozen layers."""

from torch import Tensor

from fedapps.method import BaseClient, Slice
from strategies.fedseq import Settings


class FedSeqClient(BaseClient):
    """It trains only the active layers; the trainer caches the outputs of a frozen prefix."""

    options: Settings

    def setup(self) -> None:
        """Make the base method's client, to which the hooks below delegate."""
        self.base = self.other(self.options.base)

    def personal(self) -> Slice:
        """The personal layers of the base method."""
        return self.base.personal()

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The base method's loss."""
        return self.base.loss(logits, labels)

    def extra_scores(self) -> dict[str, float]:
        """The base method's additional figures."""
        return self.base.extra_scores()
