"""What a run enters into the ledger of its federation, and the manifest of its model.

Without the key `federation` there is no ledger, and only `dp.budget` is checked, for the run alone.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from fedapps.core import log, signing
from fedapps.core.errors import RunError
from fedapps.core.paths import absolute, expanded
from fedapps.core.signing import Manifest
from fedapps.engine import ledger
from fedapps.engine.fingerprints import SKETCH
from fedapps.engine.ledger import Ledger, Night, check_budget
from fedapps.engine.rounds import Rounds
from fedapps.models.grouping import frozen_keys
from fedapps.report import directory
from fedapps.report.about import About
from fedapps.report.attempts import attempt
from fedapps.report.report import Report


class Federation:
    """The federation of a run; raises `RunError` if the run could exceed `dp.budget`."""

    night: Night  # what the ledger says about this run

    def __init__(self, rounds: Rounds) -> None:
        self.rounds, self.settings = rounds, rounds.settings
        named = self.settings.federation
        self.folder = absolute(named, "federation") if named else None
        if self.folder and self.settings.adapter_rank:
            raise RunError(
                f"adapter-rank = {self.settings.adapter_rank}: no later run of a federation can"
                " start from adapters; use 0"
            )
        if self.folder and frozen_keys(rounds.strategy.workspace.model):
            raise RunError(
                f'model = "{self.settings.model}": has frozen parameters, so that its'
                f" {directory.MODEL} is no start for a later run of a federation; train all"
            )
        if not self.settings.resume:  # what a resumed run has done already is not known yet
            self.check()
            if self.settings.dp.noise and self.night.pretrained:
                log.warning(
                    "initial-model: epsilon does not cover what these weights were trained on;"
                    " use none, or those of other data or of a run of the same federation"
                )

    def check(self, folder: Path | None = None) -> None:
        """Raise `RunError` if the run, whose directory is `folder` if it is resumed, is refused.

        It changes no file.
        """
        self._enter(Ledger() if self.folder is None else ledger.read(self.folder), folder)

    @contextmanager
    def recorded(self, report: Report) -> Iterator[None]:
        """Enter the run before it begins; at its end, enter what it did and describe its model."""
        if self.folder is None:
            self._enter(Ledger(), report.folder)
            yield
            return
        with ledger.editing(self.folder) as book:
            known = book.run(report.about.id)
            self._enter(book, report.folder)
        try:
            yield
        except BaseException:
            left = self._now(report, directory.has_finished(report.folder))
            if known and report.pending:  # it was not resumed
                left = known
            for error in attempt(lambda: self._ends(left)):  # what came first counts
                log.warning("%s", error)
            raise
        self._ends(self._now(report, finished=True), start=True)
        if self.rounds.idle:  # what made all clients fail may do so again
            log.warning(
                "round %s, the last one, had no update, and the next run of the federation starts"
                " from its model; fedapps nightly --roll-back starts one model earlier",
                self._now(report).round,
            )
        self._describe(report, self.folder)

    def _ends(self, night: Night, start: bool = False) -> None:
        """Enter what the run did; later runs `start` from its model. Raises `RunError`."""
        assert self.folder is not None
        with ledger.editing(self.folder) as book:
            book.enter(night)
            if start:
                book.start = night.run

    def figures(self, report: Report) -> dict[str, Any]:
        """Return what the summary of the run says about all runs of its federation."""
        if self.folder is None:
            return {}
        runs = self._runs(report, self.folder)
        total = ledger.epsilon(runs, self.settings.dp.delta)
        return {"runs_of_federation": len(runs), "epsilon_of_federation": total}

    def _enter(self, book: Ledger, run: Path | None) -> None:
        """Enter this run into the ledger with all that it can still release; check the budget."""
        s, privacy, recovery = self.settings, self.rounds.privacy, self.rounds.recovery
        about = About.read(run) if run else None
        parent = where = ""
        if self.folder is not None:
            if run is not None:
                where = run.name if run.parent == self.folder else str(run)
            if s.initial_model:
                parent = book.holder(expanded(s.initial_model), self.folder)
        self.night = Night(
            run=about.id if about else "",
            folder=where,
            started=about.started if about else "",
            strategy=s.strategy,
            parent=parent,
            pretrained=bool(s.initial_model and not parent),
            before=book.before(about.id if about else ""),
            round=recovery.done,
            mechanism=privacy.mechanism,
            seeded=s.dp.seeded,
            releases=self._releases() + recovery.left,
            delta=s.dp.delta,
        )
        check_budget(s.dp, book.others(self.night.run), self.night)
        book.enter(self.night)
        self.rounds.strategy.earlier = self.night.before

    def _now(self, report: Report, finished: bool = False) -> Night:
        """Return what this run has done up to now."""
        done = {"round": report.last_round, "releases": self._releases(), "finished": finished}
        return msgspec.structs.replace(self.night, **done)

    def _runs(self, report: Report, folder: Path) -> list[Night]:
        """Return all runs of the federation in a folder, this one as it is now."""
        return [*ledger.read(folder).others(self.night.run), self._now(report)]

    def _releases(self) -> int:
        """Return how many releases there were; a round is one from its begin, wherever it ends."""
        privacy = self.rounds.privacy
        before = 0 if privacy.mechanism else self.rounds.recovery.done  # which no mode has counted
        return before + privacy.releases()

    def _describe(self, report: Report, federation: Path) -> None:
        """Write the manifest of the run's model; with privacy, without the digest of the data."""
        path, about, delta = report.folder / directory.MODEL, report.about, self.settings.dp.delta
        runs = self._runs(report, federation)
        total = ledger.guaranteed(runs, delta)
        known = total is not None and math.isfinite(total)
        left = {SKETCH, *(["data"] if self.rounds.privacy.mechanism else [])}
        manifest = Manifest(
            sha256=signing.digest(signing.read(path).content),
            run=about.id,
            strategy=self.settings.strategy,
            round=self._now(report).round,
            epsilon=total if known else None,
            delta=delta if known else None,
            pretrained=any(night.pretrained for night in runs),
            fingerprints={k: v for k, v in about.fingerprints.items() if k not in left},
            versions=about.versions,
        )
        signing.write_manifest(path, manifest)
