"""pFedHN's client: it trains the model that the server has made for it."""

from fedapps.method import BaseClient, Slice
from strategies.pfedhn import Settings


class PFedHNClient(BaseClient):
    """K local steps from theta_i (lines 5 to 7); the server subtracts what it has sent."""

    options: Settings

    def personal(self) -> Slice:
        """pFedHN-PC: the head never leaves the client."""
        return self.layout.head if self.options.personal_head else ()
