"""Methods that look at features, the outputs of the body: class means, and models of their own."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor, nn

from fedapps.method.tools import StrategyTools
from fedapps.method.update import ClientUpdate
from fedapps.models.layers import Layout, in_sequence
from fedapps.training.costs import Costs


class Predictor(nn.Module):
    """What a client predicts with, if it is more than the model: write `forward`.

    Its parts are given by name: modules, lists of modules, and tensors, which become buffers. It is
    in eval mode.
    """

    def __init__(self, **parts: nn.Module | Sequence[nn.Module] | Tensor) -> None:
        super().__init__()
        for name, part in parts.items():
            if isinstance(part, Tensor):
                self.register_buffer(name, part)
            else:
                whole = part if isinstance(part, nn.Module) else nn.ModuleList(part)
                self.add_module(name, whole)
        self.eval()


class CutModel(Predictor):
    """A predictor made of the model's `body` and `head`, and of what else it is given."""

    body: nn.Sequential
    head: nn.Sequential

    def __init__(self, model: nn.Module, layout: Layout, **parts: nn.Module | Tensor) -> None:
        body, head = (in_sequence(model, layers) for layers in (layout.body, layout.head))
        super().__init__(body=body, head=head, **parts)


class ClassFeatures(NamedTuple):
    """Features of a client's training samples: z [n, d], and by class means [C, d] and counts [C].

    The mean of a class without samples is 0. `costs` are those of computing them.
    """

    z: Tensor
    means: Tensor
    counts: Tensor
    costs: Costs


class Prototypes:
    """The clients' mean features of each class, in a strategy's state under a prefix.

    `<prefix>/mean` [C, d], and `<prefix>/count` [C], the samples behind them; 0: none yet.
    """

    def __init__(self, strategy: StrategyTools, prefix: str) -> None:
        self.state, self.names = strategy.state, (f"{prefix}/mean", f"{prefix}/count")
        classes, shape = strategy.workspace.dataset.classes, strategy.workspace.feature_shape
        sizes = (classes, int(np.prod(shape))), (classes,)
        self.state |= {n: np.zeros(s, np.float32) for n, s in zip(self.names, sizes, strict=True)}

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of both arrays, for a plan that sends them to clients."""
        return {name: self.state[name].shape for name in self.names}

    def average(self, found: Iterable[tuple[np.ndarray, np.ndarray]], plain: bool = False) -> None:
        """Average the means [C, d] of clients, weighted by `class_counts` or, if plain, equally.

        A class of which no client has samples keeps its mean and its count.
        """
        mean, count = (self.state[name] for name in self.names)
        total, (counts, weights) = np.zeros(mean.shape), np.zeros((2, len(mean)))
        for own, samples in found:
            weight = (samples > 0).astype(float) if plain else samples
            total += own * weight[:, None]
            weights += weight
            counts += samples
        seen = weights > 0
        mean[seen] = total[seen] / weights[seen, None]
        count[seen] = counts[seen]


def class_counts(update: ClientUpdate, name: str) -> np.ndarray:
    """Return the number of samples of each class [C] that a client sends in the array `name`.

    They are its own claim, and weights. So they are at least 0, and if together they are more than
    its checked `num_examples`, they are scaled to that sum.
    """
    counts = update.extras[name].clip(0)
    total = counts.sum(dtype=np.float64)
    return counts * (update.num_examples / total) if total > update.num_examples else counts
