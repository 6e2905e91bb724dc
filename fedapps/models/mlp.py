"""A multilayer perceptron, for tables and for samples of any other shape."""

from torch import nn

from fedapps.data.spec import Spec
from fedapps.models.blocks import ModelSpec, chain, classifier, fc_layer, flatten

WIDTHS = (64, 32)


def mlp(inputs: Spec, outputs: Spec) -> nn.Sequential:
    """Two hidden layers of 64 and 32 units with ReLU (our choice), and a linear layer `fc3`."""
    first, second = WIDTHS
    hidden = chain(**flatten(), **dict(fc_layer(inputs.size, first).named_children()))
    return chain(fc1=hidden, fc2=fc_layer(first, second), fc3=classifier(second, outputs.shape[-1]))


MODELS = {"mlp": ModelSpec(mlp, takes=("tables", "series", "values", "images"), smallest=1)}
