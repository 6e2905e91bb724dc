"""LG-FedAvg's client: it keeps its low layers between rounds."""

from fedapps.method import BaseClient, Slice
from strategies.lgfedavg import Settings


class LGFedAvgClient(BaseClient):
    """It trains all layers with E epochs of SGD, and keeps the low layers after the warm-up."""

    options: Settings

    def personal(self) -> Slice:
        """Layers that it has kept once are personal: no plan may upload them."""
        kept = self.kept().keys() & self.layout.shared(self.layout.names)
        return self.layout.layers_of(kept)

    def of_one_run(self) -> tuple[str, ...]:
        """After a warm-up, drop the model: that of the next run exchanges all layers again."""
        return ("model/",) if self.options.warmup_rounds else ()
