"""FedROD's client: balanced softmax for the generic head, a personal head on detached features."""

from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedapps.method import BaseClient, CutModel, Objective, Slice, copied, run


class TwoHeads(CutModel):
    """A model that predicts with the sum of two heads' logits."""

    personal: nn.Module

    def forward(self, images: Tensor) -> Tensor:
        """Return logits [b, classes]."""
        features = self.body(images)
        logits: Tensor = self.head(features) + self.personal(features)
        return logits


class FedRODClient(BaseClient):
    """It keeps its personal head as `personal/<key>`; at first this is the initial head.

    Clipping and `prox-mu` act only on the shared model, not on the personal head.
    """

    @cached_property
    def personal_head(self) -> nn.Module:
        """This client's head h_i, a module of its own."""
        return self.part("personal/", lambda: copied(self.model, self.layout.head))

    @cached_property
    def log_prior(self) -> Tensor:
        """log n_{i,c} [classes]; -inf for a class of which the client has no samples."""
        classes = self.workspace.dataset.classes
        return torch.bincount(self.train_data[1], minlength=classes).float().log()

    def objective(self, phase: str) -> Objective:
        """The losses of both heads; the personal head's loss has no gradient for phi and h_G."""
        head = self.layout.head
        self.personal_head.train()
        return Objective(
            self.both_losses,
            forward=self.both_logits,
            parameters=tuple(p for p in self.personal_head.parameters() if p.requires_grad),
            macs=self.workspace.trainer.profile.step_macs(head, head[0]),
        )

    def both_logits(self, model: nn.Module, x: Tensor, layers: Slice) -> Tensor:
        """Return [2, b, classes]: generic logits, and generic (detached) plus personal logits."""
        features = self.run_body(model, x, layers)
        generic = run(model, features, self.layout.head)
        return torch.stack([generic, generic.detach() + self.personal_head(features.detach())])

    def both_losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Balanced softmax loss of the generic logits plus cross entropy of the summed logits."""
        generic, both = logits
        return cross_entropy(generic + self.log_prior, labels) + cross_entropy(both, labels)

    def module(self) -> nn.Module:
        """The body with both heads."""
        return TwoHeads(self.model, self.layout, personal=self.personal_head)
