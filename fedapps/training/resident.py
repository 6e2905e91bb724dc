"""The model of a process, which stays in memory and serves one client after the other."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import torch
from torch import Tensor, nn

from fedapps import models
from fedapps.core.errors import RunError
from fedapps.core.paths import absolute
from fedapps.core.settings import Settings
from fedapps.models.adapters import add_adapters
from fedapps.models.grouping import copied, keys_by_layer
from fedapps.models.initial import start_from
from fedapps.models.layers import Arrays, Layout, Slice, layout_of, put, take
from fedapps.models.norms import use_batch_statistics
from fedapps.training.costs import Profile, profile
from fedapps.training.run_data import RunData
from fedapps.training.sketch import alike, sketch, tell

_tell_once = lru_cache(maxsize=4)(tell)


@dataclass(frozen=True)
class ResidentModel:
    """A module with its layers, its profile and its initial state.

    All clients begin with the arrays `initial`, so these are read-only. `counters` are all else in
    its state, which no array carries: the counters of BatchNorms, and weights that are frozen for
    good. If the run starts from the weights of a file, `source` is
    its SHA-256, and the layers `fresh` are not in it.
    """

    module: nn.Module
    layout: Layout
    profile: Profile
    initial: Arrays
    counters: Mapping[str, Tensor]
    source: str = ""
    fresh: Slice = ()

    @cached_property
    def fingerprint(self) -> str:
        """Digest of the initial model, which can differ if processes have other libraries."""
        digest = hashlib.sha256()
        for key, value in self._values().items():
            digest.update(key.encode() + np.ascontiguousarray(value).tobytes())
        return digest.hexdigest()[:16]

    @cached_property
    def sketch(self) -> str:
        """What of the initial model is alike on all types of processors."""
        return sketch(self._values())

    def check(self, fingerprint: str, other: str) -> None:
        """Raise RuntimeError if the server's initial model is not this one, by digest and sketch.

        Layers that are never sent would then be different from the server's. Only last digits may
        be, of which this warns once.
        """
        if fingerprint == self.fingerprint:
            return
        if not alike(self.sketch, other):
            raise RuntimeError(
                f"the initial model here ({self.fingerprint}) is not the server's "
                f"({fingerprint}): use the same versions of torch and numpy on all machines"
            )
        _tell_once(f"the server's ({self.fingerprint} here, {fingerprint} there)")

    def _values(self) -> Arrays:
        frozen = {k: v.cpu().numpy() for k, v in self.counters.items() if v.is_floating_point()}
        return self.initial | frozen

    def reset(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Put the model into its initial state, with `arrays` in it, whatever was done with it.

        It is then as in a new process: in eval mode, its parameters ask for gradients and have
        none, and the counters of BatchNorms have their initial values.
        """
        self.module.eval()
        for name, parameter in self.module.named_parameters():
            parameter.requires_grad_(name in self.layout.parameters)
        self.module.zero_grad()
        self._count_anew(self.module)
        put(self.module, self.initial | dict(arrays))

    def renew(self, copy: nn.Module) -> None:
        """Put the initial values into a copy of the model, or of some of its layers."""
        self._count_anew(copy)
        put(copy, {key: self.initial[key] for key in copy.state_dict() if key in self.initial})

    def _count_anew(self, module: nn.Module) -> None:
        state = module.state_dict() if self.counters else {}
        for key in state.keys() & self.counters.keys():
            state[key].copy_(self.counters[key])

    def take_frozen(self, model: nn.Module) -> None:
        """Take over what is frozen for good from another model of the same kind."""
        state = model.state_dict()
        for key, value in self.counters.items():
            if value.is_floating_point():
                value.copy_(state[key])

    def restricted(self, layers: Slice) -> "ResidentModel":
        """Return a model of its own that has copies of the consecutive `layers` only."""
        layout = self.layout.restricted(layers)
        module = copied(self.module, layout.names)
        initial = {key: self.initial[key] for key in layout.keys_of(layout.names)}
        facts = self.profile.restricted(module, layout)
        return ResidentModel(module, layout, facts, initial, self.counters)


def resident_model(settings: Settings, data: RunData) -> ResidentModel:
    """Build the initial model of a run for its data set; raises `RunError` if they do not fit."""
    module, inputs = _build(settings, data), data.dataset.inputs
    fresh, source = _start(settings, module)
    _adapt(settings, module)
    layout = layout_of(module, settings.head_layers, settings.bn_stats, settings.bn_local)
    initial = take(module, layout.keys_of(layout.names))
    for array in initial.values():
        array.flags.writeable = False
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.dim() == 4:  # as for images (`RunData`); weights of a Conv3d stay as they are
            tensor.data = tensor.data.to(memory_format=torch.channels_last)
    module.to(data.torch_device)
    state = module.state_dict()  # where the model is, so that no visit copies it there
    counters = {key: value.clone() for key, value in state.items() if key not in initial}
    token = inputs.choices // 2 if inputs.is_whole else None  # the first or last one can be a fill
    facts = profile(module, layout, inputs.shape, token)
    return ResidentModel(module, layout, facts, initial, counters, source, fresh)


def _start(s: Settings, module: nn.Module) -> tuple[Slice, str]:
    """Put the weights of `initial-model` into a model that was made from the seed."""
    if not s.initial_model:
        return (), ""
    return start_from(module, absolute(s.initial_model, "initial-model"), _head(s, module))


def _adapt(s: Settings, module: nn.Module) -> None:
    """Put adapters beside the weights of a model if the run trains these."""
    if s.adapter_rank:
        only = [word.strip() for word in s.adapter_layers.split(",") if word.strip()]
        head = _head(s, module)
        add_adapters(module, s.adapter_rank, s.adapter_alpha, only, head, s.seed)


def _head(s: Settings, module: nn.Module) -> Slice:
    return tuple(keys_by_layer(module))[-s.head_layers :]


def _build(s: Settings, data: RunData) -> nn.Module:
    outputs = data.task.outputs(data.dataset.targets)
    try:
        model = models.build(s.model, data.dataset.inputs, outputs, s.seed)
    except ValueError as error:
        raise RunError(str(error)) from error
    if s.bn_stats == "batch":
        use_batch_statistics(model)
    return model
