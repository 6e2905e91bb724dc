"""A task: what is learned, from the loss of a batch to the metrics of a client."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from copy import copy
from typing import ClassVar, Self

import numpy as np
from torch import Tensor

from fedapps.core.errors import RunError
from fedapps.data.spec import Normalization, Spec, image_spec
from fedapps.tasks.metric import Counts, Metric

AUTO = "auto"  # for a task: by the targets; for the metric that leads: the task's first


def floats(shape: tuple[int, ...]) -> Spec:
    """Return the spec of devices' inputs that are no tokens; three sides are those of an image."""
    return image_spec(shape) if len(shape) == 3 else Spec(shape)


class Task(ABC):
    """Says for one kind of targets what is minimized, predicted and measured.

    A client counts over its samples (`count`); these counts travel, and the server computes the
    metrics from them. The first metric leads: it is the one by which runs are compared, rounds are
    chosen and plots are drawn.
    """

    name: ClassVar[str]
    metrics: tuple[Metric, ...]
    has_classes: ClassVar[bool] = False  # whether each sample belongs to one class
    of_class: ClassVar[Metric | None] = None  # the share that is right of a class, as `by_class`
    has_names: ClassVar[bool] = False  # whether each output stands for a class or label
    scales: ClassVar[bool] = False  # whether a model computes targets in a unit of its own
    sums: ClassVar[tuple[str, ...]] = ()  # counts that are not whole numbers
    of_targets: ClassVar[tuple[str, ...]]  # counts that do not depend on the predictions

    @property
    def lead(self) -> Metric:
        """The metric by which runs are compared."""
        return self.metrics[0]

    def leading(self, metric: str) -> Self:
        """Return the task with this metric as the first one; `auto` is the one that is first now.

        Raises `RunError` if it has no metric of this name.
        """
        names = [known.name for known in self.metrics]
        if metric in (AUTO, names[0]):
            return self
        if metric not in names:
            allowed = ", ".join([AUTO, *names])
            raise RunError(f'metric = "{metric}": a {self.name} has {allowed}')
        task = copy(self)
        task.metrics = tuple(sorted(self.metrics, key=lambda known: known.name != metric))
        return task

    @abstractmethod
    def check(self, targets: Spec, inputs: Spec) -> None:
        """Raise ValueError, which says what is allowed, if these targets cannot be learned so."""

    @abstractmethod
    def declared(self, shape: tuple[int, ...], count: int) -> tuple[Spec, Spec]:
        """Return the specs of inputs and targets that `input-shape` and `num-classes` say.

        Raises `RunError` for a shape that such inputs cannot have.
        """

    @abstractmethod
    def outputs(self, targets: Spec) -> Spec:
        """Return what a model has to compute for a sample."""

    def learned(self, targets: Spec) -> Spec:
        """Return the spec of what is learned of such targets."""
        return targets

    def values(self, targets: np.ndarray) -> np.ndarray:
        """Return the targets [n, ...] with the dtype that the loss takes."""
        return targets

    def scaled(self, scaling: Normalization) -> "Task":
        """Return the task for a model that computes targets scaled so, if it `scales`."""
        return self

    @abstractmethod
    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the loss of a batch, a scalar: the mean over its samples."""

    @abstractmethod
    def losses(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the loss of each sample of a batch, [b]; their mean is `loss`."""

    @abstractmethod
    def predict(self, output: Tensor) -> Tensor:
        """Return the predictions for outputs [n, ...], in the form of the targets."""

    def probabilities(self, output: Tensor) -> Tensor | None:
        """Return the probabilities that outputs [n, ...] stand for; None if they stand for none."""
        return None

    @abstractmethod
    def count(self, output: Tensor, target: Tensor) -> Counts:
        """Count over samples what the metrics are made of; the arrays are int64 or float64 [k].

        Counts of parts of the samples add up to those of all, because many samples are counted in
        parts. A count is at most the number of all values in the targets; one that can be larger,
        or is no whole number, belongs in `sums`.
        """

    @abstractmethod
    def sizes(self, targets: Spec) -> Mapping[str, int]:
        """Return the names of the counts, and how many values each has."""

    @abstractmethod
    def check_counts(self, counts: Counts, samples: int) -> None:
        """Raise ValueError for counts that `samples` samples cannot have given."""

    def by_class(self, counts: Counts) -> tuple[np.ndarray, np.ndarray] | None:
        """Return the samples of each class, and how many of them were right, int64 [classes]."""
        return None


def no_more(name: str, counts: np.ndarray, most: np.ndarray | float) -> None:
    """Raise ValueError for a count above its limit."""
    if (too_many := np.flatnonzero(counts > most)).size:
        place = too_many[0]
        limit = np.broadcast_to(most, counts.shape)[place]
        raise ValueError(f"{name} = {counts[place]:g}: at most {limit:g}")
