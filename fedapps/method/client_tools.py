"""What the hooks of a client can use."""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedapps.core import registry
from fedapps.core.draws import generator
from fedapps.core.schema import MethodSettings
from fedapps.core.settings import Settings
from fedapps.method.attacks import changed_samples
from fedapps.method.figures import WITHOUT_HEAD
from fedapps.method.on_features import ClassFeatures
from fedapps.method.one_dict import OneDict
from fedapps.method.update import under
from fedapps.models.grouping import frozen_keys, is_copy
from fedapps.models.layers import Arrays, Layout, Slice, put, run, take
from fedapps.models.modes import in_eval_mode
from fedapps.tasks import Task
from fedapps.training.batches import Samples
from fedapps.training.clipping import Thresholds
from fedapps.training.costs import Costs, TrainingStats
from fedapps.training.draw import Draw
from fedapps.training.evaluation import Score, features, nearest_template, score
from fedapps.training.objective import Loss, Objective
from fedapps.training.plan import Plan
from fedapps.training.workspace import Workspace

State = dict[str, Tensor]
# Prefixes of a client's state that fedapps/method/local.py writes: what training leaves of the
# model, the model as the last local training has left it (`score-last`), and gradient norms.
MODEL, LAST, NORMS = RESERVED = "model/", "last/", "norms/"


def keep(state: State, prefix: str, arrays: Mapping[str, np.ndarray]) -> None:
    """Put copies of arrays under a prefix into a client's state."""
    for key, value in arrays.items():
        state[prefix + key] = torch.from_numpy(np.array(value))


class ClientTools:
    """A client's side in one round; `ClientHooks` explains each of its attributes."""

    options: MethodSettings
    earlier = 0  # rounds of earlier runs of the federation, after which noise from the seed goes on
    state = OneDict[Tensor]("keep arrays with self.remember, or use another name")
    parts = OneDict[nn.Module]("use another name")

    def __init__(
        self,
        workspace: Workspace,
        client: int,
        state: State,
        settings: Settings | None = None,
        parts: dict[str, nn.Module] | None = None,
    ) -> None:
        self.workspace = workspace
        self.client = client
        self.state = state
        self.settings = settings or workspace.settings
        self.options = self.settings.method
        self.received: Arrays = {}
        self.upload: Arrays = {}
        self.sends: Arrays = {}
        self.parts = {} if parts is None else parts
        self.setup()

    def setup(self) -> None:
        """Do the method's own setup, when everything above is set."""

    @property
    def model(self) -> nn.Module:
        """The model of this process, which its clients use one after the other."""
        return self.workspace.model

    @property
    def layout(self) -> Layout:
        """The layers and slices of the model."""
        return self.workspace.layout

    @property
    def trainable(self) -> list[nn.Parameter]:
        """The parameters of the model, in its order, without those that are frozen for good."""
        named, known = self.model.named_parameters(), self.layout.parameters
        return [parameter for key, parameter in named if key in known]

    @property
    def task(self) -> Task:
        """What is learned."""
        return self.workspace.task

    @property
    def train_data(self) -> Samples:
        """This client's training samples: inputs [n, ...], targets [n, ...]."""
        samples = self.workspace.samples(self.client, "train")
        attacks, classes = self.client in self.workspace.attackers, self.workspace.dataset.classes
        return changed_samples(self.settings, samples, classes) if attacks else samples

    @property
    def test_data(self) -> Samples:
        """The samples on which this client is scored (`evaluate-on`)."""
        return self.workspace.samples(self.client, self.settings.evaluate_on)

    def train(
        self,
        plan: Plan,
        phase: str,
        objective: Objective,
        thresholds: Thresholds | None = None,
        data: Samples | None = None,
    ) -> TrainingStats:
        """Train the model on the plan's stages; random numbers depend on the word `phase`.

        The samples are `data`: by default, all training samples of this client.
        """
        if not isinstance(objective, Objective):
            raise TypeError(
                f"the objective of {phase} is {objective!r}: must be an Objective, which the hook "
                "objective returns for each phase"
            )
        draw = Draw(self.settings.seed, phase, plan.round, self.client)
        cache_key = self.client if data is None else None  # features of `data` are not cached
        samples = self.train_data if data is None else data
        objective, samples = _by_weight(objective, samples, self.task.losses)
        return self.workspace.trainer.train(
            samples, plan.stages, draw, objective, thresholds, cache_key=cache_key
        )

    @abstractmethod
    def predict(self, inputs: Tensor) -> Tensor:
        """Return the outputs of the model for a batch."""

    def score(self, samples: Samples, predict: Callable[[Tensor], Tensor] | None = None) -> Score:
        """Score what `predict` returns for samples (None: the hook); a module in eval mode."""
        if isinstance(predict, nn.Module):
            predict = partial(in_eval_mode, predict)
        return score(predict or self.predict, samples, self.task)

    def run_body(self, model: nn.Module, x: Tensor, layers: Slice) -> Tensor:
        """Return the features of a batch in a step, of which `layers` remain to be run."""
        return run(model, x, tuple(name for name in layers if name not in self.layout.head))

    def with_features(self, loss: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Objective:
        """Return an objective whose loss also gets the features [b, d] of outputs and targets."""
        noted = torch.empty(0)

        def forward(model: nn.Module, x: Tensor, layers: Slice) -> Tensor:
            nonlocal noted
            noted = self.run_body(model, x, layers)
            return run(model, noted, self.layout.head)

        def on_batch(outputs: Tensor, targets: Tensor) -> Tensor:
            return loss(outputs, targets, noted.flatten(1))

        return Objective(on_batch, forward=forward)

    def class_features(self) -> ClassFeatures:
        """Return the features of all training samples, in eval mode, and their means by class."""
        inputs, labels = self.train_data
        z = features(self.model, inputs, self.layout.body).flatten(1)
        count = torch.bincount(labels, minlength=self.workspace.dataset.classes).to(z.dtype)
        total = z.new_zeros(len(count), z.shape[1]).index_add_(0, labels, z)
        mean = total / count.clamp(min=1)[:, None]
        return ClassFeatures(z, mean, count, self.forward_costs(len(z), self.layout.body))

    def forward_costs(self, samples: int, layers: Slice) -> Costs:
        """Return what it costs to run layers on so many samples, without gradients."""
        return Costs(macs=samples * self.workspace.trainer.profile.forward_macs(layers))

    def scheduled(self, rate: float, plan: Plan) -> float:
        """Return a learning rate of the method's own, at the plan's place in `lr-schedule`.

        A newcomer's plan is on none, whatever the rates of its stages are.
        """
        s, lr = self.settings, self.settings.round_lr(plan.round)
        if plan.newcomer:
            lr *= s.lr / lr  # as `StrategyTools.alone` computes it, to the last bit
        return rate * lr / s.lr

    def tensor(self, name: str) -> Tensor:
        """Return an array that was received, as a tensor on the device of the model."""
        return torch.tensor(self.received[name], device=self.workspace.torch_device)

    def kept(self, prefix: str = MODEL) -> Arrays:
        """Return the arrays that this client keeps under a prefix (`model/`: of its model)."""
        return {key: value.numpy() for key, value in under(self.state, prefix).items()}

    def remember(self, prefix: str, arrays: Mapping[str, np.ndarray]) -> None:
        """Keep copies of arrays under a prefix; they are there again in the client's next round.

        Raises ValueError for a prefix under which others, or a part, keep something.
        """
        self._check_own("remember", prefix)
        keep(self.state, prefix, arrays)

    def part(self, prefix: str, make: Callable[[], nn.Module]) -> nn.Module:
        """Return a module of this client's own beside the model, which no method sends.

        It has the values that its last training round has left, which are kept under `prefix`. At
        first it is what `make` returns, with random numbers from the seed and the client. Copies
        that `copied` makes of the model's layers begin with the initial values, and what the author
        of the model has frozen in them stays frozen. It is in train mode. Who asks for it again in
        the same round gets the same module, as it is then.

        Raises ValueError for a prefix under which others, or another part, keep something.
        """
        if prefix in self.parts:
            return self.parts[prefix]
        self._check_own("part", prefix)
        draws = generator(self.settings.seed, f"part-{prefix}", self.client)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(int(draws.integers(2**63)))
            module = make().to(self.workspace.torch_device)
        kept = self.kept(prefix)
        if others := sorted(kept.keys() - module.state_dict().keys()):
            told = f'"{prefix}{others[0]}" is kept, but is no entry of this part'
            raise ValueError(f'part("{prefix}"): {told}; use a prefix of your own')
        for copy in module.modules():
            if is_copy(copy, self.model):
                self.workspace.resident.renew(copy)
        put(module, kept)
        frozen = frozen_keys(module)
        for key, parameter in module.named_parameters():
            parameter.requires_grad_(key not in frozen)
        self.parts[prefix] = module
        return module.train()

    def _check_own(self, call: str, prefix: str) -> None:
        if prefix.startswith(RESERVED):
            raise ValueError(f'{call}("{prefix}"): is taken; use a prefix of your own')
        for part in self.parts:
            if prefix.startswith(part) or part.startswith(prefix):
                told = f'overlaps the part "{part}"; use a prefix of its own'
                raise ValueError(f'{call}("{prefix}"): {told}')

    def keep_parts(self) -> None:
        """Keep the values of all parts, as training has left them."""
        for prefix, module in self.parts.items():
            keep(self.state, prefix, take(module, module.state_dict()))

    def without_head(self) -> dict[str, float]:
        """Return the figure `WITHOUT_HEAD` of the model as it is.

        There is none without classes, or if the model cannot be cut.
        """
        if not self.workspace.has_templates:
            return {}
        (inputs, targets), classes = self.test_data, self.workspace.dataset.classes
        own = self.layout.body, self.train_data, inputs, classes
        outputs = nearest_template(self.model, *own)
        return {WITHOUT_HEAD.name: Score.of(self.task, outputs, targets).value}

    def other(self, name: str) -> Any:
        """Return the client of another method for the same round, to use its hooks.

        It shares model, data, state and parts with this client. What is received and sent is this
        client's alone.
        """
        make = registry.client_class(name)
        own = self.settings.of(name)
        return make(self.workspace, self.client, self.state, own, self.parts)


def _by_weight(objective: Objective, samples: Samples, losses: Loss) -> tuple[Objective, Samples]:
    """Return an objective without `weights`, and samples for it; `losses` are those of each sample.

    In place of targets, the samples have their places, by which the loss finds weight and target.
    """
    weights, (inputs, targets) = objective.weights, samples
    if weights is None:
        return objective, samples

    def loss(outputs: Tensor, places: Tensor) -> Tensor:
        return (weights[places] * losses(outputs, targets[places])).mean()

    places = torch.arange(len(targets), device=targets.device)
    return replace(objective, loss=loss, weights=None), (inputs, places)
