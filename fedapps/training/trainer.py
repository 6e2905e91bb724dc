"""The one trainer: it executes the stages of a plan on a client's samples in memory.

Frozen layers are not computed again and again. Their parameters get no gradient, and the leading
frozen layers (the prefix) run only once per stage: every epoch then starts from their cached
outputs, which also serve later rounds as long as the prefix stays the same. The costs always count
one pass per stage, even if the outputs were cached already, so that figures do not depend on which
process had them in its cache.
"""

import hashlib
import math
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from fedapps.core.cache import ByteCache
from fedapps.core.words import some
from fedapps.models.layers import Slice, in_sequence
from fedapps.models.modes import eval_mode, freeze_all_but
from fedapps.tasks import CLASSIFICATION, Task
from fedapps.training.augment import windows
from fedapps.training.batches import Samples, batch_of
from fedapps.training.clipping import SampleGradients, Threshold, Thresholds
from fedapps.training.costs import Profile, TrainingStats, is_cacheable
from fedapps.training.draw import Draw
from fedapps.training.evaluation import features
from fedapps.training.objective import PLAIN, Objective
from fedapps.training.optimizers import optimizer
from fedapps.training.plan import Stage
from fedapps.training.stage_run import StageRun


@dataclass
class Trainer:
    """Runs stages on one model, that of the profile, whose parameters change in place."""

    profile: Profile
    batch_size: int
    augment: str = "none"
    cache_bytes: int = 0
    border: Tensor | None = None  # value of the padding, see augment.py
    task: Task = CLASSIFICATION

    def __post_init__(self) -> None:
        self.model, self.layout = self.profile.model, self.profile.layout
        # of frozen prefixes, by data and prefix: a digest of its layers, and its outputs
        self._features: ByteCache[tuple[bytes, Tensor]] = ByteCache(self.cache_bytes)

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
        cannot be executed as it says (`check`, `Stage.passes`), or an `anchor` with too little.
        """
        done, epoch, known = TrainingStats(), 0, thresholds or {}
        self.model.zero_grad()  # a client that failed can have left gradients
        self.seed(draw.torch_seed())
        anchor = self._anchor(stages, objective.anchor)
        objective = replace(objective, loss=objective.loss or self.task.loss)
        for stage in stages:
            if self.trains(stage, objective):
                prefix = self.cached_prefix(stage.layers, len(data[0]), objective.start)
                if prefix:  # counts even if it is cached
                    done.macs += len(data[0]) * self.profile.forward_macs(prefix)
                inputs = self.inputs(data[0], prefix, cache_key)
                layers, threshold = self.layout.names[len(prefix) :], threshold_of(stage, known)
                run = StageRun(self.profile, stage, objective, layers, anchor, threshold, done)
                run.take_steps(self._batches((inputs, data[1]), draw, epoch, run))
            epoch += stage.epochs
        eval_mode(self.model)
        return done

    def trains(self, stage: Stage, objective: Objective = PLAIN) -> bool:
        """Tell whether a stage does anything: it has epochs, and parameters to train."""
        return bool(stage.epochs and (self.layout.count(stage.layers) or objective.parameters))

    def check(self, stage: Stage) -> None:
        """Raise ValueError if the model's layers cannot be trained as the stage says."""
        optimizer([], stage)
        self.freeze_all_but(stage.layers)
        if stage.clip and stage.clip.mode == "sample":
            SampleGradients(self.model).close()

    def freeze_all_but(self, trained: Slice) -> dict[str, nn.Parameter]:
        """Freeze all other layers (eval mode, no gradients); return the parameters to train."""
        return freeze_all_but(self.model, self.layout, trained)

    def inputs(self, samples: Tensor, prefix: Slice, cache_key: Hashable) -> Tensor:
        """Return the steps' inputs: the outputs of the prefix, or the samples if it is empty."""
        if not prefix:
            return samples
        if cache_key is None:
            return features(self.model, samples, prefix)
        key, state = (cache_key, prefix), digest(self.model, self.layout.keys_of(prefix))
        before, outputs = self._features.get(key) or (b"", samples)
        if before != state:
            outputs = features(self.model, samples, prefix)
            self._features.put(key, (state, outputs), outputs.nbytes)
        return outputs

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
            if not is_cacheable(in_sequence(self.model, (name,))):
                break
            prefix += (name,)
        shapes, names = self.profile.shapes, self.layout.names
        while prefix and 4 * size * math.prod(shapes[names[len(prefix)]]) > self.cache_bytes:
            prefix = prefix[:-1]
        return prefix

    def starts(self, size: int, stage: Stage) -> list[int]:
        """Return where the batches of an epoch begin in its order of `size` samples.

        A batch of one sample is left out if a BatchNorm could not normalize it. If the stage says
        how many `batches` there are, others are repeated in its place.
        """
        trained = self.layout.touched(self.layout.slice(stage.layers))
        measure = {*trained, *self.profile.of_batch}  # their BatchNorms take statistics of a batch
        needs_two = any(self.profile.lone[name] for name in self.layout.names if name in measure)
        least = max(stage.least, 1 + needs_two)
        starts = range(0, size, self.batch_size)
        own = [start for start in starts if min(self.batch_size, size - start) >= least]
        count = stage.batches if own and stage.batches else len(own)
        return [own[index % len(own)] for index in range(count)]

    def _batches(self, data: Samples, draw: Draw, first: int, run: StageRun) -> Iterator[Samples]:
        """Yield shuffled batches; skip and count those that are too small to train on."""
        stage, size = run.stage, len(data[1])
        starts = self.starts(size, stage)
        whole = stage.batches or math.ceil(size / self.batch_size)
        for epoch in range(first, first + stage.epochs):
            order = draw.order(epoch, size).to(data[1].device)
            augments = self.augment == "crop-flip"
            crops = windows(*draw.crops(epoch, size), data[0]) if augments else ()
            run.done.skipped += whole - len(starts)
            for start in starts:
                part = slice(start, start + self.batch_size)
                yield batch_of(data, order[part], [of[part] for of in crops], self.border)

    def seed(self, seed: int) -> None:
        """Seed the random numbers of layers such as dropout."""
        if next(self.model.parameters()).is_cpu:
            torch.default_generator.manual_seed(seed)
        else:
            torch.manual_seed(seed)  # takes milliseconds, because it records its caller

    def _anchor(
        self, stages: tuple[Stage, ...], given: Mapping[str, Tensor] | None
    ) -> dict[str, Tensor]:
        pulled = self.layout.keys_of(tuple(name for s in stages if s.prox_mu for name in s.layers))
        now = {key: value for key, value in self.model.named_parameters() if key in pulled}
        check_anchor(given, now)
        near = now if given is None else {key: given[key] for key in now}
        # copies, because what is given can be parameters that are trained
        return {k: near[k].detach().to(value.device, copy=True) for k, value in now.items()}


def check_anchor(anchor: Mapping[str, Tensor] | None, pulled: Iterable[str]) -> None:
    """Raise ValueError if `Objective.anchor` lacks a tensor for what the proximal term pulls."""
    if anchor is None:
        return
    missing = [key for key in pulled if key not in anchor]
    if missing:
        raise ValueError(
            f"anchor has no {some(missing)}: prox_mu pulls all parameters of its stage's layers; "
            "give them all, or leave anchor out"
        )
    for key in pulled:
        if not isinstance(anchor[key], Tensor):
            kind = type(anchor[key]).__name__
            raise ValueError(
                f"anchor has {key} as a {kind}: must be a tensor, as torch.from_numpy(...) gives"
            )


def threshold_of(stage: Stage, known: Thresholds) -> Threshold | None:
    """Return the clipping threshold of a stage; None if nothing is clipped.

    Nothing is clipped if the stage trains none of the model's layers.
    """
    if not (stage.layers and stage.clip):
        return None
    return known.get((stage.layers, stage.clip)) or Threshold(stage.clip)


def digest(model: nn.Module, keys: Iterable[str]) -> bytes:
    """Return a digest of some entries of the model's state."""
    state, result = model.state_dict(), hashlib.blake2b(digest_size=16)
    for key in keys:
        result.update(state[key].detach().cpu().numpy().tobytes())
    return result.digest()
