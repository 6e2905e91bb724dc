"""pFedSim's client: after the warm-up it keeps its head, and also sends it to the server."""

from fedapps.method import BaseClient, rounds_of
from strategies.pfedsim import Settings


class PFedSimClient(BaseClient):
    """It trains all layers with E epochs of SGD; the server gets its head, to compare clients."""

    options: Settings

    def of_one_run(self) -> tuple[str, ...]:
        """After a warm-up, drop the model: that of the next run exchanges heads again."""
        return ("model/",) if rounds_of(self.settings, self.options.warmup) else ()
