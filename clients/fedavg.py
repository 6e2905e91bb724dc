"""FedAvg's client: it follows the plan and keeps nothing between rounds."""

from fedapps.method import BaseClient


class FedAvgClient(BaseClient):
    """It trains all layers with E epochs of SGD."""
