"""Split learning: clients hold the first layers of the model, the server the others."""

from fedapps.split.client import SplitClient
from fedapps.split.rules import BatchGradients, Smashed
from fedapps.split.server_part import ServerPart
from fedapps.split.session import Session
from fedapps.split.setup import Cut, OversampleSettings
from fedapps.split.strategy import SplitStrategy

__all__ = [
    "BatchGradients", "Cut", "OversampleSettings", "ServerPart", "Session", "Smashed",
    "SplitClient", "SplitStrategy",
]  # fmt: skip
