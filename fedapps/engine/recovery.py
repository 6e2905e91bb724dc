"""What lets a run go on after a kill: checkpoints after rounds, and which states clients have."""

from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np

from fedapps.core import log
from fedapps.core.config import DEVICE
from fedapps.core.errors import RunError
from fedapps.core.files import write_whole
from fedapps.core.settings import Settings
from fedapps.engine import best, checkpoint
from fedapps.engine.checkpoint import Best, Checkpoint, Progress
from fedapps.engine.privacy import RELEASES
from fedapps.engine.versions import StateVersions
from fedapps.method.strategy import BaseStrategy
from fedapps.method.update import ClientUpdate
from fedapps.report import directory
from fedapps.report.report import Report, ReportState

SPENT = "releases.json"  # of differential privacy, begun so far


class EarlyStop(Exception):
    """The run ends before its last round, by its own wish (`patience`)."""


@dataclass
class Recovery:
    """Writes what a run can go on from; `done` rounds were done before this process began."""

    settings: Settings
    done: int = 0
    best: Best = field(default_factory=Best)
    versions: StateVersions = field(default_factory=StateVersions)

    @property
    def ended(self) -> bool:
        """Tell whether `patience` is at its end; a run that is resumed may begin so."""
        return 0 < self.settings.patience <= self.best.since

    @property
    def left(self) -> int:
        """Return how many rounds this process has to do."""
        return 0 if self.ended else self.settings.num_rounds - self.done

    def restore(self, run: Path, found: Checkpoint, strategy: BaseStrategy) -> None:
        """Be as after the round of a checkpoint; raises `RunError` for one of another model."""
        for old, new in ((strategy.arrays, found.arrays), (strategy.state, found.state)):
            for key in old.keys() & new.keys():
                if np.shape(old[key]) != np.shape(new[key]):
                    raise RunError(
                        f"resume: {key} has shape {np.shape(new[key])} in the checkpoint, here "
                        f"{np.shape(old[key])}: it depends on a setting that has changed"
                    )
            old.clear()  # others hold the same dictionaries
            old |= new
        self._spent(run, strategy)
        self.versions.of |= found.progress.versions
        self.best, self.done = found.progress.best, found.progress.round
        if self.settings.keep_best and self.best.round and not (run / directory.BEST).exists():
            log.warning(
                "keep-best: round %s is the best so far and was not kept; "
                "best/ comes with the next better one",
                self.best.round,
            )

    def before_sending(self, report: Report, strategy: BaseStrategy) -> None:
        """Have on disk what a round is about to spend of privacy: repeated, it is spent twice."""
        if RELEASES in strategy.state:
            counts = strategy.state[RELEASES].tolist()
            write_whole(report.folder / SPENT, msgspec.json.encode(counts), durable=True)

    def _spent(self, run: Path, strategy: BaseStrategy) -> None:
        """Count the releases of rounds that were begun after the checkpoint."""
        if RELEASES not in strategy.state:
            return
        try:
            counts = np.array(msgspec.json.decode((run / SPENT).read_bytes()), np.int64)
        except (OSError, ValueError) as error:
            raise RunError(f"{run / SPENT}: {error}; epsilon is unknown") from error
        if counts.shape != strategy.state[RELEASES].shape:
            raise RunError(f"{run / SPENT}: was altered; epsilon is unknown")
        strategy.state[RELEASES] = np.maximum(counts, strategy.state[RELEASES])

    def see(self, round_: int, update: ClientUpdate, report: Report) -> None:
        """Take down which state a client had and has; one that was lost is an event."""
        if lost := self.versions.see(round_, update.client, update.metrics):
            log.warning("round %s: client %s: %s", round_, update.client, lost)
            report.event(round_, update.client, "state-lost", lost)

    def after_round(
        self, round_: int, strategy: BaseStrategy, report: Report, score: float | None
    ) -> None:
        """Write a checkpoint if one is due; `score` is that of personalized clients, if any.

        Raises `EarlyStop` if `patience` is at its end.
        """
        s, last = self.settings, round_ == self.settings.num_rounds
        if s.evaluate_on == "validation" and score is not None:
            self.best = self.best.after(round_, score)
            if s.keep_best and self.best.round == round_:
                # before the checkpoint, from which on this round is not done again
                alone = ReportState(round=round_, seconds=report.seconds, tables={}, classes=[])
                best.keep(report.folder, self._checkpoint(strategy, alone, Best()))
        ends = self.ended and not last
        if s.checkpoint_every and (round_ % s.checkpoint_every == 0 or last or ends):
            found = self._checkpoint(strategy, report.state(round_), self.best)
            checkpoint.save(report.folder, found)
        if ends:
            log.info(
                "no better round than %s in %s evaluations: the run ends",
                self.best.round,
                s.patience,
            )
            raise EarlyStop

    def tell_best(self, run: Path) -> None:
        """Say how the best round is scored on test samples; not of devices, which have them."""
        if (run / directory.BEST).exists() and self.settings.dataset != DEVICE:
            log.info(
                "the best round on validation samples is %s; this scores it on test samples: %s",
                self.best.round,
                best.look(run / directory.BEST),
            )

    def _checkpoint(self, strategy: BaseStrategy, state: ReportState, best: Best) -> Checkpoint:
        about = msgspec.structs.asdict(state)
        progress = Progress(**about, versions=self.versions.of, best=best)
        return Checkpoint(progress, strategy.arrays, strategy.state)
