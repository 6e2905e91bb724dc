"""Tokens: for each step of a text or series, the next token."""

import math
from collections.abc import Mapping
from functools import partial

import numpy as np
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedapps.core.errors import RunError
from fedapps.data.spec import WHOLE, Spec
from fedapps.tasks.metric import Counts, Metric, ratio
from fedapps.tasks.task import Task, no_more

MOST_NATS = 700.0  # exp of more is infinite


RIGHT, NATS = (partial(ratio, of, "tokens") for of in ("right", "nats"))


def perplexity(mean: float) -> float:
    """Return exp of the mean cross entropy of a token."""
    return math.exp(min(mean, MOST_NATS))


class Tokens(Task):
    """Cross entropy of each token; the prediction is the one with the largest logit."""

    name = "tokens"
    metrics = (
        Metric("accuracy", "accuracy", "acc", RIGHT),
        Metric("perplexity", "perplexity", "ppl", NATS, "", False, perplexity, (1.0, math.inf)),
    )
    sums = ("nats",)
    of_targets = ("tokens",)

    def check(self, targets: Spec, inputs: Spec) -> None:
        """There is a token for each step of the input."""
        if not targets.is_whole or targets.shape != inputs.shape[:1]:
            raise ValueError("targets must be tokens, integers [N, T] for inputs of T steps")

    def declared(self, shape: tuple[int, ...], count: int) -> tuple[Spec, Spec]:
        """As many tokens as the shape says, of a vocabulary of `count`, in and out."""
        if len(shape) > 1:
            raise RunError(
                f"input-shape: must be one number, of tokens in a sample, with task = tokens; got"
                f" {list(shape)}"
            )
        return Spec(shape, WHOLE, count), Spec(shape, WHOLE, count)

    def outputs(self, targets: Spec) -> Spec:
        """A logit for each token of the vocabulary, at each step."""
        return Spec((*targets.shape, targets.choices))

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Cross entropy of logits [b, T, tokens], the mean over samples and steps."""
        return cross_entropy(output.flatten(0, 1), target.flatten())

    def losses(self, output: Tensor, target: Tensor) -> Tensor:
        """Cross entropy of each sample, the mean over its steps."""
        each = cross_entropy(output.flatten(0, 1), target.flatten(), reduction="none")
        return each.view_as(target).mean(1)

    def predict(self, output: Tensor) -> Tensor:
        """Return tokens [n, T]."""
        return output.argmax(-1)

    def count(self, output: Tensor, target: Tensor) -> Counts:
        """Count tokens and right ones, and sum up their cross entropies in float64: each [1]."""
        logits, truth = output.flatten(0, 1).double(), target.flatten()
        right = int((self.predict(output) == target).sum())
        total = float(cross_entropy(logits, truth, reduction="sum"))
        return {
            "tokens": np.array([truth.numel()]),
            "right": np.array([right]),
            "nats": np.array([total]),
        }

    def sizes(self, targets: Spec) -> Mapping[str, int]:
        """Every count is one number."""
        return dict.fromkeys(("tokens", "right", "nats"), 1)

    def check_counts(self, counts: Counts, samples: int) -> None:
        """Every sample has as many tokens, and no more can be right than there are."""
        tokens = counts["tokens"][0]
        if not tokens or tokens % samples:
            raise ValueError(f"tokens = {tokens:g}: must be a multiple of {samples}")
        no_more("right", counts["right"], counts["tokens"])
