"""The data of a run in one process: the data set, its population, and tensors of their samples."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from threading import Lock

import msgspec
import numpy as np
import torch

from fedapps import data
from fedapps.core.cache import ByteCache
from fedapps.core.data_settings import DEVICE
from fedapps.core.draws import generator
from fedapps.core.settings import Settings
from fedapps.data import population
from fedapps.data.spec import PLAIN, Pooled
from fedapps.tasks import Task, specs_of_devices, task_for
from fedapps.training.batches import Samples
from fedapps.training.torch_device import pick_torch_device

MEBI = 2**20


class RunData:
    """Gives samples as tensors: inputs [n, *shape], targets [n, ...], both on `torch_device`.

    `task` says what is learned of them, and `settings` how many clients there are. `pooled` is what
    comes from the samples of all clients that train, such as mean and deviation of the values; None
    if nothing does. When a run is over, what it found is given, and as `known` the names of its
    clients, because its data can be others now.
    By default, the data set is that of the settings. A device has a `dataset` of its own, all of
    which belongs to its `client`.
    """

    def __init__(
        self,
        settings: Settings,
        dataset: data.Dataset | None = None,
        client: int | None = None,
        pooled: Pooled | None = None,
        known: Sequence[str] = (),
    ) -> None:
        self.settings = settings
        found = dataset or _load(settings, pooled)
        about = found.name, found.names, found.truths
        task = task_for(settings.task, found.inputs, found.targets, *about)
        values = task.values(found.target_values)
        found = replace(found, targets=task.learned(found.targets), target_values=values)
        if client is None:
            self.population = population.partitioned(found, settings, known)
        else:
            self.population = population.of_device(found, settings, client)
        if not settings.num_clients:  # everybody whom the data name
            everyone = len(self.population.training) + len(self.population.held_out)
            self.settings = msgspec.structs.replace(settings, num_clients=everyone)
        if pooled:
            found = replace(found, normalization=pooled.normalization, scaling=pooled.scaling)
        scales = task.scales and found.scaling is None
        if scales or found.normalization is None:
            indices = self._training_indices()
            found = found if found.normalization else found.normalized(indices)
            found = found.scaled(indices) if scales else found
            if client is None and found.normalization:
                rules = (found.columns, found.target_column)
                pooled = Pooled(found.normalization, found.scaling, *rules)
        self.pooled = pooled
        self.task: Task = task.scaled(found.scaling or PLAIN).leading(settings.metric)
        self.dataset = found
        self.torch_device = pick_torch_device(settings.device)
        self._cache: ByteCache[Samples] = ByteCache(settings.cache_limit * MEBI, least=1)
        self._lock = Lock()  # split learning runs its clients in threads

    def samples(self, client: int, subset: str) -> Samples:
        """Return a subset of a client's samples: `train`, `test` or `validation`.

        They stay in memory up to `cache-limit`; then the least recently used ones are dropped.
        """
        key = (client, subset)
        with self._lock:
            if (known := self._cache.get(key)) is not None:
                return known
            samples = self._tensors(getattr(self.population.share(client), subset))
            self._cache.put(key, samples, sum(values.nbytes for values in samples))
            return samples

    def unscaled(self, client: int, subset: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the same samples as they are in the data: [n, ...], and their targets [n, ...]."""
        indices = getattr(self.population.share(client), subset)
        assert self.dataset.rows is not None
        return self.dataset.rows.read(indices), self.dataset.target_values[indices]

    @cached_property
    def union(self) -> Samples:
        """The training samples of all clients together, for training on the server itself."""
        return self._tensors(self._training_indices())

    @cached_property
    def server_samples(self) -> Samples:
        """The server's own samples: a share `server-data` of all training samples.

        The clients keep these samples too.
        """
        everything = self._training_indices()
        size = max(1, round(self.settings.server_data * len(everything)))
        chosen = generator(self.settings.seed, "server-data").permutation(everything)[:size]
        return self._tensors(np.sort(chosen))

    def _training_indices(self) -> np.ndarray:
        """Return the indices of all training samples, client by client."""
        share = self.population.share
        return np.concatenate([share(client).train for client in self.population.training])

    def _tensors(self, indices: np.ndarray) -> Samples:
        """Return samples on the torch device; images channels last, up to twice as fast."""
        inputs, targets = self.dataset.tensors(indices)
        format_ = torch.channels_last if inputs.dim() == 4 else torch.preserve_format
        inputs = inputs.to(self.torch_device, memory_format=format_)
        return inputs, targets.to(self.torch_device)


def _load(settings: Settings, pooled: Pooled | None) -> data.Dataset:
    """Open the run's data set; a server of devices knows only its shape and classes.

    Of a run that is over, the columns are those that it has `pooled`: a table can have others now.
    """
    if settings.on_devices:
        return data.declared(DEVICE, *specs_of_devices(settings))
    form = data.Form.of(settings)
    if pooled and pooled.columns:
        target = pooled.target_column or form.target_column
        form = replace(form, columns=pooled.columns, target_column=target)
    return data.load(settings.dataset, settings.data_root, form)
