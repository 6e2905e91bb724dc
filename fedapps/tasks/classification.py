"""Classification: each sample belongs to one class, whose number is its target."""

from collections.abc import Mapping
from functools import partial

import numpy as np
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedapps.data.spec import Spec, label_spec
from fedapps.tasks.metric import Counts, Metric, macro_f1, ratio
from fedapps.tasks.task import Task, floats, no_more


def balanced(counts: Counts) -> tuple[float, float]:
    """The accuracies of the classes, over the classes that occur (balanced accuracy)."""
    there = counts["total"] > 0
    return (counts["right"][there] / counts["total"][there]).sum(), there.sum()


ACCURACY = Metric("accuracy", "accuracy", "acc", partial(ratio, "right", "total"))
F1 = partial(macro_f1, "right", "total")


class Classification(Task):
    """Cross entropy; the prediction is the class with the largest logit."""

    name = "classification"
    metrics = (
        ACCURACY,
        Metric("balanced", "balanced accuracy", "balanced", balanced, by_class=True),
        Metric("macro_f1", "macro F1", "F1", F1, by_class=True),
    )
    of_class = ACCURACY
    has_classes = has_names = True
    of_targets = ("total",)

    def check(self, targets: Spec, inputs: Spec) -> None:
        """Labels are whole numbers, one a sample."""
        if not targets.is_whole or targets.shape:
            raise ValueError("targets must be labels, integers [N]")
        if targets.choices < 2:
            raise ValueError("all samples have the same label, so there is nothing to tell apart")

    def declared(self, shape: tuple[int, ...], count: int) -> tuple[Spec, Spec]:
        """Labels of `count` classes."""
        return floats(shape), label_spec(count)

    def outputs(self, targets: Spec) -> Spec:
        """A logit for each class."""
        return Spec((targets.choices,))

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Cross entropy of logits [b, classes] and labels [b]."""
        return cross_entropy(output, target)

    def losses(self, output: Tensor, target: Tensor) -> Tensor:
        """Cross entropy of each sample."""
        return cross_entropy(output, target, reduction="none")

    def predict(self, output: Tensor) -> Tensor:
        """Return labels [n]."""
        return output.argmax(1)

    def probabilities(self, output: Tensor) -> Tensor:
        """Return the softmax of the logits, [n, classes]."""
        return output.softmax(1)

    def count(self, output: Tensor, target: Tensor) -> Counts:
        """Count samples, right ones and predictions of each class: int64 [classes]."""
        found = self.predict(output)
        parts = {"total": target, "right": target[found == target], "predicted": found}
        classes = output.shape[1]
        return {
            name: np.bincount(labels.cpu().numpy(), minlength=classes)
            for name, labels in parts.items()
        }

    def sizes(self, targets: Spec) -> Mapping[str, int]:
        """Every count has a value for each class."""
        return dict.fromkeys(("total", "right", "predicted"), targets.choices)

    def check_counts(self, counts: Counts, samples: int) -> None:
        """Each sample has one class and one prediction; a wrong one's differ, so none is both."""
        for name in ("total", "predicted"):
            if counts[name].sum() != samples:
                raise ValueError(f"{name} must sum to {samples}, the scored samples")
        no_more("right", counts["right"], np.minimum(counts["total"], counts["predicted"]))
        wrong = counts["total"] + counts["predicted"] - 2 * counts["right"]
        no_more("wrong", wrong, samples - counts["right"].sum())

    def by_class(self, counts: Counts) -> tuple[np.ndarray, np.ndarray]:
        """Return the samples and the right ones of each class."""
        return counts["total"], counts["right"]
