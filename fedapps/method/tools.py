"""What the hooks of a strategy can use."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from fedapps.core import registry
from fedapps.core.ids import Ids
from fedapps.core.memory import reserve
from fedapps.core.schema import MethodSettings
from fedapps.core.settings import Settings
from fedapps.method.aggregation import weighted_mean
from fedapps.method.one_dict import OneDict
from fedapps.method.update import ClientUpdate, replace
from fedapps.models.layers import Arrays, Slice, as_sent, take
from fedapps.tasks import Task
from fedapps.training.batches import Samples
from fedapps.training.costs import TrainingStats
from fedapps.training.draw import Draw
from fedapps.training.objective import PLAIN, Objective
from fedapps.training.plan import Clip, Plan, Stage
from fedapps.training.workspace import Workspace

Devices = dict[int, Mapping[str, int]]  # by client with its own data: sample counts of its subsets
CHECKPOINT_COPIES = 2  # copies of the state in memory while engine/checkpoint.py writes it


class StrategyTools:
    """The server's side; `StrategyHooks` explains each of its attributes."""

    options: MethodSettings
    earlier = 0  # rounds of earlier runs of the federation, after which draws go on
    arrays = OneDict[np.ndarray]()
    state = OneDict[np.ndarray]()

    def __init__(
        self, workspace: Workspace, settings: Settings | None = None, devices: Devices | None = None
    ) -> None:
        self.workspace = workspace
        self.settings = settings or workspace.settings
        self.options = self.settings.method
        self.layout = workspace.layout
        self.arrays = {key: value.copy() for key, value in workspace.initial.items()}
        self.state = {}
        self._shown = WeakValueDictionary[str, np.ndarray]()
        self.devices: Devices = {} if devices is None else devices  # shared with `other`
        self.event: Callable[[int, int | str, str, str], None] = ignore_event
        self._reserve_memory()
        self.setup()

    def setup(self) -> None:
        """Do the method's own setup, when everything above is set."""

    def state_bytes(self) -> int:
        """Return how many bytes a method's state will have."""
        return 0

    def overall(self, round_: int) -> int:
        """Return the number of a round if those of earlier runs of the federation count, too."""
        return self.earlier + round_

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
        if self.settings.on_devices:  # no device is there yet: plans are only checked
            return 1
        return len(getattr(self.workspace.population.share(client), subset))

    def shown(self, kept: Arrays, names: Iterable[str]) -> Arrays:
        """Return entries of `arrays` or `state` as they travel: float32, and read-only.

        A float32 array that stays the same is the same object for all clients, by which a message
        that many get knows what to hold once.
        """
        return {name: self._view(name, np.asarray(kept[name], np.float32)) for name in names}

    def _view(self, name: str, array: np.ndarray) -> np.ndarray:
        view = self._shown.get(name)
        if view is None or not (view.base is array or _place(view) == _place(array)):
            self._shown[name] = view = as_sent({name: array})[name]
        return view

    def exchange(self, round_: int, shared: Slice, *stages: Stage) -> Plan:
        """Return the most common plan: download a slice, run the stages, upload the same slice.

        Raises `TypeError` for a list of stages, or if these come before the slice.
        """
        given: tuple[object, ...] = stages
        if other := [type(each).__name__ for each in given if not isinstance(each, Stage)]:
            what = "must be a Stage; pass each one as an argument of its own"
            raise TypeError(f"exchange: a {other[0]} {what}")
        if isinstance(shared, Stage):
            raise TypeError("exchange: a Stage in place of the slice, a tuple of layer names")
        return Plan(round=round_, download=shared, stages=stages, upload=shared)

    def both_ways(self, plan: Plan, prefix: str) -> Plan:
        """Return the plan; with it, the arrays in `state` under a prefix travel down and up."""
        found = self.state.items()
        shapes = {name: value.shape for name, value in found if name.startswith(prefix)}
        return replace(plan, receives=shapes, sends=shapes)

    def averaged(self, updates: Iterable[ClientUpdate]) -> Arrays:
        """Return means with weights n_i; those of what else clients sent replace it in `state`."""
        whole = (replace(u, arrays=u.arrays | u.extras) for u in updates)
        means, _ = weighted_mean(whole)
        self.state.update({name: means.pop(name) for name in [*means] if name in self.state})
        return means

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

    def scheduled(self, rate: float, round_: int) -> float:
        """Return a learning rate of the method's own, at the round's place in `lr-schedule`."""
        return rate * self.settings.round_lr(round_) / self.settings.lr

    def finetuning_stage(self) -> Stage:
        """Return the stage of fine-tuning: F epochs of `finetune-part`."""
        s = self.settings
        own = self.stage(1, self.layout.slice_of(s.finetune_part), s.finetune_epochs)
        return replace(own, lr=s.finetune_rate, prox_mu=0.0, clip=None)

    def alone(self, plan: Plan) -> Plan:
        """Return the plan of a newcomer that trains as in a round, but uploads nothing.

        A learning-rate schedule is over after the last round, so the plan has none.
        """
        scale = self.settings.lr / self.settings.round_lr(plan.round)
        stages = tuple(replace(s, lr=s.lr * scale) for s in plan.stages)
        kept: dict[str, Any] = {"upload": (), "also_keep": (), "sends": {}}
        return replace(plan, stages=stages, newcomer=True, as_in_round=True, **kept)

    def own_first(self, training: Plan, evaluation: Plan) -> Plan:
        """Return the plan of an evaluation in which a newcomer first trains layers of its own.

        They are those that stay on a client in training, unless the evaluation trains them. They
        are trained as in training, but the shared layers are frozen. If only statistics of
        BatchNorms stay, they are measured, at a learning rate of 0.
        """
        layout, stages = self.layout, list[Stage]()
        kept = {*layout.personal(training.upload), *layout.keys_of(training.also_keep)}
        kept -= {key for stage in evaluation.stages for key in layout.keys_of(stage.layers)}
        for stage in self.alone(training).stages:
            trained = layout.covering(stage.layers, kept & layout.parameters)
            measured = layout.covering(stage.layers, kept.difference(layout.keys_of(trained)))
            for layers, lr in ((measured, 0.0), (trained, stage.lr)):
                if layers:
                    stages.append(replace(stage, layers=layers, lr=lr))
        stages += evaluation.stages
        return replace(evaluation, stages=tuple(stages), newcomer=True)

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

    def train_here(
        self, round_: int, samples: Samples, stage: Stage, objective: Objective = PLAIN
    ) -> TrainingStats:
        """Train the server's model in this process, on tensors that are there; return the costs.

        Without an anchor, the run's proximal term does not pull: the server has received no model
        to stay near to. One of the stage's own, another `prox_mu`, does.
        """
        if objective.anchor is None and stage.prox_mu == self.settings.prox_mu:
            stage = replace(stage, prox_mu=0.0)
        self.workspace.reset(self.arrays)
        draw = Draw(self.settings.seed, "train", round_, 0)  # as for FedAvg with one client
        done = self.workspace.trainer.train(samples, (stage,), draw, objective)
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


def _place(array: np.ndarray) -> tuple[object, ...]:
    """Return where in memory an array is, and how it lies there."""
    return array.__array_interface__["data"][0], array.shape, array.strides
