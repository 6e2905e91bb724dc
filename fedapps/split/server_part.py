"""The layers that the server of split learning trains in a round."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from fedapps.models.layers import Arrays, Slice, run, take
from fedapps.split.rules import BatchGradient, BatchGradients, Smashed, implausible
from fedapps.training.costs import Costs
from fedapps.training.optimizers import optimizer
from fedapps.training.plan import Stage
from fedapps.training.workspace import Workspace


@dataclass
class ServerPart:
    """Consecutive layers that the server trains in one round, with their own optimizer.

    `samples[layer]` counts the samples that the layer was trained on. `cost_paper` sums up
    parameters times batches.
    """

    space: Workspace
    layers: Slice
    stage: Stage
    samples: dict[str, int] = field(init=False)
    cost_paper: int = 0

    def __post_init__(self) -> None:
        parameters = self.space.trainer.freeze_all_but(self.layers)
        self.samples = dict.fromkeys(self.layers, 0)
        self._passed: Counter[str] = Counter()  # samples per layer since the last `settle`
        self._buffers: list[Tensor] = []  # the model's buffers at that time
        self._optimizer = optimizer([*parameters.values()], self.stage)

    def run(self, x: Tensor, layers: Iterable[str]) -> Tensor:
        """Run some of the layers on their input [b, ...]."""
        if not self._passed:
            self._buffers = [buffer.clone() for buffer in self.space.model.buffers()]
        x = x.clone() if x.is_leaf else x  # a leaf cannot be changed in place, as by some ReLUs
        for name in layers:
            x = run(self.space.model, x, (name,))
            self._passed[name] += len(x)
        return x

    def settle(self, logits: Tensor, wave: Sequence[Smashed]) -> BatchGradients:
        """Count a wave's samples; return rejections of the batches that are `implausible`.

        Usually there are none. If there are any, nothing of the wave is counted, and the BatchNorm
        statistics are again those from before it.
        """
        passed, self._passed = self._passed, Counter()
        if rejected := implausible(logits, wave):
            for buffer, before in zip(self.space.model.buffers(), self._buffers, strict=True):
                buffer.copy_(before)
        else:
            for name, count in passed.items():
                self.samples[name] += count
        return rejected

    def backward(self, smashed: Smashed) -> BatchGradient:
        """Add the gradients of the loss of a client's batch (mean over samples), if plausible."""
        logits = self.run(smashed.data, self.layers)
        if rejected := self.settle(logits, [smashed]):
            return rejected[smashed.client]
        loss = self.space.task.loss(logits, smashed.labels)
        loss.backward()
        return smashed.gradient(loss)

    def scale(self, factor: float) -> None:
        """Multiply the gradients by a factor."""
        for parameter in self.space.model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(factor)

    def step(self, batches: int = 1) -> None:
        """Take one optimizer step with the gradients of `batches` batches, then drop them."""
        moved = [p.numel() for p in self.space.model.parameters() if p.grad is not None]
        self.cost_paper += batches * sum(moved)
        self._optimizer.step()

    def is_finite(self) -> bool:
        """Tell whether all values of the layers are finite; they are not if training diverged."""
        return all(bool(value.isfinite().all()) for value in self.space.model.state_dict().values())

    def arrays(self, layers: Iterable[str] | None = None) -> Arrays:
        """Return a copy of the values of some of the layers; of all if `layers` is None."""
        names = self.layers if layers is None else tuple(layers)
        return take(self.space.model, self.space.layout.shared(names))

    def costs(self) -> Costs:
        """Return the costs so far: multiply-accumulates, and the papers' cost."""
        per_sample = self.space.trainer.profile.layer_macs
        macs = sum(count * per_sample(name) for name, count in self.samples.items())
        return Costs(macs=macs, cost_paper=self.cost_paper)
