"""Check the metrics that a client reports before they are used."""

from collections.abc import Sequence, Set
from dataclasses import dataclass, fields

import msgspec
import numpy as np

from fedapps.core import log
from fedapps.core.errors import DIVERGED, one_line
from fedapps.core.schema import Count
from fedapps.engine.versions import LOADED, OTHER_DATA, SAVED
from fedapps.method.figures import GENERAL, Figure, given
from fedapps.method.flower import BaseStrategy
from fedapps.method.local import keys
from fedapps.method.update import ClientUpdate
from fedapps.report.columns import MEASURED, check_figures
from fedapps.report.rows import ClientEval
from fedapps.tasks import Counts
from fedapps.training.costs import TrainingStats
from fedapps.training.plan import Plan
from fedapps.wire.checks import GrownError, invalid_loss

SLACK = 1000  # a method's further work may cost this many times as much as its plan
# Metrics that every evaluation has.
REPORTED = {column.name: column.reported for column in MEASURED if column.reported}
OF_STATE = {LOADED, SAVED, OTHER_DATA}


@dataclass(frozen=True)
class Evaluation:
    """The metrics of an evaluation: the statistics of its personalization, and the scores."""

    finetuned: TrainingStats
    scores: ClientEval


@dataclass
class MetricChecks:
    """Reads the metrics of a strategy's clients.

    All methods raise ValueError or KeyError for metrics that cannot be right.
    """

    strategy: BaseStrategy

    def __post_init__(self) -> None:
        space = self.strategy.workspace
        # A figure that cannot be a column ends the run before it has a folder.
        check_figures(space.settings.strategy, self.strategy.figures, space.task)
        self.sample_macs = 3 * space.trainer.profile.forward_macs(space.layout.names)
        self.parameters = space.layout.count(space.layout.names)
        self.told, self.evaluated = False, False

    def training(self, update: ClientUpdate, plan: Plan, prefix: str = "") -> TrainingStats:
        """Read the statistics of a training; those of a personalization have a `prefix`.

        If a personalization diverged, its loss is left out, and the scores still count.
        """
        names = [field.name for field in fields(TrainingStats)]
        done = msgspec.convert(
            {name: update.metrics[prefix + name] for name in names}, TrainingStats
        )
        size = self.strategy.settings.batch_size
        own = self.strategy.count(update.client, "train")
        samples = sum(s.passes * s.epochs * max(own, s.batches * size) for s in plan.stages)
        most = SLACK * max(samples, own)
        for name in ("samples", "batches", "skipped", "rejected"):
            _at_most(name, getattr(done, name), samples)
        _at_most("macs", done.macs, most * self.sample_macs)
        _at_most("cost_paper", done.cost_paper, most * self.parameters)
        least, limit = self.strategy.least_loss, self.strategy.settings.max_value
        problem = invalid_loss(done.loss, done.samples, limit, least)
        if problem and not prefix:
            raise ValueError(problem)
        return done.costs_only() if problem else done

    def evaluation(self, update: ClientUpdate, plan: Plan) -> Evaluation:
        """Read the metrics of an evaluation: those of its personalization, and its scores."""
        scores = self.scores(update)
        return Evaluation(self.training(update, plan, "finetune_"), scores)

    def scores(self, update: ClientUpdate) -> ClientEval:
        """Read the scores of an evaluation."""
        samples, metrics, figures = update.num_examples, update.metrics, self._figures()
        counts = {when: self._counts(when, update) for when in ("initial", "personalized")}
        known = OF_STATE | keys(self.strategy.workspace.task)
        self._tell_undeclared(metrics.keys() - known - {f.key or f.name for f in figures})
        before, after = counts["initial"], counts["personalized"]
        for name in self.strategy.workspace.task.of_targets:
            if (before[name] != after[name]).any():
                raise ValueError(f"personalized_{name} differs from initial_{name}")
        scores = ClientEval(
            client=update.client,
            num_test=msgspec.convert(samples, Count),
            task=self.strategy.workspace.task,
            before=before,
            after=after,
            figures=given(figures, metrics),
            **{name: msgspec.convert(metrics[name], kind) for name, kind in REPORTED.items()},
        )
        own, devices = self.strategy.count(update.client, "train"), self.strategy.devices
        if devices and own < scores.num_train <= self.strategy.settings.max_samples:
            raise GrownError(own, scores.num_train)
        _at_most("num_train", scores.num_train, own)
        if scores.loss < 0:  # NaN or infinite if personalization diverged
            raise ValueError(f"loss = {scores.loss:g}: must be at least 0")
        return scores

    def _counts(self, when: str, update: ClientUpdate) -> Counts:
        """Read what a client has counted before or after personalization."""
        space = self.strategy.workspace
        counts: dict[str, np.ndarray] = {}
        most = update.num_examples * space.dataset.targets.size  # so that no sum overflows
        for name, size in space.task.sizes(space.dataset.targets).items():
            key = f"{when}_{name}"
            kind = list[float] if name in space.task.sums else list[int]
            values = np.array(msgspec.convert(update.metrics[key], kind))
            if len(values) != size:
                raise ValueError(f"{key} must have {size} values")
            if not np.isfinite(values).all():
                raise ValueError(f"{key} is not finite: {DIVERGED}")
            if (values < 0).any():
                raise ValueError(f"{key} has {values.min():g}: must be at least 0")
            if name not in space.task.sums and (values > most).any():
                raise ValueError(f"{key} has {values.max()}: at most {most}")
            counts[name] = values
        try:
            space.task.check_counts(counts, update.num_examples)
        except ValueError as error:
            raise ValueError(f"{when}_{error}") from None
        return counts

    def _figures(self) -> list[Figure]:
        """Return the figures, besides those of every evaluation, that this run asks clients for."""
        settings = self.strategy.settings
        general = [figure for key, figure in GENERAL.items() if getattr(settings, key)]
        lead = self.strategy.workspace.task.lead
        return [f.named(lead) for f in dict.fromkeys([*self.strategy.figures, *general])]

    def tell_missing(self, updates: Sequence[ClientUpdate]) -> None:
        """Warn after the first evaluation of figures that are declared, and no client gives."""
        if updates and not self.evaluated:
            self.evaluated = True
            found = {name for update in updates for name in update.metrics}
            declared = {f.key or f.name for f in self.strategy.figures if not f.sometimes}
            if missing := ", ".join(sorted(declared - found)):
                told = "%s declares %s, but no client gives it: return it from extra_scores"
                log.warning(told, self.strategy.settings.strategy, missing)

    def _tell_undeclared(self, names: Set[str]) -> None:
        """Warn once about figures that are left out: the method's author may miss them."""
        if names and not self.told:
            self.told = True
            method, listed = self.strategy.settings.strategy, one_line(", ".join(sorted(names)))
            log.warning("clients give %s, which %s does not declare: left out", listed, method)


def _at_most(name: str, value: int, most: int) -> None:
    if value > most:
        raise ValueError(f"{name} = {value}: at most {most}")
