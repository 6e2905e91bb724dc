"""FedRep's client: it keeps its head between rounds."""

from fedapps.method import BaseClient, Slice


class FedRepClient(BaseClient):
    """It runs the plan's two stages; the head is trained on cached outputs of the frozen body."""

    def personal(self) -> Slice:
        """The head."""
        return self.layout.head
