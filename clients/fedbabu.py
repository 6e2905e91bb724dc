"""FedBABU's client: body update, and the evaluation without head of the paper's tables."""

from fedapps.method import BaseClient, Slice, nearest_template


class FedBABUClient(BaseClient):
    """Starts every round from {received body, initial head}; both are the same on all clients."""

    def personal(self) -> Slice:
        """The head never travels: each client makes the same one from the seed."""
        return self.layout.head

    def extra_scores(self) -> dict[str, float]:
        """Accuracy without head: nearest class template in the body's output (Section 5.2)."""
        accuracy = nearest_template(self.model, self.layout.body, self.train_data, self.test_data)
        return {"accuracy_without_head": accuracy}
