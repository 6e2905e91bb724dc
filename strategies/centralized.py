"""Centralized training on the union of the clients' training data: the reference, not federated."""

from fedapps.config import Settings
from fedapps.errors import RunError
from fedapps.layers import put, take
from fedapps.plan import Plan
from fedapps.strategy import BaseStrategy
from fedapps.training import Draw, Trained
from fedapps.workspace import Workspace


class Centralized(BaseStrategy):
    """E epochs per round in the server process; clients only evaluate (and personalize)."""

    citation = "baseline"
    exchanges = "nothing"

    def __init__(self, workspace: Workspace, settings: Settings | None = None) -> None:
        super().__init__(workspace, settings)
        if self.layout.stays:
            raise RunError(
                'centralized needs bn-stats = "shared" or "batch" and bn-local = false: '
                "clients never train, so they have no statistics of their own"
            )

    def select(self, round_: int) -> list[int]:
        """No client trains."""
        return []

    def plan(self, round_: int, client: int) -> Plan:
        """A client is evaluated with the server's model."""
        return Plan(round=round_, download=self.layout.names, stages=(), upload=())

    def after_round(self, round_: int) -> Trained:
        """Train all layers on the union of the training data."""
        space, stage = self.workspace, self.stage(round_, self.layout.names)
        put(space.model, self.arrays)
        draw = Draw(self.settings.seed, "train", round_, 0)  # as FedAvg's only client would draw
        done = space.trainer.train(space.union, (stage,), draw)
        self.arrays.update(take(space.model, self.layout.keys_of(self.layout.names)))
        return done
