"""pFedSim's client: after the warm-up it keeps its head, and also sends it to the server."""

from fedapps.method import BaseClient


class PFedSimClient(BaseClient):
    """It trains all layers with E epochs of SGD; the server gets its head, to compare clients."""
