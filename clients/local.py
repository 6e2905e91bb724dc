"""Local-only's client: its whole model stays on the client."""

from fedapps.method import BaseClient, Slice


class LocalClient(BaseClient):
    """E epochs of SGD on the client's own model."""

    def personal(self) -> Slice:
        """Every layer."""
        return self.layout.names
