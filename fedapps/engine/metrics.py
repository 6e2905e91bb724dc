"""Check the metrics that a client reports before they are used."""

from collections.abc import Set
from dataclasses import dataclass, fields, replace

import msgspec

from fedapps.core import log
from fedapps.core.errors import one_line
from fedapps.engine.versions import LOADED, SAVED
from fedapps.method.figures import GENERAL, Figure
from fedapps.method.flower import BaseStrategy
from fedapps.method.update import ClientUpdate
from fedapps.report.rows import ClientEval
from fedapps.training.costs import TrainingStats
from fedapps.training.plan import Plan
from fedapps.wire.checks import invalid_loss

ROUNDING = 1e-6  # by which an accuracy may differ from the one computed from the counts
SLACK = 1000  # a method's further work may cost this many times as much as its plan
# Metrics that every evaluation has.
KNOWN = {
    *(field.name for field in fields(ClientEval)),
    *(f"finetune_{field.name}" for field in fields(TrainingStats)),
    LOADED,
    SAVED,
}


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
        self.sample_macs = 3 * space.trainer.profile.forward_macs(space.layout.names)
        self.parameters = space.layout.count(space.layout.names)
        self.told = False

    def training(self, update: ClientUpdate, plan: Plan, prefix: str = "") -> TrainingStats:
        """Read the statistics of a training; those of a personalization have a `prefix`.

        If a personalization diverged, its loss is left out, and the accuracies still count.
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
        return replace(done, loss=0.0, samples=0) if problem else done

    def evaluation(self, update: ClientUpdate, plan: Plan) -> Evaluation:
        """Read the metrics of an evaluation: those of its personalization, and its scores."""
        return Evaluation(self.training(update, plan, "finetune_"), self.scores(update))

    def scores(self, update: ClientUpdate) -> ClientEval:
        """Read the scores of an evaluation."""
        samples, metrics, figures = update.num_examples, update.metrics, self._figures()
        self._tell_undeclared(metrics.keys() - KNOWN - {figure.name for figure in figures})
        scores = ClientEval.read(update.client, samples, metrics, figures)
        _at_most("num_train", scores.num_train, self.strategy.count(update.client, "train"))
        if sum(scores.class_total) != scores.num_test:
            raise ValueError(f"class_total must sum to {scores.num_test}, the test samples")
        classes = self.strategy.workspace.dataset.classes
        for key in ("class_total", "class_initial", "class_personalized"):
            counts = getattr(scores, key)
            if len(counts) != classes:
                raise ValueError(f"{key} must have {classes} entries")
            for count, total in zip(counts, scores.class_total, strict=True):
                _at_most(key, count, total)
        for when in ("initial", "personalized"):
            told, right = getattr(scores, f"accuracy_{when}"), sum(getattr(scores, f"class_{when}"))
            if abs(told - right / scores.num_test) > ROUNDING:
                raise ValueError(
                    f"accuracy_{when} = {told:g}: class_{when} has {right} of {scores.num_test}"
                )
        if scores.loss < 0:  # a cross entropy; NaN or infinite if personalization diverged
            raise ValueError(f"loss = {scores.loss:g}: must be at least 0")
        return scores

    def _figures(self) -> list[Figure]:
        """Return the figures, besides those of every evaluation, that this run asks clients for."""
        settings = self.strategy.settings
        general = [figure for key, figure in GENERAL.items() if getattr(settings, key)]
        return [*dict.fromkeys([*self.strategy.figures, *general])]

    def _tell_undeclared(self, names: Set[str]) -> None:
        """Warn once about figures that are left out: the method's author may miss them."""
        if names and not self.told:
            self.told = True
            method, listed = self.strategy.settings.strategy, one_line(", ".join(sorted(names)))
            log.warning("clients give %s, which %s does not declare: left out", listed, method)


def _at_most(name: str, value: int, most: int) -> None:
    if value > most:
        raise ValueError(f"{name} = {value}: at most {most}")
