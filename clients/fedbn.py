"""FedBN's client: it keeps its BatchNorms between rounds."""

from fedapps.method import BaseClient, Slice


class FedBNClient(BaseClient):
    """It trains all layers with E epochs of SGD and keeps the BatchNorms in its store."""

    def personal(self) -> Slice:
        """All BatchNorms."""
        return self.layout.norms_of(self.layout.names)
