"""FedBN's client: it keeps its BatchNorms between rounds."""

from fedapps.client import BaseClient


class FedBNClient(BaseClient):
    """E epochs of SGD on all layers; the BatchNorms go into the client's store."""
