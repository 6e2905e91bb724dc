"""FedAMP's client: it trains near the mixture that it receives, and keeps its model."""

from fedapps.method import BaseClient


class FedAMPClient(BaseClient):
    """w_i = argmin F_i(w) + lambda / (2 alpha_k) ||w - u_i||^2 (Eq. 8), by E epochs from u_i.

    The plan says it all: its proximal term pulls towards the model as it was received.
    """
