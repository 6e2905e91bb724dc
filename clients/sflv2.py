"""The client of SplitFed v2: it trains with the server's gradients and keeps nothing."""

from fedapps.split import SplitClient


class SFLv2Client(SplitClient):
    """It trains layers 1..c with E epochs of SGD; the server holds the others."""
