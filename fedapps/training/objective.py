"""What a step minimises and how: all that a method's author can change of local training."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedapps.models.layers import Slice, run
from fedapps.training.batches import Samples

Loss = Callable[[Tensor, Tensor], Tensor]
Backward = Callable[[Samples], None]  # adds the gradients of a batch's loss to `.grad`


def of_first(backward: Backward, batches: list[Samples]) -> None:
    """Set the gradients of plain SGD: those of the step's one batch."""
    backward(batches[0])


@dataclass(frozen=True)
class Objective:
    """What a step minimises, where a method differs from plain SGD on the batch loss.

    A step, in order:

    1. It takes `batches` consecutive batches and calls `gradients(backward, batches)`, which sets
       `.grad`. Each `backward(batch)` adds the gradients of `loss(forward(model, x, layers),
       labels)`: logits [b, classes] and labels [b] to a scalar; `layers` are those after a cached
       frozen prefix. Declare how many times a step calls it as `Stage.passes` (1), in the plan.
    2. The proximal term pulls towards `anchor`, by name (None: the model as the plan began), and
       gradients are clipped, if the stage says so. Both leave `parameters` alone. Clipped per
       sample, a step is one `backward` of a loss that is a mean over samples, of one pass through
       the layers and of nothing else: most of what differs raises ValueError (`SampleGradients`).
    3. The stage's optimizer moves the stage's layers, and `parameters` beside the model. Layers may
       be none: then only `parameters` are trained. These cost `macs` a sample on top.
    4. `after_step(model)` runs without gradients, unless the step was rejected: it may change what
       was trained (a clamp, a projection) or note it (a running average).

    `start` names the layer where `parameters` come in if that is before the first trained layer:
    what is before it runs once and is cached. "": the first trained layer, the model's first if
    there is none.

    An offset to the logits that is trained on a frozen model, and is never negative:

        offset = nn.Parameter(torch.zeros(10))
        Objective(
            forward=lambda model, x, layers: run(model, x, layers) + offset,
            parameters=(offset,),
            after_step=lambda model: offset.clamp_(min=0),
        )
    """

    loss: Loss = cross_entropy
    forward: Callable[[nn.Sequential, Tensor, Slice], Tensor] = run
    gradients: Callable[[Backward, list[Samples]], None] = of_first
    batches: int = 1
    parameters: tuple[nn.Parameter, ...] = ()
    macs: int = 0
    start: str = ""
    anchor: Mapping[str, Tensor] | None = None
    after_step: Callable[[nn.Sequential], object] | None = None


PLAIN = Objective()
