"""Models of series [T, C] and of tokens [T]."""

import torch
from torch import Tensor, nn

from fedapps.data.spec import Spec
from fedapps.models.blocks import Mean, ModelSpec, chain, classifier, fc_layer, flatten

UNITS = 64  # of a GRU, and the size of an embedding
HEADS = 4  # of attention


class Outputs(nn.Module):
    """Takes what a recurrent layer [N, T, features] returns: its last output, or all of them."""

    def __init__(self, per_step: bool) -> None:
        super().__init__()
        self.per_step = per_step

    def forward(self, found: tuple[Tensor, object]) -> Tensor:
        """Return [N, units], or [N, T, units] for each step."""
        return found[0] if self.per_step else found[0][:, -1]


class Embedding(nn.Module):
    """Vectors of tokens [N, T], plus learned vectors of their positions."""

    def __init__(self, tokens: int, steps: int, size: int) -> None:
        super().__init__()
        self.token = nn.Embedding(tokens, size)
        self.position = nn.Parameter(0.02 * torch.randn(steps, size))

    def forward(self, x: Tensor) -> Tensor:
        """Return [N, T, size]."""
        return self.token(x) + self.position[: x.shape[1]]


class Block(nn.Module):
    """A transformer block with normalization first; `causal`: a step sees only those before it."""

    def __init__(self, size: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(size), nn.LayerNorm(size)
        self.attention = nn.MultiheadAttention(size, heads, batch_first=True)
        self.wide, self.narrow = nn.Linear(size, 4 * size), nn.Linear(4 * size, size)
        self.causal = causal

    def forward(self, x: Tensor) -> Tensor:
        """Map [N, T, size] to the same shape."""
        steps = x.shape[1]
        hidden = None
        if self.causal:
            hidden = torch.ones(steps, steps, dtype=torch.bool, device=x.device).triu(1)
        y = self.norm1(x)
        x = x + self.attention(y, y, y, attn_mask=hidden, need_weights=False)[0]
        wide = torch.relu(self.wide(self.norm2(x)))
        return x + self.narrow(wide)


class Channels(nn.Module):
    """Turns a series [N, T, C] into [N, C, T], as convolutions take it."""

    def forward(self, x: Tensor) -> Tensor:
        """Return [N, C, T]."""
        return x.transpose(1, 2)


def gru(inputs: Spec, outputs: Spec) -> nn.Sequential:
    """A GRU of 64 units, a hidden layer of 32 on its output, and a linear layer (our choice)."""
    cell = nn.GRU(inputs.shape[-1], UNITS, batch_first=True)
    recurrent = chain(gru=cell, outputs=Outputs(len(outputs.shape) > 1))
    return chain(gru=recurrent, fc1=fc_layer(UNITS, 32), fc2=classifier(32, outputs.shape[-1]))


def lstm_char(inputs: Spec, outputs: Spec) -> nn.Sequential:
    """LEAF's model of Shakespeare's texts: embedding of 8, two LSTMs of 256 units, a linear layer.

    Source: Caldas et al. 2018, models/shakespeare/stacked_lstm.py. There the output follows the
    last step; here there is one for each step if the targets have one.
    """
    size, units = 8, 256

    def lstm(features: int, per_step: bool) -> nn.Sequential:
        cell = nn.LSTM(features, units, batch_first=True)
        return chain(lstm=cell, outputs=Outputs(per_step))

    return chain(
        embed=nn.Embedding(inputs.choices, size),
        lstm1=lstm(size, True),
        lstm2=lstm(units, len(outputs.shape) > 1),
        fc=classifier(units, outputs.shape[-1]),
    )


def cnn1d(inputs: Spec, outputs: Spec) -> nn.Sequential:
    """Two convolutions over time (32 and 64 channels, 5 steps), their mean, and a linear layer."""
    pooled = {"average": nn.AdaptiveAvgPool1d(1), **flatten()}
    conv1 = nn.Conv1d(inputs.shape[-1], 32, 5, padding=2)
    conv2 = nn.Conv1d(32, 64, 5, padding=2)
    return chain(
        conv1=chain(channels=Channels(), conv=conv1, relu=nn.ReLU()),
        conv2=chain(conv=conv2, relu=nn.ReLU(), **pooled),
        fc=classifier(64, outputs.shape[-1]),
    )


def transformer_tiny(inputs: Spec, outputs: Spec) -> nn.Sequential:
    """Embedding of 64, two blocks with four heads, LayerNorm and a linear layer (our choice).

    If there is an output for each step, a step sees only the tokens before it; otherwise the steps
    are averaged.
    """
    per_step = len(outputs.shape) > 1
    mean = {} if per_step else {"mean": Mean()}
    return chain(
        embed=Embedding(inputs.choices, inputs.shape[0], UNITS),
        block1=Block(UNITS, HEADS, per_step),
        block2=Block(UNITS, HEADS, per_step),
        head=chain(norm=nn.LayerNorm(UNITS), **mean, fc=nn.Linear(UNITS, outputs.shape[-1])),
    )


MODELS = {
    "gru": ModelSpec(gru, takes=("series",), per_step=True),
    "cnn1d": ModelSpec(cnn1d, takes=("series",)),
    "lstm-char": ModelSpec(lstm_char, takes=("tokens",), per_step=True),
    "transformer-tiny": ModelSpec(transformer_tiny, takes=("tokens",), per_step=True),
}
