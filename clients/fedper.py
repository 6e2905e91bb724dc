"""FedPer's client: it keeps its personalization layers between rounds."""

from fedapps.method import BaseClient, Slice
from strategies.fedper import Settings


class FedPerClient(BaseClient):
    """It trains all layers with E epochs of SGD and keeps the personal ones in its store."""

    options: Settings

    def personal(self) -> Slice:
        """The layers of `fedper.personal-layers`; by default the head."""
        named = self.options.personal_layers
        return self.layout.named(named, "fedper.personal-layers") if named else self.layout.head
