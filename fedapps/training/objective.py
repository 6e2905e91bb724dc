"""What a step minimizes and how: all that a method's author can change about local training."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from fedapps.models.layers import Slice, run
from fedapps.training.batches import Samples

Loss = Callable[[Tensor, Tensor], Tensor]
Backward = Callable[[Samples], None]  # adds the gradients of a batch's loss to `.grad`


def of_first(backward: Backward, batches: list[Samples]) -> None:
    """Set the gradients of plain SGD: those of the step's only batch."""
    backward(batches[0])


@dataclass(frozen=True)
class Objective:
    """What a step minimizes, for methods that differ from plain SGD on the batch loss.

    A step does this, in order:

    1. It takes `batches` consecutive batches and calls `gradients(backward, batches)`, which sets
       `.grad`. Each `backward(batch)` adds the gradients of `loss(forward(model, x, layers),
       targets)`. `loss` maps outputs [b, ...] and targets [b, ...] to a scalar (None: the loss of
       the run's task); `layers` are the layers after a cached frozen prefix. If a step calls
       `backward` more than once, the stage in the plan must say how often at most
       (`Stage.passes`).
    2. If the stage says so, the proximal term pulls towards `anchor` (tensors by name; None: the
       model as it was when the plan began), and gradients are clipped. Both leave `parameters`
       alone. With per-sample clipping, a step must call `backward` once, with a loss that is a mean
       over samples and depends on the weights by one pass through the layers only. Most steps that
       differ raise ValueError (`SampleGradients`).
    3. The stage's optimizer moves the stage's layers, and `parameters` beside the model. A stage
       without layers trains `parameters` alone. They cost `macs` more for each sample.
    4. `after_step(model)` runs without gradients, unless the step was rejected. It may change what
       was trained (a clamp, a projection) or take note of it (a running average).

    With `weights` [n], each training sample's loss, that of the task, is multiplied by its weight.

    `start` names the layer at which `parameters` come in, if that is before the first trained
    layer: the layers before it run once and are cached. "" means the first trained layer, or the
    model's first layer if no layer is trained.

    This example trains an offset to the logits of a frozen model. The offset is never negative:

        offset = nn.Parameter(torch.zeros(10))
        Objective(
            forward=lambda model, x, layers: run(model, x, layers) + offset,
            parameters=(offset,),
            after_step=lambda model: offset.clamp_(min=0),
        )
    """

    loss: Loss | None = None
    forward: Callable[[nn.Module, Tensor, Slice], Tensor] = run
    gradients: Callable[[Backward, list[Samples]], None] = of_first
    batches: int = 1
    parameters: tuple[nn.Parameter, ...] = ()
    macs: int = 0
    start: str = ""
    anchor: Mapping[str, Tensor] | None = None
    after_step: Callable[[nn.Module], object] | None = None
    weights: Tensor | None = None


PLAIN = Objective()
