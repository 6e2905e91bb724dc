"""Let a killed run go on: write checkpoints after rounds, and follow which states clients have."""

import shutil
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np

from fedapps.core import log
from fedapps.core.errors import RunError
from fedapps.core.files import write_whole
from fedapps.core.scored_rounds import is_due
from fedapps.core.settings import Settings
from fedapps.engine import best, checkpoint
from fedapps.engine.checkpoint import Best, Checkpoint, Progress
from fedapps.engine.failures import FailureCounts
from fedapps.engine.privacy_mode import RELEASES
from fedapps.engine.store import CHANGED, ClientStore, data_changed, state_folders
from fedapps.engine.versions import OTHER_DATA, StateVersions
from fedapps.method.flower import BaseStrategy
from fedapps.method.update import ClientUpdate
from fedapps.report import directory
from fedapps.report.report import Report
from fedapps.report.rows import Means
from fedapps.report.state import ReportState

SPENT = "releases.json"  # counts the releases under differential privacy that have begun


class EarlyStop(Exception):
    """The run ends before its last round because `patience` is used up."""


@dataclass
class Recovery:
    """Writes the checkpoints of a run; `done` rounds were done before this process began."""

    settings: Settings
    done: int = 0
    best: Best = field(default_factory=Best)
    best_if_longer: Best | None = None  # as in a checkpoint
    outdated: bool = False  # whether best/ has a round that is not `best`
    versions: StateVersions = field(default_factory=StateVersions)
    failures: FailureCounts = field(default_factory=FailureCounts)
    changed: set[int] | None = None  # clients whose data have changed; None: not yet looked up

    @property
    def ended(self) -> bool:
        """Tell whether `patience` is used up; in a resumed run it may be so from the start."""
        return 0 < self.settings.patience <= self.best.since

    @property
    def left(self) -> int:
        """Return the number of rounds that this process has to do."""
        return 0 if self.ended else self.settings.num_rounds - self.done

    def restore(self, run: Path, found: Checkpoint, strategy: BaseStrategy) -> None:
        """Restore a checkpoint; raises `RunError` if it belongs to another model.

        It changes no file: the run can still be refused.
        """
        if found.progress.source != strategy.workspace.resident.source:
            path = self.settings.initial_model
            raise RunError(f'initial-model = "{path}": the file is not what the run began with')
        if other := sorted(strategy.arrays.keys() ^ found.arrays.keys()):
            raise RunError(
                f"{run}: {other[0]} is in the checkpoint's model or in the one here, but not "
                "in both: it is of other code, or of another version of fedapps (run.json names it)"
            )
        before, now = found.progress.clients, self.settings.num_clients
        grows = before < now
        for old, new in ((strategy.arrays, found.arrays), (strategy.state, found.state)):
            for key in old.keys() & new.keys():
                if grows and old is strategy.state and strategy.grows(key):
                    continue
                if np.shape(old[key]) != np.shape(new[key]):
                    raise RunError(
                        f"{run}: {key} has shape {np.shape(new[key])} in the checkpoint, but "
                        f"{np.shape(old[key])} here: what it depends on has changed"
                    )
            old.clear()  # other objects hold the same dictionary
            old |= new
        if grows:
            strategy.grow(before)
        self._spent(run, strategy)
        self.versions.of |= found.progress.versions
        self.best, self.done = found.progress.best, found.progress.round
        if found.progress.best_if_longer and self.done < self.settings.num_rounds:
            self.best = found.progress.best_if_longer
        self.failures = found.progress.failures
        # Another one was kept after the checkpoint, or was scored as the last only.
        self.outdated = checkpoint.rounds(run / directory.BEST) != [self.best.round]
        if self.settings.keep_best and self.best.round and self.outdated:
            so_far = f"round {self.best.round} is the best so far, but was not kept"
            log.warning(f"keep-best: {so_far}; best/ will be written at the next better round")

    def goes_on(self, run: Path) -> None:
        """Remove what a run does not have that goes on from a checkpoint; a new run has none."""
        checkpoint.roll_back(run, self.done)
        for client in state_folders(run):  # none if the clients are devices
            ClientStore(client).roll_back(self.done)
        for left in run.rglob(".*.tmp"):  # half-written files of the process that was killed
            left.unlink(missing_ok=True)
        kept = checkpoint.rounds(run / directory.BEST)
        later = any(round_ >= self.done for round_ in kept)  # an older one was the best, once
        if self.outdated and (self.settings.keep_best or later):
            shutil.rmtree(run / directory.BEST, ignore_errors=True)

    def before_sending(self, report: Report, strategy: BaseStrategy) -> None:
        """Save the count of releases before a round, because a repeated round releases twice."""
        if RELEASES in strategy.state:
            counts = strategy.state[RELEASES].tolist()
            write_whole(report.folder / SPENT, msgspec.json.encode(counts), durable=True)

    def _spent(self, run: Path, strategy: BaseStrategy) -> None:
        """Count also the releases of rounds that began after the checkpoint."""
        if RELEASES not in strategy.state:
            return
        try:
            counts = np.array(msgspec.json.decode((run / SPENT).read_bytes()), np.int64)
        except (OSError, ValueError) as error:
            raise RunError(f"{run / SPENT}: {error}; epsilon is unknown") from error
        if counts.shape != strategy.state[RELEASES].shape:
            raise RunError(f"{run / SPENT}: has been altered; epsilon is unknown")
        strategy.state[RELEASES] = np.maximum(counts, strategy.state[RELEASES])

    def see(self, round_: int, update: ClientUpdate, report: Report) -> None:
        """Record which state a client had and has now; a lost state becomes an event."""
        if lost := self.versions.see(round_, update.client, update.metrics):
            log.warning("round %s: client %s: %s", round_, update.client, lost)
            report.event(round_, update.client, "state-lost", lost)
        other = update.metrics.get(OTHER_DATA)
        if other in (1, 2) and update.client not in self._changed(report):
            self._changed(report).add(update.client)
            told = data_changed(drawn=other == 2)
            log.warning("round %s: client %s: %s", round_, update.client, told)
            report.event(round_, update.client, CHANGED, told)

    def _changed(self, report: Report) -> set[int]:
        """Return the clients whose data have changed, as far as events.csv has it."""
        if self.changed is None:
            rows = directory.lines(report.folder / "events.csv")
            self.changed = {int(row["client"]) for row in rows if row.get("kind") == CHANGED}
        return self.changed

    def after_round(
        self, round_: int, strategy: BaseStrategy, report: Report, means: Means, diverged: int
    ) -> None:
        """Write a checkpoint if one is due; raises `EarlyStop` if `patience` is used up.

        `means` are those of the round, if it was evaluated, and `diverged` counts the clients that
        they leave out because they diverged.
        """
        s, last = self.settings, round_ == self.settings.num_rounds
        self.best_if_longer = None
        if last and not is_due(msgspec.structs.replace(s, num_rounds=round_ + 1), round_):
            self.best_if_longer = self.best
        if s.evaluate_on == "validation" and means.personalized is not None:
            score, lead = means.with_the_worst(diverged), report.columns.lead
            most = diverged if diverged > (means.evaluated or 0) else 0
            self.best = self.best.after(round_, score, lead, most)
            if s.keep_best and self.best.round == round_:
                # before the checkpoint, because a resumed run will not repeat this round
                alone = ReportState(round=round_, seconds=report.seconds, tables={}, classes=[])
                best.keep(report.folder, self._checkpoint(strategy, alone, Best()))
        ends = self.ended and not last
        if s.checkpoint_every and (round_ % s.checkpoint_every == 0 or last or ends):
            found = self._checkpoint(strategy, report.state(round_), self.best)
            checkpoint.save(report.folder, found)
        if ends:
            told = f"no better round than round {self.best.round} in {s.patience} evaluations"
            log.info(f"{told}: the run ends")
            raise EarlyStop

    def tell_best(self, run: Path) -> None:
        """Log the command that scores the best round on test samples.

        There is none for devices, because only they have the samples, nor if the best round was not
        kept, because the run was resumed without `keep-best`.
        """
        kept = checkpoint.rounds(run / directory.BEST) == [self.best.round]
        if kept and not self.settings.on_devices:
            told = f"the best round on validation samples is {self.best.round}"
            log.info(f"{told}; to score it on test samples: {best.look(run / directory.BEST)}")

    def _checkpoint(self, strategy: BaseStrategy, state: ReportState, best: Best) -> Checkpoint:
        about = msgspec.structs.asdict(state)
        progress = Progress(
            **about,
            versions=self.versions.of,
            best=best,
            best_if_longer=self.best_if_longer,
            failures=self.failures,
            source=strategy.workspace.resident.source,
            clients=self.settings.num_clients,
        )
        return Checkpoint(progress, strategy.arrays, strategy.state)
