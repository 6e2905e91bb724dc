"""The one trainer: it executes the stages of a plan on a client's samples in memory.

Frozen layers are not computed again and again. Their parameters get no gradient, and the leading
frozen layers (the prefix) run only once per stage: every epoch then starts from their cached
outputs, which also serve later rounds as long as the prefix stays the same. The costs always count
one pass per stage, even if the outputs were cached already, so that figures do not depend on which
process had them in its cache.
"""

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from fedapps.models.grouping import children_by_layer
from fedapps.models.layers import Layout, Slice, freeze_all_but
from fedapps.training.augment import windows
from fedapps.training.batches import Samples, epoch_batches, grouped
from fedapps.training.clipping import SampleGradients, Threshold, Thresholds
from fedapps.training.costs import Profile, TrainingStats, is_cacheable
from fedapps.training.draw import Draw
from fedapps.training.features import FeatureCache, digest, features
from fedapps.training.gradients import GradientRule, add_proximal, gradient_rule
from fedapps.training.objective import PLAIN, Loss, Objective
from fedapps.training.optimizers import optimizer
from fedapps.training.plan import Stage


@dataclass
class Trainer:
    """Runs stages on one model, whose parameters change in place."""

    model: nn.Module
    layout: Layout
    profile: Profile
    loss: Loss  # of the run's task
    batch_size: int
    augment: str = "none"
    cache_bytes: int = 0
    border: Tensor | None = None  # value of the padding, see augment.py

    def __post_init__(self) -> None:
        self._features = FeatureCache(self.cache_bytes)

    def train(
        self,
        data: Samples,
        stages: tuple[Stage, ...],
        draw: Draw,
        objective: Objective = PLAIN,
        thresholds: Thresholds | None = None,
        cache_key: Hashable = None,
    ) -> TrainingStats:
        """Execute `stages` one after the other on data: inputs and targets.

        Epochs are counted over all stages, so that the shuffles of a round do not depend on how it
        is cut into stages. `thresholds` holds the clipping history for each pair of trained layers
        and clipping; it is updated. `cache_key` names the data, so that the features of a prefix
        that stays the same can serve later rounds; with None, they serve one stage only.

        Raises `RunError` for a layer that the model does not have, and ValueError for a stage that
        cannot be executed as it says (`check`, `Stage.passes`).
        """
        done, epoch = TrainingStats(), 0
        self.model.zero_grad()  # a client that failed can have left gradients
        self._seed(draw.torch_seed())
        anchor = self._anchor(stages, objective.anchor)
        for stage in stages:
            if stage.epochs and (stage.layers or objective.parameters):
                inputs, layers = self._inputs(data[0], stage, objective.start, cache_key, done)
                epochs = range(epoch, epoch + stage.epochs)
                batches = self._batches((inputs, data[1]), epochs, draw, stage, done)
                threshold = _threshold(stage, thresholds or {})
                self._stage(batches, stage, layers, anchor, objective, threshold, done)
            epoch += stage.epochs
        self.model.eval()
        return done

    def _stage(
        self,
        batches: Iterable[Samples],
        stage: Stage,
        layers: Slice,
        anchor: dict[str, Tensor],
        objective: Objective,
        threshold: Threshold | None,
        done: TrainingStats,
    ) -> None:
        """Take steps on the stage's layers, one per group of batches; run the layers `layers`.

        Clipping includes the model's parameters only, not those beside it.
        """
        by_sample = threshold is not None and threshold.by_sample
        macs = self.profile.step_macs(stage.layers, layers[0], by_sample) + objective.macs
        count = self.layout.count(stage.layers) + sum(p.numel() for p in objective.parameters)
        parameters = self.freeze_all_but(stage.layers)
        trained, beside = [*parameters.values()], objective.parameters
        mover = optimizer([*trained, *beside], stage)
        loss = torch.zeros(())  # summed over the samples of all steps that were taken
        taken: list[int] = []  # batch sizes of these steps
        with gradient_rule(self.model, trained, threshold, beside) as rule:
            for group in grouped(batches, objective.batches, stage.max_steps):
                passes = _Passes(self.model, layers, objective, self.loss, rule, loss)
                objective.gradients(passes, group)
                passes.check(stage)
                if stage.prox_mu:
                    add_proximal(parameters, anchor, stage.prox_mu)
                if rule.finish():
                    mover.step()
                    loss = passes.loss
                    taken += passes.sizes
                    if objective.after_step:
                        with torch.no_grad():
                            objective.after_step(self.model)
                else:
                    mover.drop()
                    done.rejected += len(passes.sizes)
        done.loss += float(loss)
        done.samples += sum(taken)
        done.batches += len(taken)
        done.macs += macs * sum(taken)
        done.cost_paper += len(taken) * count

    def check(self, stage: Stage) -> None:
        """Raise ValueError if the model's layers cannot be trained as the stage says."""
        optimizer([], stage)
        self.freeze_all_but(stage.layers)
        if stage.clip and stage.clip.mode == "sample":
            SampleGradients(self.model).close()

    def freeze_all_but(self, trained: Slice) -> dict[str, nn.Parameter]:
        """Freeze all other layers (eval mode, no gradients); return the parameters to train."""
        return freeze_all_but(self.model, self.layout, trained)

    def _inputs(
        self, images: Tensor, stage: Stage, start: str, cache_key: Hashable, done: TrainingStats
    ) -> tuple[Tensor, Slice]:
        """Return the steps' inputs (images or cached features) and the layers to run on them."""
        prefix = self.cached_prefix(stage.layers, len(images), start)
        if not prefix:
            return images, self.layout.names
        done.macs += len(images) * self.profile.forward_macs(prefix)  # counts even if it is cached

        def compute() -> Tensor:
            return features(self.model, images, prefix)

        layers = self.layout.names[len(prefix) :]
        if cache_key is None:
            return compute(), layers
        state = digest(self.model, self.layout.keys_of(prefix))
        return self._features.get((cache_key, prefix), state, compute), layers

    def cached_prefix(self, trained: Slice, size: int, start: str = "") -> Slice:
        """Return the longest frozen prefix whose outputs for `size` samples may be cached.

        It ends before `start` (`Objective.start`). It is empty if no layer is trained and `start`
        is not given, and for a model that cannot be cut.
        """
        needed = self.layout.slice((*trained, start) if start else trained)
        if not needed or self.augment != "none" or not self.layout.can_be_cut:
            return ()
        prefix: Slice = ()
        for name in self.layout.prefix(needed):
            children = children_by_layer(self.model)[name]
            if not all(is_cacheable(self.model.get_submodule(child)) for child in children):
                break
            prefix += (name,)
        while prefix and self._feature_bytes(prefix, size) > self.cache_bytes:
            prefix = prefix[:-1]
        return prefix

    def _feature_bytes(self, prefix: Slice, size: int) -> int:
        following = self.layout.names[len(prefix)]
        return 4 * size * int(np.prod(self.profile.shapes[following]))

    def starts(self, size: int, stage: Stage) -> list[int]:
        """Return where the batches of an epoch begin in its order of `size` samples.

        A batch of one sample is left out if a BatchNorm could not normalize it.
        """
        own = list(range(0, size, self.batch_size))
        taken = [own[index % len(own)] for index in range(stage.batches or len(own))]
        trained = self.layout.slice(stage.layers)
        needs_two = any(self._sees_one_value(name, trained) for name in self.layout.names)
        least = max(stage.least, 1 + needs_two)
        return [start for start in taken if min(self.batch_size, size - start) >= least]

    def _batches(
        self,
        data: Samples,
        epochs: Iterable[int],
        draw: Draw,
        stage: Stage,
        done: TrainingStats,
    ) -> Iterator[Samples]:
        """Yield shuffled batches; skip and count those that are too small to train on."""
        inputs, labels = data
        size = len(labels)
        starts = self.starts(size, stage)
        whole = stage.batches or math.ceil(size / self.batch_size)
        for epoch in epochs:
            order = draw.order(epoch, size).to(labels.device)
            crops: tuple[Tensor, ...] = ()
            if self.augment == "crop-flip":
                found = windows(*draw.crops(epoch, size), inputs.shape[-2:])
                crops = tuple(pixels.to(inputs.device) for pixels in found)
            done.skipped += whole - len(starts)
            yield from epoch_batches(data, order, starts, self.batch_size, crops, self.border)

    def _sees_one_value(self, layer: str, trained: Slice) -> bool:
        """Tell whether a BatchNorm would take statistics of a single value in a batch of one."""
        touched = layer in self.layout.touched(trained)
        return self.profile.lone[layer] and (touched or layer in self.profile.of_batch)

    def _seed(self, seed: int) -> None:
        """Seed the random numbers of layers such as dropout."""
        if next(self.model.parameters()).is_cpu:
            torch.default_generator.manual_seed(seed)
        else:
            torch.manual_seed(seed)  # takes milliseconds, because it records its caller

    def _anchor(
        self, stages: tuple[Stage, ...], given: Mapping[str, Tensor] | None
    ) -> dict[str, Tensor]:
        pulled = self.layout.keys_of(tuple(name for s in stages if s.prox_mu for name in s.layers))
        return {
            key: value.detach().clone() if given is None else given[key].to(value.device)
            for key, value in self.model.named_parameters()
            if key in pulled
        }


def _threshold(stage: Stage, known: Thresholds) -> Threshold | None:
    """Return the clipping threshold of a stage; None if nothing is clipped.

    Nothing is clipped if the stage trains none of the model's layers.
    """
    if not (stage.layers and stage.clip):
        return None
    return known.get((stage.layers, stage.clip)) or Threshold(stage.clip)


@dataclass
class _Passes:
    """The passes of one step: the `backward` that `Objective.gradients` calls for each of them.

    Loss and costs are counted here. The server checks a client's costs against what the stage
    declares.
    """

    model: nn.Module
    layers: Slice
    objective: Objective
    task_loss: Loss
    rule: GradientRule
    loss: Tensor  # summed over samples, beginning with those of earlier steps
    sizes: list[int] = field(default_factory=list)

    def __call__(self, batch: Samples) -> None:
        inputs, targets = batch
        outputs = self.objective.forward(self.model, inputs, self.layers)
        value = (self.objective.loss or self.task_loss)(outputs, targets)
        self.rule.backward(value)
        self.loss = self.loss + value.detach() * len(targets)
        self.sizes.append(len(targets))

    def check(self, stage: Stage) -> None:
        """Raise ValueError if the step computed no gradient, or more than its stage declares."""
        if not self.sizes:
            raise ValueError(
                "a step did not call backward: without it, neither its loss nor its costs are"
                " counted"
            )
        if len(self.sizes) > stage.passes:
            raise ValueError(
                f"passes = {stage.passes}: a step computed {len(self.sizes)} gradients;"
                " declare as many in its Stage"
            )
