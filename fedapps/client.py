"""The client that executes plans; a method's client overrides what its paper does differently."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import torch
from flwr.client import NumPyClient
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedapps.clipping import Threshold
from fedapps.config import Settings
from fedapps.evaluation import Score, score
from fedapps.layers import Layout, Slice, put, run
from fedapps.plan import Plan, Stage
from fedapps.training import Draw, Samples, Trained
from fedapps.workspace import Workspace

State = dict[str, Tensor]


class BaseClient(NumPyClient):
    """One logical client in one round.

    `fit` and `evaluate` follow Flower's `NumPyClient`: a list of arrays in the order of the
    plan's download slice, and a config with the plan as JSON. `state` is what the client kept
    from earlier rounds, by name; `fit` replaces its entries, and the caller stores it.
    """

    def __init__(
        self, workspace: Workspace, client: int, state: State, settings: Settings | None = None
    ) -> None:
        self.workspace = workspace
        self.client = client
        self.state = state
        self.settings = settings or workspace.settings
        self.options: Any = self.settings.method

    # What a method may override -----------------------------------------------------------

    def personal(self) -> Slice:
        """Return the layers that never leave this client; a plan that uploads one is refused."""
        return ()

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of a batch (logits [b, classes], labels [b])."""
        return cross_entropy(logits, labels)

    def predict(self, images: Tensor) -> Tensor:
        """Return logits [b, classes] in eval mode."""
        return run(self.model, images, self.layout.names)

    def extra_scores(self) -> dict[str, float]:
        """Return further figures of the initial model, as {"accuracy_without_head": 0.5}."""
        return {}

    # Flower's interface -------------------------------------------------------------------

    def fit(
        self, parameters: list[np.ndarray], config: Mapping[str, Any]
    ) -> tuple[list[np.ndarray], int, dict[str, Any]]:
        """Train as the plan says; return the upload slice, the sample count and metrics."""
        plan = self._receive(parameters, config)
        leak = set(plan.upload).intersection(self.personal())
        if leak:
            raise PermissionError(f"the plan uploads {', '.join(sorted(leak))}: personal layers")
        thresholds = {
            stage.layers: Threshold(stage.clip, self._norms(stage).tolist())
            for stage in plan.stages
            if stage.clip
        }
        done = self._train(plan, "train", thresholds)
        self._keep(plan)
        for layers, threshold in thresholds.items():
            norms = torch.tensor(threshold.arrived, dtype=torch.float64)
            self.state[f"norms/{'+'.join(layers)}"] = norms
        uploaded = self._arrays(self.layout.shared(plan.upload))
        metrics = dataclasses.asdict(done) | {"train_loss": done.mean_loss}
        return uploaded, len(self.train_data[1]), metrics

    def evaluate(
        self, parameters: list[np.ndarray], config: Mapping[str, Any]
    ) -> tuple[float, int, dict[str, Any]]:
        """Score the received model, personalize it as the plan's stages say, score it again.

        Nothing of it is kept. Metrics: accuracies, loss, class-wise counts (notation.md).
        """
        plan = self._receive(parameters, config)
        self.model.eval()
        initial = self._score()
        extra = self.extra_scores()
        done = self._train(plan, "finetune", {})
        personalized = self._score() if plan.stages else initial
        metrics = {
            "num_train": len(self.train_data[1]),
            "loss": personalized.loss,
            "accuracy_initial": initial.accuracy,
            "accuracy_personalized": personalized.accuracy,
            "class_total": initial.total.tolist(),
            "class_initial": initial.correct.tolist(),
            "class_personalized": personalized.correct.tolist(),
        }
        finetuned = {f"finetune_{name}": n for name, n in dataclasses.asdict(done).items()}
        return personalized.loss, int(initial.total.sum()), metrics | finetuned | extra

    # Shorthands ---------------------------------------------------------------------------

    @property
    def model(self) -> nn.Sequential:
        """The resident model of this process."""
        return self.workspace.model

    @property
    def layout(self) -> Layout:
        """Its layers and slices."""
        return self.workspace.layout

    @property
    def train_data(self) -> Samples:
        """This client's training samples."""
        return self.workspace.samples(self.client, "train")

    @property
    def test_data(self) -> Samples:
        """The samples that this client is scored on (`evaluate-on`)."""
        return self.workspace.samples(self.client, self.settings.evaluate_on)

    def _receive(self, parameters: list[np.ndarray], config: Mapping[str, Any]) -> Plan:
        """Make the model: what was downloaded, else what the client kept, else the initial one."""
        plan = msgspec.json.decode(config["plan"], type=Plan)
        downloaded = dict(zip(self.layout.shared(plan.download), parameters, strict=True))
        kept = {
            k.removeprefix("model/"): v.numpy()
            for k, v in self.state.items()
            if k.startswith("model/")
        }
        put(self.model, self.workspace.initial | kept | downloaded)
        return plan

    def _keep(self, plan: Plan) -> None:
        """Put what was trained and not uploaded into the client's state."""
        trained = {key for stage in plan.stages for key in self.layout.keys_of(stage.layers)}
        state = self.model.state_dict()
        for key in self.layout.personal(plan.upload):
            if key in trained:
                self.state[f"model/{key}"] = state[key].detach().clone()

    def _arrays(self, keys: tuple[str, ...]) -> list[np.ndarray]:
        state = self.model.state_dict()
        return [state[key].detach().cpu().numpy().copy() for key in keys]

    def _norms(self, stage: Stage) -> Tensor:
        """Gradient norms of the client's earlier steps on the same layers."""
        return self.state.get(f"norms/{'+'.join(stage.layers)}", torch.empty(0))

    def _train(self, plan: Plan, phase: str, thresholds: Mapping[Slice, Threshold]) -> Trained:
        draw = Draw(self.settings.seed, phase, plan.round, self.client)
        return self.workspace.trainer.train(
            self.train_data, plan.stages, draw, self.loss, thresholds, keep=self.client
        )

    def _score(self) -> Score:
        return score(self.predict, self.test_data, self.workspace.dataset.classes)
