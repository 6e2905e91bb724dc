"""FedBABU's client: body update, and the paper's evaluation without a head."""

from fedapps.method import BaseClient, Slice


class FedBABUClient(BaseClient):
    """It starts every round from {received body, initial head}, the same on all clients."""

    def personal(self) -> Slice:
        """The head never travels: all clients make the same head from the seed."""
        return self.layout.head

    def extra_scores(self) -> dict[str, float]:
        """Accuracy without a head: nearest class template in the body's output (Section 5.2)."""
        return self.without_head()
