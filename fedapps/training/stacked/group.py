"""A group: clients of the same model that are trained and scored together."""

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from fedapps.core import log
from fedapps.core.errors import named
from fedapps.data.spec import FLOAT, WHOLE, Spec
from fedapps.models.layers import Slice, run
from fedapps.models.norms import uses_batch_statistics
from fedapps.models.training_pass import draws
from fedapps.training.batches import gather
from fedapps.training.objective import Objective
from fedapps.training.plan import Stage
from fedapps.training.stacked.model import Entries, StackedModel, UnstackableError, stack
from fedapps.training.stacked.run import GroupRun, Lesson
from fedapps.training.trainer import Trainer

PASS = 512  # samples of all clients in a forward pass without gradients
AUTO = 20  # clients in a group on a CPU; on a GPU at least as many
MOST_MACS = 1_200_000  # of a sample in a step, up to which groups were faster on a CPU
GPU_AUTO = 50  # on a GPU; larger groups were hardly faster
GPU_WEIGHTS = 100_000_000  # of a group on a GPU; with gradients and momentum these are 1.2 GB
CLOSE = 1e-6  # relative; outputs in float64 agree to 1e-9


class Group:
    """Does for several clients what `trainer` does for one, up to rounding.

    At most `size` clients work together (0: none). The trainer's model is left in any state; what
    can be done with it follows from its `initial` arrays.
    """

    def __init__(
        self, trainer: Trainer, wanted: int | str, initial: Mapping[str, np.ndarray]
    ) -> None:
        self.trainer, self.initial = trainer, initial
        self.size = wanted if isinstance(wanted, int) else chosen(trainer)
        self.told: set[str] = set()

    def tell(self, what: str) -> None:
        """Print a line about what is done together, if it has not been printed yet."""
        if what not in self.told:
            self.told.add(what)
            log.info("group = %d: %s", self.size, what)

    @cached_property
    def problem(self) -> str:
        """Why the model cannot be run for several clients at once; "" if it can."""
        try:
            _check(self.trainer, self.initial)
        except UnstackableError as error:
            return f"the model: {error}"
        except Exception as error:  # whatever a model of one's own does with its samples
            return f"the model: {named(error)}"
        return ""

    @cached_property
    def model(self) -> StackedModel:
        """The model for several clients."""
        return StackedModel(self.trainer.model)

    def cannot_train(self, stages: Sequence[Stage], objective: Objective) -> str:
        """Say why clients with these stages and objective cannot train together; "": they can."""
        plain = Objective(objective.loss, anchor=objective.anchor)
        for name in (field.name for field in fields(plain)):
            if getattr(objective, name) != getattr(plain, name):
                return f"the objective has {name} of its own"
        if any(stage.clip and stage.clip.mode == "sample" for stage in stages):
            return 'clip-mode = "sample"'
        return self.problem

    def cannot_score(self) -> str:
        """Say why clients cannot be scored together; "" if they can."""
        if uses_batch_statistics(self.trainer.model):
            return "scores depend on how samples are batched"
        return self.problem

    def train(self, stages: Sequence[Stage], lessons: Sequence[Lesson]) -> None:
        """Execute the same stages for all lessons; each gets its new entries, and what was done.

        Raises what `GroupRun` or a loss raises; then nothing of the lessons has changed.
        """
        done = GroupRun(self.trainer, self.model, lessons).run(stages)
        for place, lesson in enumerate(lessons):
            own = done[place]
            lesson.entries, lesson.done = own.entries, own.done
            for key, threshold in own.thresholds.items():
                vars(lesson.thresholds[key]).update(vars(threshold))

    @torch.no_grad()
    def outputs(self, entries: Sequence[Entries], inputs: Sequence[Tensor]) -> list[Tensor]:
        """Return each client's outputs [n, ...] for its inputs [n, ...], in eval mode."""
        order = sorted(range(len(inputs)), key=lambda place: -len(inputs[place]))
        sizes = [len(inputs[place]) for place in order]
        joined = torch.cat([inputs[place] for place in order])
        stacked = {key: stack([entries[place][key] for place in order]) for key in entries[0]}
        last = torch.tensor(sizes).cumsum(0)[:, None] - 1
        first = last - torch.tensor(sizes)[:, None] + 1
        found: list[list[Tensor]] = [[] for _ in order]
        names, begin = self.trainer.layout.names, 0
        self.model.module.eval()
        while begin < sizes[0]:
            rows = sum(size > begin for size in sizes)
            width = min(math.ceil(PASS / rows), sizes[0] - begin)
            self.model.load({key: value[:rows] for key, value in stacked.items()})
            places = torch.minimum(first[:rows] + torch.arange(begin, begin + width), last[:rows])
            x = gather(joined, places.flatten().to(joined.device))
            values = run(self.model.module, x, names)
            for row, own in enumerate(values.unflatten(0, (rows, -1))):
                found[row].append(own[: sizes[row] - begin])
            begin += width
        return [torch.cat(found[order.index(place)]) for place in range(len(order))]


def chosen(trainer: Trainer) -> int:
    """Return the size of groups for `group = "auto"`, by what was measured (docs/engines.md)."""
    names = trainer.layout.names
    if next(trainer.model.parameters()).is_cuda:
        weights = trainer.layout.count(names)
        size, why = min(GPU_AUTO, GPU_WEIGHTS // weights), f"{weights / 1e6:.1f} million weights"
    else:
        macs = trainer.profile.step_macs(names, names[0])
        size, why = AUTO if macs <= MOST_MACS else 0, f"{macs / 1e6:.1f} million MACs"
    if size >= AUTO:
        return size
    log.info('group = "auto": 0, because of %s', why)
    return 0


def _check(trainer: Trainer, initial: Mapping[str, np.ndarray]) -> None:
    """Raise `UnstackableError` if the stacked model computes something else than the model.

    Two clients with different weights and two samples each are compared in float64, in which
    rounding is no excuse. This finds a forward that mixes the samples of its batch, and gradients
    that hooks change. The weights are near the initial ones, and none is 0: behind a head of zeros,
    nothing would be seen.
    """
    example = trainer.profile.example()
    whole = not example.is_floating_point()
    if draws(trainer.model, Spec(tuple(example.shape[1:]), WHOLE if whole else FLOAT, 2)):
        raise UnstackableError("forward draws random numbers when it trains, as dropout does")
    stacked = StackedModel(trainer.model)  # a copy of it would have lost its hooks
    stacked.module.double()
    model = copy.deepcopy(trainer.model).double().requires_grad_()
    draw = torch.Generator().manual_seed(0)
    state = {k: v for k, v in model.state_dict().items() if v.is_floating_point()}
    state |= {k: torch.from_numpy(np.array(v)).to(state[k]) for k, v in initial.items()}
    parameters = {name for name, _ in model.named_parameters()}

    def drawn(like: Tensor) -> Tensor:
        return torch.rand(like.shape, generator=draw, dtype=torch.float64).to(like.device)

    def near(key: str, value: Tensor) -> Tensor:
        """Buffers only grow, because variances must not be negative."""
        return value + 0.2 * (drawn(value) - 0.5 * (key in parameters))

    entries, inputs = list[dict[str, Tensor]](), list[Tensor]()
    for _ in range(2):
        entries.append({key: near(key, value) for key, value in state.items()})
        inputs.append((2 * drawn(example)).to(example.dtype) if whole else drawn(example))
    names = trainer.layout.names
    for training in (True, False):
        model.train(training), stacked.module.train(training)
        alone = []
        for own, x in zip(entries, inputs, strict=True):
            model.load_state_dict(own, strict=False)
            alone.append(_passed(model, x, names))
        stacked.load({key: stack([own[key] for own in entries]) for key in state})
        together = _passed(stacked.module, torch.cat(inputs), names, len(entries))
        for what, found in together.items():
            wanted = torch.cat([own[what] for own in alone])
            least = CLOSE * float(wanted.abs().max())
            if found.shape != wanted.shape or not torch.allclose(found, wanted, CLOSE, least):
                raise UnstackableError(f"its {what} for a sample depend on other samples")


def _passed(model: nn.Module, x: Tensor, names: Slice, clients: int = 1) -> dict[str, Tensor]:
    """Return the outputs of a batch and, in training, gradients [k, n] of the clients' weights."""
    with torch.set_grad_enabled(model.training):
        outputs = run(model, x, names)
        if not model.training:
            return {"outputs": outputs}
        loss = outputs.sin().sum()  # its gradient is another one for each output
        found = torch.autograd.grad(loss, [*model.parameters()], materialize_grads=True)
    rows = torch.cat([value.reshape(clients, -1) for value in found], 1)
    return {"outputs": outputs.detach(), "gradients": rows}
