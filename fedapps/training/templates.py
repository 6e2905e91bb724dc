"""Nearest class template: how good features are, whatever the head."""

import torch
from torch import nn

from fedapps.models.layers import Slice
from fedapps.training.batches import Samples
from fedapps.training.features import features


@torch.no_grad()
def nearest_template(model: nn.Sequential, body: Slice, train: Samples, test: Samples) -> float:
    """Return the accuracy without head (FedBABU, authors' protocol).

    The template of a class is the mean body output over the client's training samples of it; a
    test sample gets the class of the nearest template (Euclidean). Classes that the client lacks
    are no candidates.
    """
    known = train[1].unique()
    outputs = features(model, train[0], body).flatten(1)
    templates = torch.stack([outputs[train[1] == label].mean(0) for label in known])
    asked = features(model, test[0], body).flatten(1)
    # not by |a|^2 - 2ab + |b|^2: float32 cancels where features are large and close together
    distances = torch.cdist(asked, templates, compute_mode="donot_use_mm_for_euclid_dist")
    return float((known[distances.argmin(1)] == test[1]).double().mean())
