"""FedProx's client: the trainer adds the proximal term, as the plan's stage says."""

from fedapps.method import BaseClient


class FedProxClient(BaseClient):
    """E epochs of SGD on the loss plus the proximal term, which pulls towards the received w_t."""
