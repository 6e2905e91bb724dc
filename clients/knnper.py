"""kNN-Per's client: it trains as in FedAvg, and predicts with its datastore beside the model."""

import torch
from torch import Tensor, nn
from torch.nn.functional import softmax

from fedapps.method import BaseClient, Costs, Plan, features, generator, in_sequence
from strategies.knnper import Settings


class WithNeighbours(nn.Module):
    """A model beside a datastore of features [capacity, d] with labels (-1: an empty place)."""

    features: Tensor
    labels: Tensor

    def __init__(
        self,
        body: nn.Module,
        head: nn.Module,
        shape: tuple[int, int],
        o: Settings,
        device: torch.device,
    ) -> None:
        super().__init__()
        self.body, self.head, self.options = body, head, o
        self.register_buffer("features", torch.zeros(shape, device=device))
        self.register_buffer("labels", torch.full(shape[:1], -1, device=device))

    def forward(self, images: Tensor) -> Tensor:
        """Return log(lambda_m p_knn + (1 - lambda_m) p_model) [b, classes] (Eq. 9)."""
        found, o = self.body(images), self.options
        model = softmax(self.head(found), 1)
        far = torch.cdist(
            found.flatten(1), self.features, compute_mode="donot_use_mm_for_euclid_dist"
        )
        near = -far.square() / (self.features.shape[1] * o.scale)
        near = near.masked_fill(self.labels < 0, -torch.inf)
        values, at = near.topk(min(o.k, len(self.labels)), 1)
        votes = torch.zeros_like(model).scatter_add(
            1, self.labels[at].clamp(min=0), softmax(values, 1)
        )
        return (o.weight * votes + (1 - o.weight) * model).clamp(min=1e-12).log()


class KNNPerClient(BaseClient):
    """Its datastore holds the features of its training samples, at most `capacity` of them."""

    options: Settings
    votes = True

    def module(self) -> nn.Module:
        """The model with a datastore; an empty one, if the client's data are not there."""
        body = in_sequence(self.model, self.layout.body)
        head = in_sequence(self.model, self.layout.head)
        shape = self.workspace.trainer.profile.shapes[self.layout.head[0]]
        size = (self.options.capacity, torch.Size(shape).numel())
        device = self.workspace.torch_device
        made = WithNeighbours(body, head, size, self.options, device).eval()
        if self.workspace.dataset.num_train:  # not while a model's file is read
            images, labels = self.train_data
            chosen = self.chosen(len(labels))
            found = features(self.model, images[chosen], self.layout.body).flatten(1)
            made.features[: len(chosen)], made.labels[: len(chosen)] = found, labels[chosen]
        return made

    def chosen(self, size: int) -> Tensor:
        """Return which of the training samples are in the datastore, ascending."""
        draw = generator(self.settings.seed, "knnper", 0, self.client)
        kept = draw.permutation(size)[: self.options.capacity]
        return torch.from_numpy(kept).sort().values.to(self.workspace.torch_device)

    def predict(self, images: Tensor) -> Tensor:
        """Return log probabilities of the model beside the datastore."""
        outputs: Tensor = self.module()(images) if self.votes else super().predict(images)
        return outputs

    def before_scoring(self, plan: Plan) -> Costs:
        """Score the shared model alone; count the features of the datastore."""
        self.votes = False
        self.shared = self.score(self.test_data).value
        self.votes = True
        size = min(len(self.train_data[1]), self.options.capacity)
        return Costs(macs=size * self.workspace.trainer.profile.forward_macs(self.layout.body))

    def extra_scores(self) -> dict[str, float]:
        """The score of the shared model alone."""
        return {"global": self.shared}
