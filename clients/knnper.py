"""kNN-Per's client: it trains as in FedAvg, and predicts with its datastore beside the model."""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import softmax

from fedapps.method import BaseClient, Costs, CutModel, Plan, features, generator
from strategies.knnper import Settings


class WithNeighbours(CutModel):
    """A model beside a datastore of features [capacity, d] with labels (-1: an empty place)."""

    features: Tensor
    labels: Tensor
    options: Settings

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

    def module(self) -> nn.Module:
        """The model with a datastore; an empty one, if the client's data are not there."""
        space, capacity = self.workspace, self.options.capacity
        store = torch.zeros(capacity, math.prod(space.feature_shape), device=space.torch_device)
        labels = torch.full((capacity,), -1, device=space.torch_device)
        if space.dataset.num_train:  # not while a model's file is read
            x, y = self.train_data
            chosen = self.chosen(len(y))
            found = features(self.model, x[chosen], self.layout.body).flatten(1)
            store[: len(chosen)], labels[: len(chosen)] = found, y[chosen]
        made = WithNeighbours(self.model, self.layout, features=store, labels=labels)
        made.options = self.options
        return made

    def chosen(self, size: int) -> Tensor:
        """Return which of the training samples are in the datastore, ascending."""
        draw = generator(self.settings.seed, "knnper", 0, self.client)
        kept = draw.permutation(size)[: self.options.capacity]
        return torch.from_numpy(kept).sort().values.to(self.workspace.torch_device)

    def before_scoring(self, plan: Plan) -> Costs:
        """Score the shared model alone; count the features of the datastore."""
        self.shared = self.score(self.test_data, self.model).value
        size = min(len(self.train_data[1]), self.options.capacity)
        return self.forward_costs(size, self.layout.body)

    def extra_scores(self) -> dict[str, float]:
        """The score of the shared model alone."""
        return {"global": self.shared}
