"""The client of centralized training: it does not train, it is only evaluated."""

from fedapps.method import BaseClient


class CentralizedClient(BaseClient):
    """It scores the server's model on its own samples."""
