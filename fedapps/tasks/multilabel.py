"""Multilabel: each of several labels applies to a sample or not."""

from collections.abc import Mapping
from functools import partial

import numpy as np
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from fedapps.data.spec import FLOAT, WHOLE, Spec
from fedapps.tasks.metric import Counts, Metric, macro_f1
from fedapps.tasks.task import Task, floats, no_more

COUNTED = ("positive", "predicted", "found", "right")


def micro_f1(counts: Counts) -> tuple[float, float]:
    """Twice the labels found, over those that apply plus those predicted (F1 over all labels).

    It is 1 if no label applies and none is predicted.
    """
    both = counts["positive"].sum() + counts["predicted"].sum()
    return (2 * counts["found"].sum(), both) if both else (1, 1)


def accuracy(counts: Counts) -> tuple[float, float]:
    """The decisions that are right, of one for each sample and label."""
    return counts["right"].sum(), counts["samples"][0] * len(counts["right"])


class Multilabel(Task):
    """Binary cross entropy; a label is predicted if its logit is positive."""

    name = "multilabel"
    metrics = (
        Metric("micro_f1", "micro F1", "F1", micro_f1),
        Metric("macro_f1", "macro F1", "F1", partial(macro_f1, "found", "positive"), by_class=True),
        Metric("accuracy", "accuracy", "acc", accuracy),
    )
    has_names = True
    of_targets = ("samples", "positive")

    def check(self, targets: Spec, inputs: Spec) -> None:
        """Each target is a row of truth values."""
        if not targets.is_whole or len(targets.shape) != 1 or targets.choices > 2:
            raise ValueError("targets must be truth values, booleans or 0 and 1, [N, labels]")

    def declared(self, shape: tuple[int, ...], count: int) -> tuple[Spec, Spec]:
        """`count` labels that apply or not."""
        return floats(shape), Spec((count,), WHOLE, 2)

    def outputs(self, targets: Spec) -> Spec:
        """A logit for each label."""
        return Spec(targets.shape)

    def values(self, targets: np.ndarray) -> np.ndarray:
        """Return the targets as float32, 0 and 1."""
        return targets.astype(FLOAT)

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Binary cross entropy of logits [b, labels], the mean over samples and labels."""
        return binary_cross_entropy_with_logits(output, target)

    def losses(self, output: Tensor, target: Tensor) -> Tensor:
        """Binary cross entropy of each sample, the mean over its labels."""
        return binary_cross_entropy_with_logits(output, target, reduction="none").mean(1)

    def predict(self, output: Tensor) -> Tensor:
        """Return 0 or 1 for each label, int64 [n, labels]."""
        return (output > 0).long()

    def probabilities(self, output: Tensor) -> Tensor:
        """Return the probability of each label, [n, labels]."""
        return output.sigmoid()

    def count(self, output: Tensor, target: Tensor) -> Counts:
        """Count for each label what applies, is predicted, both, and right: int64 [labels]."""
        found, truth = self.predict(output).bool(), target.bool()
        parts = (truth, found, truth & found, truth == found)
        sums = {name: p.sum(0).cpu().numpy() for name, p in zip(COUNTED, parts, strict=True)}
        return {"samples": np.array([len(target)])} | sums

    def sizes(self, targets: Spec) -> Mapping[str, int]:
        """Every count has a value for each label, except that of the samples."""
        return {"samples": 1} | dict.fromkeys(COUNTED, targets.shape[0])

    def check_counts(self, counts: Counts, samples: int) -> None:
        """For each label, those found, wrong and neither are all samples; the others are right."""
        if counts["samples"][0] != samples:
            raise ValueError(f"samples must be {samples}, the scored samples")
        no_more("found", counts["found"], np.minimum(counts["positive"], counts["predicted"]))
        wrong = counts["positive"] + counts["predicted"] - 2 * counts["found"]
        no_more("wrong", wrong, samples - counts["found"])
        if (counts["right"] != samples - wrong).any():
            raise ValueError("right must be the samples without those that are wrong")
