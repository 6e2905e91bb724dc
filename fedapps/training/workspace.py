"""What a process needs to work on a run: data, shares, its one model and the model's layout."""

import copy
import dataclasses
import hashlib
from collections import OrderedDict
from collections.abc import Mapping
from functools import cached_property, lru_cache
from threading import Lock

import numpy as np
import torch
from torch import nn

from fedapps import data, models
from fedapps.core.cache import ByteCache
from fedapps.core.config import DEVICE
from fedapps.core.draws import generator
from fedapps.core.errors import RunError
from fedapps.core.memory import keep_freed
from fedapps.core.settings import Settings
from fedapps.data import Share, own_share, shares
from fedapps.data.spec import Normalization
from fedapps.models.grouping import children_by_layer
from fedapps.models.layers import Arrays, Layout, Slice, layout_of, put, take
from fedapps.models.norms import use_batch_statistics
from fedapps.tasks import Task, task_for
from fedapps.training.batches import Samples
from fedapps.training.costs import profile
from fedapps.training.trainer import Trainer

MEBI = 2**20
GPU_HINT = (
    "fedapps run --federation-config 'num-supernodes=4 client-resources-num-cpus=2 "
    "client-resources-num-gpus=0.25'"
)


class Workspace:
    """What stays the same in a run; made from its settings alone, so all processes agree on it.

    A device has a `dataset` of its own, all of which belongs to its `client`.
    """

    def __init__(
        self, settings: Settings, dataset: data.Dataset | None = None, client: int | None = None
    ) -> None:
        keep_freed()
        self.settings = settings
        self.dataset = dataset or _load(settings)
        self.client = client
        found = self.dataset
        self.task: Task = task_for(settings.task, found.inputs, found.targets, found.name)
        self.dataset = dataclasses.replace(
            found, target_values=self.task.values(found.target_values)
        )
        if self.dataset.normalization is None:
            self.dataset = self.dataset.normalized(self._training_samples())
        self.device = pick_device(settings.device)
        self.model: nn.Module = self._build()
        self.layout: Layout = layout_of(
            self.model, settings.head_layers, settings.bn_stats, settings.bn_local
        )
        self.initial: Arrays = take(self.model, self.layout.keys_of(self.layout.names))
        for array in self.initial.values():
            array.flags.writeable = False  # all clients of this process begin with it
        state = self.model.state_dict()
        self._counters = {key: state[key].clone() for key in state.keys() - self.initial.keys()}
        self.model.to(self.device)
        self.model.to(memory_format=torch.channels_last)
        self._clients: ByteCache[Samples] = ByteCache(settings.cache_limit * MEBI, least=1)
        self._lock = Lock()  # split learning runs its clients in threads

    @cached_property
    def shares(self) -> tuple[Share, ...]:
        """The indices of every client's samples; empty with devices, which have their own data."""
        if self.settings.dataset == DEVICE:
            return ()
        return shares(self.dataset.labels, self.dataset.num_train, self.settings)

    @cached_property
    def trainer(self) -> Trainer:
        """The one trainer of this process; it trains the model of the workspace."""
        found, augment = self.dataset, self.settings.augment
        if augment != "none" and not found.inputs.image:
            raise RunError(f'augment = "{augment}": is for images; {found.name} has {found.inputs}')
        dtype = torch.int64 if found.inputs.is_whole else None
        mean, std = (found.normalization or Normalization()).tensors(found.inputs)
        return Trainer(
            self.model,
            self.layout,
            profile(self.model, self.layout, found.shape, dtype),
            loss=self.task.loss,
            batch_size=self.settings.batch_size,
            augment=augment,
            cache_bytes=self.settings.cache_limit * MEBI,
            border=(-mean / std).flatten().to(self.device),
        )

    @cached_property
    def fingerprint(self) -> str:
        """Digest of the initial model, which can differ if processes have other libraries."""
        digest = hashlib.sha256()
        for key, value in self.initial.items():
            digest.update(key.encode() + np.ascontiguousarray(value).tobytes())
        return digest.hexdigest()[:16]

    def reset(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Put the model into its initial state, with `arrays` in it, whatever was done with it.

        It is then as in a new process: in eval mode, its parameters ask for gradients and have
        none, and the counters of BatchNorms, which no array carries, have their initial values.
        """
        self.model.eval().requires_grad_(True)
        self.model.zero_grad()
        state = self.model.state_dict() if self._counters else {}
        for key in state.keys() & self._counters.keys():
            state[key].copy_(self._counters[key])
        put(self.model, self.initial | dict(arrays))

    def restricted(self, layers: Slice) -> "Workspace":
        """Return the workspace of the same run with a model of its own that has `layers` only.

        Split learning needs this, because all clients of one message run in threads at the same
        time. The layers are consecutive. Data, shares and fingerprint are those of the run; the
        model, layout and trainer are new.
        """
        trainer, _ = self.trainer, self.shares  # created before the copy, which shares them
        less = copy.copy(self)
        less.layout = self.layout.restricted(layers)
        names = less.layout.names
        children = [child for name in names for child in children_by_layer(self.model)[name]]
        chain = OrderedDict(
            (name, copy.deepcopy(self.model.get_submodule(name))) for name in children
        )
        less.model = nn.Sequential(chain)
        less.initial = {key: self.initial[key] for key in less.layout.keys_of(names)}
        less.__dict__["fingerprint"] = self.fingerprint
        less.__dict__["trainer"] = dataclasses.replace(
            trainer,
            model=less.model,
            layout=less.layout,
            profile=trainer.profile.restricted(less.model, less.layout),
        )
        return less

    def share(self, client: int) -> Share:
        """Return the indices of a client's samples in the data set.

        On a device, raises `RunError` for any client but the device's own.
        """
        if self.client is None:
            return self.shares[client]
        if client != self.client:
            raise RunError(f"client {client}: this device is client {self.client}")
        size, num_train = len(self.dataset.target_values), self.dataset.num_train
        return own_share(size, num_train, client, self.settings)

    def samples(self, client: int, subset: str) -> Samples:
        """Return a subset of a client's samples: `train`, `test` or `validation`.

        Inputs are [n, *shape], targets [n, ...], both on the workspace's device. They stay in
        memory up to `cache-limit`; then the least recently used ones are dropped.
        """
        key = (client, subset)
        with self._lock:
            if (known := self._clients.get(key)) is not None:
                return known
            samples = self._place(*self.dataset.tensors(getattr(self.share(client), subset)))
            self._clients.put(key, samples, samples[0].nbytes)
            return samples

    @cached_property
    def union(self) -> Samples:
        """The training samples of all clients together, for training on the server itself."""
        return self._place(*self.dataset.tensors(self._training_samples()))

    @cached_property
    def server_samples(self) -> Samples:
        """The server's own samples: a share `server-data` of all training samples.

        The clients keep these samples too.
        """
        everything = self._training_samples()
        size = max(1, round(self.settings.server_data * len(everything)))
        chosen = generator(self.settings.seed, "server-data").permutation(everything)[:size]
        return self._place(*self.dataset.tensors(np.sort(chosen)))

    def _training_samples(self) -> np.ndarray:
        """Return the indices of all training samples, client by client; on a device, its own."""
        if self.client is not None:
            return self.share(self.client).train
        return np.concatenate([share.train for share in self.shares])

    def _place(self, inputs: torch.Tensor, targets: torch.Tensor) -> Samples:
        """Move samples to the device; images channels last, which is up to twice as fast."""
        format_ = torch.channels_last if inputs.dim() == 4 else torch.preserve_format
        return inputs.to(self.device, memory_format=format_), targets.to(self.device)

    def _build(self) -> nn.Module:
        s = self.settings
        outputs = self.task.outputs(self.dataset.targets)
        try:
            model = models.build(s.model, self.dataset.inputs, outputs, s.seed)
        except ValueError as error:
            raise RunError(str(error)) from error
        if s.bn_stats == "batch":
            use_batch_statistics(model)
        return model


@lru_cache(maxsize=1)
def workspace(settings: Settings) -> Workspace:
    """Return this process's workspace for a run; another run's workspace replaces it.

    A new workspace sets the number of torch threads of the process. Raises `RunError` if the model,
    the data set or the GPU is not there.
    """
    torch.set_num_threads(settings.threads)
    return Workspace(settings)


def _load(settings: Settings) -> data.Dataset:
    """Open the run's data set; a server of devices knows only its shape and classes."""
    if settings.dataset == DEVICE:
        return data.declared(DEVICE, *data.specs_of_devices(settings))
    return data.load(settings.dataset, settings.data_root)


def pick_device(name: str) -> torch.device:
    """Return the torch device for the key `device`; raises `RunError` for cuda without a GPU.

    On a GPU, convolutions are set to full float32 and to repeatable bits, as on CPUs. By default,
    cuDNN uses 10-bit mantissas (TF32) and adds up in any order.
    """
    if name == "cuda" and not torch.cuda.is_available():
        raise RunError(
            f'device = "cuda": no GPU is visible here; use "cpu", or give actors one: {GPU_HINT}'
        )
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda":
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cudnn.deterministic = True
    return torch.device(name)
