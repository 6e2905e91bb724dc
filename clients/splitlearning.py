"""The client of split learning: it trains with the server's gradients and keeps nothing."""

from fedapps.split import SplitClient


class SplitLearningClient(SplitClient):
    """It trains layers 1..c with E epochs of SGD; the server holds the others."""
