"""Nearest class template: measures how good features are, without using the head."""

import torch
from torch import nn

from fedapps.models.layers import Slice
from fedapps.training.batches import Samples
from fedapps.training.features import features


@torch.no_grad()
def nearest_template(model: nn.Module, body: Slice, train: Samples, test: Samples) -> float:
    """Return the accuracy without the head (FedBABU, protocol of its authors).

    The template of a class is the mean body output over the client's training samples of that
    class. A test sample is assigned to the class with the nearest template (Euclidean distance).
    Classes without training samples on the client are left out.
    """
    known = train[1].unique()
    outputs = features(model, train[0], body).flatten(1)
    templates = torch.stack([outputs[train[1] == label].mean(0) for label in known])
    asked = features(model, test[0], body).flatten(1)
    # not as |a|^2 - 2ab + |b|^2, which loses all digits if features are large and close together
    distances = torch.cdist(asked, templates, compute_mode="donot_use_mm_for_euclid_dist")
    return float((known[distances.argmin(1)] == test[1]).double().mean())
