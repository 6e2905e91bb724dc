"""LG-FedAvg's client: it keeps its low layers between rounds."""

from fedapps.method import BaseClient


class LGFedAvgClient(BaseClient):
    """It trains all layers with E epochs of SGD, and keeps the low layers after the warm-up."""
