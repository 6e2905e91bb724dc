"""The local trainings of a group of clients, as one."""

import copy
import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from fedapps.models.layers import Slice, run
from fedapps.models.modes import freeze_all_but
from fedapps.training.batches import Samples
from fedapps.training.clipping import Threshold, Thresholds
from fedapps.training.costs import Costs, TrainingStats
from fedapps.training.draw import Draw
from fedapps.training.objective import Objective
from fedapps.training.optimizers import Optimizer, optimizer
from fedapps.training.plan import Stage
from fedapps.training.stacked.model import StackedModel, UnstackableError, stack
from fedapps.training.stacked.schedule import Batch, Schedule, Steps
from fedapps.training.stage_run import add_proximal
from fedapps.training.trainer import Trainer, check_anchor, threshold_of


@dataclass
class Lesson:
    """One client's training: what `Trainer.train` takes, and the `entries` that it begins with.

    Once it has been trained, `entries` are those of the trained model, and `done` says what was
    done.
    """

    entries: dict[str, Tensor]
    data: Samples
    draw: Draw
    objective: Objective
    thresholds: Thresholds
    cache_key: Hashable = None
    done: TrainingStats = field(default_factory=TrainingStats)


class NotFiniteError(ArithmeticError):
    """A value in the training of a group is not finite."""


class GroupRun:
    """Executes the stages of a plan for several clients at once.

    The first rows of `entries` [k, ...] are the clients that have the most steps, so in each step
    those that train are the first ones; nothing of the others changes. The `order` of the clients
    is new in each stage. Their objectives have nothing beyond their loss.
    """

    def __init__(self, trainer: Trainer, model: StackedModel, lessons: Sequence[Lesson]) -> None:
        self.trainer, self.model, self.order = trainer, model, [*range(len(lessons))]
        self.lessons = [copy.copy(lesson) for lesson in lessons]
        for own in self.lessons:
            own.thresholds, own.done = copy.deepcopy(own.thresholds), TrainingStats()
        self.entries = {k: stack([own.entries[k] for own in lessons]) for k in lessons[0].entries}
        self.anchor: dict[str, Tensor] = {}

    def run(self, stages: Sequence[Stage]) -> dict[int, Lesson]:
        """Train; return new lessons by their place among those that were given.

        Raises `NotFiniteError` if the training of a client diverges, and `UnstackableError` if its
        steps draw random numbers.
        """
        layout, epoch = self.trainer.layout, 0
        pulled = layout.keys_of(tuple(name for s in stages if s.prox_mu for name in s.layers))
        pulled = tuple(key for key in pulled if key in layout.parameters)
        for own in self.lessons:
            check_anchor(own.objective.anchor, pulled)
        for key in pulled:
            given = [(own.objective.anchor or {}).get(key) for own in self.lessons]
            values = [value for value in given if value is not None]
            now = self.entries[key]
            self.anchor[key] = stack(values).to(now.device) if values else now.clone()
        for stage in stages:
            if self.trainer.trains(stage):
                self._stage(stage, epoch)
            epoch += stage.epochs
        if not torch.stack(torch._foreach_norm([*self.entries.values()])).isfinite().all():
            raise NotFiniteError("a value of a model")
        for row, own in enumerate(self.lessons):
            own.entries = {key: value[row] for key, value in self.entries.items()}
        return dict(zip(self.order, self.lessons, strict=True))

    def _stage(self, stage: Stage, first: int) -> None:
        trainer, names = self.trainer, self.trainer.layout.names
        sizes = [len(own.data[1]) for own in self.lessons]
        steps = [
            Steps.of(trainer, stage, own.draw, first, size)
            for own, size in zip(self.lessons, sizes, strict=True)
        ]
        steps = self._longest_first(steps)
        prefixes = [trainer.cached_prefix(stage.layers, len(own.data[1])) for own in self.lessons]
        for own, prefix, of_own in zip(self.lessons, prefixes, steps, strict=True):
            own.done.spend(self._costs(stage, prefix, of_own, len(own.data[1])))
            own.done.skipped += of_own.skipped
            own.done.batches += len(of_own.batches)
            own.done.samples += of_own.samples
        prefix = min(prefixes, key=len)  # clients with few samples could have cached more
        data = [(self._inputs(row, prefix), own.data[1]) for row, own in enumerate(self.lessons)]
        schedule = Schedule(data, steps, trainer.border)
        self._take_steps(stage, names[len(prefix) :], schedule)

    def _longest_first(self, steps: list[Steps]) -> list[Steps]:
        """Put the clients into the order of their steps, and return these."""
        order = sorted(range(len(steps)), key=lambda row: -len(steps[row].batches))
        if order != [*range(len(steps))]:
            for values in (self.entries, self.anchor):
                values |= {k: v[torch.tensor(order).to(v.device)] for k, v in values.items()}
            self.lessons = [self.lessons[row] for row in order]
            self.order = [self.order[row] for row in order]
        return [steps[row] for row in order]

    def _costs(self, stage: Stage, prefix: Slice, steps: Steps, size: int) -> Costs:
        """Return what a client's stage costs on its own, with the prefix that it would cache."""
        facts, layout = self.trainer.profile, self.trainer.layout
        macs = steps.samples * facts.step_macs(stage.layers, layout.names[len(prefix)])
        if prefix:
            macs += size * facts.forward_macs(prefix)
        return Costs(macs, layout.count(stage.layers) * len(steps.batches))

    def _inputs(self, row: int, prefix: Slice) -> Tensor:
        """Return a client's samples, or the outputs of its own prefix for them."""
        own, state = self.lessons[row], self.trainer.model.state_dict()
        for key in self.trainer.layout.keys_of(prefix):
            state[key].copy_(self.entries[key][row])
        return self.trainer.inputs(own.data[0], prefix, own.cache_key)

    def _take_steps(self, stage: Stage, layers: Slice, schedule: Schedule) -> None:
        """Take a step of all clients that have one left, until none has."""
        sums = torch.zeros(len(self.lessons), device=schedule.chosen.device)
        thresholds = [threshold_of(stage, own.thresholds) for own in self.lessons]
        parameters, rows = dict[str, nn.Parameter](), 0
        mover: Optimizer | None = None
        self._spoil(stage)
        before = self._generators()
        for step in range(len(schedule.sizes)):
            batch = schedule.batch(step)
            if len(batch.share) != rows:
                rows = len(batch.share)
                self.model.load({key: value[:rows] for key, value in self.entries.items()})
                parameters = freeze_all_but(self.model.module, self.trainer.layout, stage.layers)
                mover = mover or optimizer([], stage)
                mover.go_on([*parameters.values()])
            assert mover is not None
            self.model.places.taken = batch.taken
            values = self._values(run(self.model.module, batch.inputs, layers), batch)
            values.sum().backward()
            if stage.prox_mu:
                near = {key: self.anchor[key][:rows] for key in parameters}
                add_proximal(parameters, near, stage.prox_mu)
            if stage.clip:
                clip_rows([p.grad for p in parameters.values()], thresholds[:rows])
            mover.step()
            sums[:rows] += values.detach() * batch.sizes
        if not torch.equal(before, self._generators()):
            raise UnstackableError("a step draws random numbers, and not by each client's seed")
        for own, total in zip(self.lessons, sums.cpu().tolist(), strict=True):
            own.done.loss += total
            if not math.isfinite(total):
                raise NotFiniteError("a loss")

    def _values(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return the loss of each client's batch, [k]: the task's mean, or the objective's own."""
        if self.lessons[0].objective.loss is None:
            each = self.trainer.task.losses(outputs, batch.targets).view(len(batch.share), -1)
            return each.mean(1) if batch.taken is None else (each * batch.share).sum(1)
        losses = []
        outputs, targets = (
            t.unflatten(0, (len(batch.share), -1)) for t in (outputs, batch.targets)
        )
        for row, size in enumerate(batch.lengths):
            loss = self.lessons[row].objective.loss
            assert loss is not None
            losses.append(loss(outputs[row, :size], targets[row, :size]))
        return torch.stack(losses)

    def _generators(self) -> Tensor:
        """Return the state of torch's generators that a step can draw from."""
        device = next(iter(self.entries.values())).device
        on_gpu = [torch.cuda.get_rng_state(device)] if device.type == "cuda" else []
        return torch.cat([torch.get_rng_state(), *on_gpu])

    @torch.no_grad()
    def _spoil(self, stage: Stage) -> None:
        """Fill the trainer's model with NaN, so that no loss can read weights from it unseen.

        Everything else of it is as in this stage.
        """
        self.trainer.freeze_all_but(stage.layers)
        state = self.trainer.model.state_dict()
        for key in self.entries:
            state[key].fill_(math.nan)


@torch.no_grad()
def clip_rows(gradients: Sequence[Tensor | None], thresholds: Sequence[Threshold | None]) -> None:
    """Clip each client's gradient, a row of all these [k, ...], as `clip_batch` does.

    Raises `NotFiniteError` for a norm that is not finite.
    """
    found = [g for g in gradients if g is not None]
    squares = [torch.linalg.vector_norm(g, dim=[*range(1, g.dim())]) for g in found]
    norms = torch.linalg.vector_norm(torch.stack(squares), dim=0).cpu().tolist()
    scales = []
    for norm, threshold in zip(norms, thresholds, strict=True):
        if not math.isfinite(norm):
            raise NotFiniteError("the norm of a gradient")
        assert threshold is not None
        limit = threshold.after(norm)
        scales.append(limit / norm if norm > limit else 1.0)
    if min(scales) < 1:
        rows = torch.tensor(scales).to(found[0].device)
        torch._foreach_mul_(found, [rows.view(-1, *[1] * (g.dim() - 1)) for g in found])
