"""The totals of a round, which become a row of rounds.csv."""

import time
from dataclasses import dataclass, field, fields

from fedapps.method.update import Failure
from fedapps.report.rows import Means, RoundRow
from fedapps.training.costs import TrainingStats


@dataclass
class RoundTotals:
    """Sums over the clients of a round so far; `start` is a monotonic time in seconds.

    `failed` has each client's first failure in the round. The first `counted` of them are in the
    row of the round itself, if these are the totals of a phase that follows.
    """

    phase: str = ""  # if empty, the strategy names the phase
    start: float = field(default_factory=time.monotonic)
    clients: int = 0
    failed: dict[int, Failure] = field(default_factory=dict)
    counted: int = 0
    bytes_down: int = 0
    bytes_up: int = 0
    bytes_eval: int = 0
    trained: TrainingStats = field(default_factory=TrainingStats)
    means: Means = field(default_factory=Means)  # means of the evaluation
    epsilon: float | None = None
    virtual_seconds: float | None = None

    def add(self, more: TrainingStats) -> None:
        """Add the sums of one more training."""
        for name in (item.name for item in fields(TrainingStats)):
            setattr(self.trained, name, getattr(self.trained, name) + getattr(more, name))

    def row(self, round_: int, phase: str) -> RoundRow:
        """Return the row of rounds.csv for the round that ends now."""
        return RoundRow(
            round=round_,
            phase=self.phase or phase,
            clients=self.clients,
            failures=len(self.failed) - self.counted,
            train_loss=self.trained.mean_loss if self.trained.samples else None,
            bytes_down=self.bytes_down,
            bytes_up=self.bytes_up,
            bytes_eval=self.bytes_eval,
            train_macs=self.trained.macs,
            cost_paper=self.trained.cost_paper,
            seconds=time.monotonic() - self.start,
            epsilon=self.epsilon,
            virtual_seconds=self.virtual_seconds,
            means=self.means,
        )
