"""PerFreezeClip's client: it keeps its head h and the history of its gradient norms."""

from fedapps.method import BaseClient, Slice


class PerFreezeClipClient(BaseClient):
    """It runs the plan's stages; the trainer clips, and the store keeps h and the norms."""

    def personal(self) -> Slice:
        """The head h."""
        return self.layout.head
