"""What the hooks of a strategy and of a client can use."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor, nn

from fedapps.core import registry
from fedapps.core.config import DEVICE
from fedapps.core.ids import Ids
from fedapps.core.memory import reserve
from fedapps.core.schema import MethodSettings
from fedapps.core.settings import Settings
from fedapps.method.attacks import changed_samples
from fedapps.method.figures import WITHOUT_HEAD
from fedapps.models.layers import Arrays, Layout, Slice, take
from fedapps.tasks import Task
from fedapps.training.batches import Samples
from fedapps.training.clipping import Thresholds
from fedapps.training.costs import TrainingStats
from fedapps.training.draw import Draw
from fedapps.training.evaluation import Score, nearest_template, score
from fedapps.training.objective import Objective
from fedapps.training.plan import Clip, Plan, Stage
from fedapps.training.workspace import Workspace

State = dict[str, Tensor]
Devices = dict[int, Mapping[str, int]]  # by client with its own data: sample counts of its subsets
CHECKPOINT_COPIES = 2  # copies of the state in memory while engine/checkpoint.py writes it


class OneDict:
    """An attribute whose dict cannot be replaced, because other objects hold the same one.

    Its entries can change. `self.state |= ...` works, too, because it keeps the dict.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, holder: object, owner: type) -> Arrays:
        found: Arrays = vars(holder)[self.name]
        return found

    def __set__(self, holder: object, value: Arrays) -> None:
        if vars(holder).setdefault(self.name, value) is not value:
            name = f"self.{self.name}"
            raise AttributeError(f"{name} cannot be replaced; use {name}.update(...)")


class StrategyTools:
    """The server's side; `StrategyHooks` explains each of its attributes."""

    options: MethodSettings
    arrays = OneDict()
    state = OneDict()

    def __init__(
        self, workspace: Workspace, settings: Settings | None = None, devices: Devices | None = None
    ) -> None:
        self.workspace = workspace
        self.settings = settings or workspace.settings
        self.options = self.settings.method
        self.layout = workspace.layout
        self.arrays = {key: value.copy() for key, value in workspace.initial.items()}
        self.state = {}
        self.devices: Devices = {} if devices is None else devices  # shared with `other`
        self.event: Callable[[int, int | str, str, str], None] = ignore_event
        self._reserve_memory()
        self.setup()

    def setup(self) -> None:
        """Do the method's own setup, when everything above is set."""

    def state_bytes(self) -> int:
        """Return how many bytes a method's state will have."""
        return 0

    def _reserve_memory(self) -> None:
        """Report a large state before it is created; raises `RunError` for one that cannot fit."""
        s = self.settings
        copies = 1 + (CHECKPOINT_COPIES if s.checkpoint_every else 0)
        what = f"{s.strategy}: what the server keeps of {s.num_clients} clients"
        less = "use fewer clients (num-clients), a smaller model, or checkpoint-every=0"
        reserve(what, copies * self.state_bytes(), less)

    @property
    def task(self) -> Task:
        """What is learned."""
        return self.workspace.task

    @property
    def clients(self) -> Sequence[int]:
        """The clients that train and are there, ascending: all, or devices that have not left.

        For all clients it has no object for each of them, so that a million cost nothing.
        """
        population = self.workspace.population
        if not self.devices:
            return population.training
        return Ids(sorted(self.devices.keys() - population.held_out))

    def count(self, client: int, subset: str) -> int:
        """Return how many samples a client has in a subset: `train`, `test` or `validation`."""
        if self.devices:
            return self.devices[client][subset]
        if self.settings.dataset == DEVICE:  # no device is there yet: plans are only checked
            return 1
        return len(getattr(self.workspace.population.share(client), subset))

    def exchange(self, round_: int, shared: Slice, *stages: Stage) -> Plan:
        """Return the most common plan: download a slice, run the stages, upload the same slice."""
        return Plan(round=round_, download=shared, stages=stages, upload=shared)

    def stage(self, round_: int, layers: Slice, epochs: int | None = None) -> Stage:
        """Return a stage with the settings of the run: local epochs, learning rate and so on."""
        s = self.settings
        return Stage(
            layers=layers,
            epochs=s.local_epochs if epochs is None else epochs,
            lr=s.round_lr(round_),
            optimizer=s.optimizer,
            momentum=s.momentum,
            weight_decay=s.weight_decay,
            prox_mu=s.prox_mu,
            clip=self.clip(),
        )

    def alone(self, plan: Plan) -> Plan:
        """Return the plan of a newcomer that trains as in a round, but uploads nothing.

        A learning-rate schedule is over after the last round, so the plan has none.
        """
        scale = self.settings.lr / self.settings.round_lr(plan.round)
        stages = tuple(msgspec.structs.replace(s, lr=s.lr * scale) for s in plan.stages)
        kept: dict[str, Any] = {"upload": (), "also_keep": (), "sends": {}}
        return msgspec.structs.replace(plan, stages=stages, newcomer=True, **kept)

    def own_first(self, training: Plan, evaluation: Plan) -> Plan:
        """Return the plan of an evaluation in which a newcomer first trains layers of its own.

        They are those that stay on a client in training, unless the evaluation trains them. They
        are trained as in training, but the shared layers are frozen.
        """
        keys = self.layout.keys_of
        kept = {*self.layout.personal(training.upload), *keys(training.also_keep)}
        kept -= {key for stage in evaluation.stages for key in keys(stage.layers)}
        first = (
            msgspec.structs.replace(stage, layers=self.layout.covering(stage.layers, kept))
            for stage in self.alone(training).stages
        )
        stages = (*(stage for stage in first if stage.layers), *evaluation.stages)
        return msgspec.structs.replace(evaluation, stages=stages, newcomer=True)

    def clip(self) -> Clip | None:
        """Return the clipping that the keys of the run ask for; None if they ask for none."""
        s = self.settings
        if s.clip_percentile == 100 and s.max_norm == 0:
            return None
        return Clip(
            percentile=s.clip_percentile,
            max_norm=s.max_norm or None,
            mode=s.clip_mode,
            history=s.clip_history,
        )

    def train_here(self, round_: int, samples: Samples, stage: Stage) -> TrainingStats:
        """Train the server's model in this process; return the costs."""
        self.workspace.reset(self.arrays)
        draw = Draw(self.settings.seed, "train", round_, 0)  # as for FedAvg with one client
        done = self.workspace.trainer.train(samples, (stage,), draw)
        self.arrays.update(take(self.workspace.model, self.layout.shared(stage.layers)))
        return done

    def other(self, name: str) -> Any:
        """Return the strategy of another method for the same run, for its plans and figures.

        It knows the same clients, but has arrays and a state of its own. Do not use what depends on
        these here, such as `aggregate`.
        """
        return registry.strategy_class(name)(self.workspace, self.settings.of(name), self.devices)


def ignore_event(round_: int, client: int | str, kind: str, detail: str) -> None:
    """Do nothing: outside of a run, there is no events.csv to write to."""


class ClientTools:
    """A client's side in one round; `ClientHooks` explains each of its attributes."""

    options: MethodSettings

    def __init__(
        self, workspace: Workspace, client: int, state: State, settings: Settings | None = None
    ) -> None:
        self.workspace = workspace
        self.client = client
        self.state = state
        self.settings = settings or workspace.settings
        self.options = self.settings.method
        self.received: Arrays = {}
        self.upload: Arrays = {}
        self.sends: Arrays = {}
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
        return self.workspace.trainer.train(
            samples, plan.stages, draw, objective, thresholds, cache_key=cache_key
        )

    @abstractmethod
    def predict(self, inputs: Tensor) -> Tensor:
        """Return the outputs of the model for a batch."""

    def score(self, samples: Samples) -> Score:
        """Score what `predict` returns for samples; put the model into eval mode before."""
        return score(self.predict, samples, self.task)

    def kept(self, prefix: str = "model/") -> Arrays:
        """Return the arrays that this client keeps under a prefix (`model/`: of its model)."""
        names = (name for name in self.state if name.startswith(prefix))
        return {name.removeprefix(prefix): self.state[name].numpy() for name in names}

    def remember(self, prefix: str, arrays: Mapping[str, np.ndarray]) -> None:
        """Keep copies of arrays under a prefix; they are there again in the client's next round."""
        for key, value in arrays.items():
            self.state[prefix + key] = torch.from_numpy(np.array(value))

    def without_head(self) -> dict[str, float]:
        """Return the figure `WITHOUT_HEAD` of the model as it is.

        There is none without classes, or if the model cannot be cut.
        """
        if not (self.layout.can_be_cut and self.task.has_classes):
            return {}
        data = self.train_data, self.test_data
        return {WITHOUT_HEAD.name: nearest_template(self.model, self.layout.body, *data)}

    def other(self, name: str) -> Any:
        """Return the client of another method for the same round, to use its hooks.

        It shares model, data and state with this client. What is received and sent is this client's
        alone.
        """
        make = registry.client_class(name)
        return make(self.workspace, self.client, self.state, self.settings.of(name))
