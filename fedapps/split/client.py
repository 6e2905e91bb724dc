"""The client of split learning: it trains its layers with gradients from the channel."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedapps.core.errors import cause_of
from fedapps.method.client_tools import LAST
from fedapps.method.flower import BaseClient
from fedapps.method.update import ClientUpdate, replace
from fedapps.models.layers import Arrays, put, take
from fedapps.split.connection import ChannelError, Connection, connection
from fedapps.split.frames import Frame
from fedapps.training.batches import Samples, chunks
from fedapps.training.channel import Channel
from fedapps.training.clipping import Thresholds
from fedapps.training.costs import TrainingStats
from fedapps.training.objective import Objective
from fedapps.training.plan import Plan


class Link:
    """One client's end of the channel in one round."""

    def __init__(self, client: int, channel: Channel, connected: Connection) -> None:
        self.client, self.channel, self.connection = client, channel, connected
        self.steps: Iterator[tuple[int, int]] = iter(())
        connected.join(client, channel.token)

    def begin(self) -> dict[str, np.ndarray]:
        """Wait until the server says that this client may begin; return the arrays it sends."""
        _, tensors = self.connection.receive(self.client, "begin", self.channel.wait)
        return {key: value.numpy() for key, value in tensors.items()}

    def exchange(self, data: Tensor, labels: Tensor) -> tuple[Tensor, float]:
        """Send a batch's smashed data and labels; return the gradient and the loss."""
        if 0 < self.channel.limit < (nbytes := data.nbytes + labels.nbytes):
            raise ChannelError(
                f"the features of {len(labels)} samples are {nbytes / 2**30:.1f} GiB, more than can"
                " be sent at once; use a smaller batch-size, or another cut"
            )
        frame = Frame("data", self.client, step=next(self.steps))
        self.connection.send(frame, {"data": data, "labels": labels})
        received, tensors = self.connection.receive(self.client, "gradient", self.channel.wait)
        gradient = tensors.get("gradient")
        if gradient is None or gradient.shape != data.shape or gradient.dtype != data.dtype:
            raise ChannelError("the server's gradient does not fit the data that was sent")
        return gradient.to(data.device), math.nan if received.loss is None else received.loss

    def done(self, layers: dict[str, np.ndarray]) -> None:
        """Say that this client has trained, and hand over its layers if they are relayed."""
        handed = layers if self.channel.relay else {}
        tensors = {key: torch.from_numpy(value) for key, value in handed.items()}
        self.connection.send(Frame("done", self.client), tensors)


class ServerLoss(torch.autograd.Function):
    """The loss of a batch; the server computes everything behind the cut."""

    @staticmethod
    def forward(ctx: Any, data: Tensor, labels: Tensor, link: Link) -> Tensor:
        """Have the server compute loss and gradient for smashed data [b, ...] and labels [b]."""
        gradient, loss = link.exchange(data, labels)
        ctx.save_for_backward(gradient)
        return data.new_full((), loss)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None, None]:
        """Continue with the gradient that the server sent."""
        return upstream[0] * ctx.saved_tensors[0], None, None


class SplitClient(BaseClient):
    """Trains layers 1..c; the server, reached by the plan's channel, trains the others.

    The client sends the output of its layers and the labels of every batch, and its layers.
    """

    link: Link

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss; `logits` are the output of the client's layers, not of the model."""
        value: Tensor = ServerLoss.apply(logits, labels, self.link)
        return value

    def objective(self, phase: str) -> Objective:
        """In training, use the loss from the server; fine-tuning has the whole model here."""
        return Objective(self.loss) if phase == "train" else Objective()

    def train_round(self, plan: Plan, received: Arrays) -> ClientUpdate:
        """Join the channel and train; tell the server when this client is done or has failed."""
        if plan.channel is None:
            raise ChannelError("the plan of a split client has no channel")
        with connection(plan.channel, self.client) as connected:
            self.link = Link(self.client, plan.channel, connected)
            try:
                update = super().train_round(plan, received)
                self.link.done(take(self.model, self.layout.shared(self.layout.names)))
                return update
            except Exception as error:
                connected.send(Frame("failed", self.client, text=cause_of(error)))
                raise

    def train(
        self,
        plan: Plan,
        phase: str,
        objective: Objective,
        thresholds: Thresholds | None = None,
        data: Samples | None = None,
    ) -> TrainingStats:
        """Train; the first batch waits until the server says that this client may begin."""
        if plan.channel:
            put(self.model, self.link.begin())
            (stage,) = plan.stages
            count = len(self.workspace.trainer.starts(len(self.train_data[1]), stage))
            if 0 < plan.channel.batches < count:  # the data have grown: the reply tells by how much
                count = plan.channel.batches
                plan = replace(plan, stages=(replace(stage, batches=count),))
            self.link.steps = ((epoch, b) for epoch in range(stage.epochs) for b in range(count))
        return super().train(plan, phase, objective, thresholds, data)

    def extra_scores(self) -> dict[str, float]:
        """Return the figure `leak`: how often other clients' samples pass for this one's classes.

        These are test samples of classes that this client lacks. They are sent through the
        layers that the client's last training ended with.
        """
        own = self.kept(LAST)
        if not own or self.settings.on_devices:  # a device has no samples of others
            return {}
        samples = self.foreign_samples()
        if not len(samples):
            return {}
        shared = take(self.model, own)
        put(self.model, own)
        self.model.eval()
        with torch.no_grad():
            outputs = torch.cat([self.predict(chunk) for chunk in chunks(samples)])
        put(self.model, shared)
        found, own_classes = self.task.predict(outputs), self.train_data[1].unique()
        return {"leak": float(torch.isin(found, own_classes).double().mean())}

    def foreign_samples(self) -> Tensor:
        """Return other clients' test samples [n, ...] of classes that this client lacks."""
        known = self.train_data[1].unique()
        found = [self.test_data[0][:0]]
        for other in self.workspace.population.training:
            inputs, labels = self.workspace.samples(other, "test")
            found.append(inputs[~torch.isin(labels, known)])
        return torch.cat(found)

    def keeps(self, plan: Plan) -> list[str]:
        """Return nothing, because a client's layers come from the server in every round.

        With `score-last`, the client saves separately the layers that its training ended with, so
        that they can be scored.
        """
        return []
