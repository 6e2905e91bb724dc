"""A stage while it is executed: its steps on a model, and what they did and cost."""

from collections.abc import Iterable, Mapping
from contextlib import closing, nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from fedapps.core.errors import as_returned
from fedapps.models.layers import Slice
from fedapps.models.modes import freeze_all_but
from fedapps.training.batches import Samples, grouped
from fedapps.training.clipping import SampleGradients, Threshold, clip_batch, refusal
from fedapps.training.costs import Profile, TrainingStats
from fedapps.training.objective import Objective
from fedapps.training.optimizers import optimizer
from fedapps.training.plan import Stage


@dataclass
class StageRun:
    """One execution of a stage, with an optimizer of its own; only the stage's layers move.

    A step runs `layers`, those after the cached prefix. `anchor` is what the proximal term pulls
    towards. Clipping includes the model's parameters only, not those beside it. `done` belongs to
    the whole plan; the figures of the stage are added to it.
    """

    profile: Profile
    stage: Stage
    objective: Objective
    layers: Slice
    anchor: Mapping[str, Tensor]
    threshold: Threshold | None
    done: TrainingStats

    def __post_init__(self) -> None:
        stage, beside, layout = self.stage, self.objective.parameters, self.profile.layout
        if any(not parameter.requires_grad for parameter in beside):
            raise ValueError(
                "parameters of the objective: one has requires_grad=False, so that it would not be"
                " trained; call requires_grad_(True), or leave it out"
            )
        self.by_sample = self.threshold is not None and self.threshold.by_sample
        macs = self.profile.step_macs(stage.layers, self.layers[0], self.by_sample)
        self.macs = macs + self.objective.macs  # for each sample
        self.updates = layout.count(stage.layers) + sum(p.numel() for p in beside)  # by each step
        self.parameters = freeze_all_but(self.profile.model, layout, stage.layers)
        self.mover = optimizer([*self.parameters.values(), *beside], stage)

    def take_steps(self, batches: Iterable[Samples]) -> None:
        """Take a step for each group of batches.

        Raises ValueError if each sample is clipped and there are parameters beside the model, which
        would never get a gradient.
        """
        model, objective = self.profile.model, self.objective
        if self.by_sample and objective.parameters:
            raise refusal("the objective has parameters beside the model")
        loss = torch.zeros(())  # summed over the samples of all steps that were taken
        taken: list[int] = []  # batch sizes of these steps
        with closing(SampleGradients(model)) if self.by_sample else nullcontext() as samples:
            for group in grouped(batches, objective.batches, self.stage.max_steps):
                passes = _Passes(self, samples, loss)
                if self._step(passes, group):
                    loss = passes.loss
                    taken += passes.sizes
                else:
                    self.done.rejected += len(passes.sizes)
        self.done.loss += float(loss)
        self.done.samples += sum(taken)
        self.done.batches += len(taken)
        self.done.macs += self.macs * sum(taken)
        self.done.cost_paper += self.updates * len(taken)

    def _step(self, passes: "_Passes", group: list[Samples]) -> bool:
        """Take one step; return False if it was rejected, so that nothing has moved."""
        self.objective.gradients(passes, group)
        passes.check()
        if self.stage.prox_mu:
            add_proximal(self.parameters, self.anchor, self.stage.prox_mu)
        fine = passes.fine
        if fine and self.threshold and not self.by_sample:
            trained = self.parameters.values()
            fine = clip_batch([p.grad for p in trained if p.grad is not None], self.threshold)
        if not fine:
            self.mover.drop()
            return False
        self.mover.step()
        if self.objective.after_step:
            with torch.no_grad():
                self.objective.after_step(self.profile.model)
        return True


@dataclass
class _Passes:
    """The passes of one step: the `backward` that `Objective.gradients` calls for each of them.

    With `samples`, the gradient of each sample is clipped; the step is not `fine` if their norms
    are not finite. Loss and costs are counted here. The server checks a client's costs against what
    the stage declares.
    """

    run: StageRun
    samples: SampleGradients | None
    loss: Tensor  # summed over samples, beginning with those of earlier steps
    sizes: list[int] = field(default_factory=list)
    fine: bool = True

    def __call__(self, batch: Samples) -> None:
        (inputs, targets), objective = batch, self.run.objective
        outputs = objective.forward(self.run.profile.model, inputs, self.run.layers)
        assert objective.loss is not None  # the trainer has put in that of the task
        value = objective.loss(outputs, targets)
        fits = isinstance(value, Tensor) and value.numel() == 1 and value.requires_grad
        as_returned("loss", value, fits, "a tensor of one value, with its gradient")
        if self.samples and self.run.threshold:
            self.fine &= self.samples.clip(value, self.run.threshold)
        else:
            value.backward()
        self.loss = self.loss + value.detach() * len(targets)
        self.sizes.append(len(targets))

    def check(self) -> None:
        """Raise ValueError if the step computed no gradient, or more than its stage declares."""
        stage = self.run.stage
        if not self.sizes:
            raise ValueError(
                "a step did not call backward: without it, neither its loss nor its costs are"
                " counted"
            )
        if len(self.sizes) > stage.passes:
            raise ValueError(
                f"passes = {stage.passes}: a step computed {len(self.sizes)} gradients;"
                " declare as many in its Stage"
            )


def add_proximal(
    parameters: Mapping[str, nn.Parameter], anchor: Mapping[str, Tensor], mu: float
) -> None:
    """Add the gradient of the proximal term (mu/2)||w - anchor||^2 (FedProx, Eq. 2)."""
    moved = {key: p.grad for key, p in parameters.items() if p.grad is not None}
    if moved:  # without gradients, the step is rejected
        values = [parameters[key].detach() for key in moved]
        apart = torch._foreach_sub(values, [anchor[key] for key in moved])
        torch._foreach_add_([*moved.values()], apart, alpha=mu)
