"""What a process needs to work on a run: its data, its one model, and the trainer of the model."""

from functools import cached_property, lru_cache

import msgspec
import torch

from fedapps.core.draws import sample_attackers
from fedapps.core.errors import RunError
from fedapps.core.memory import keep_freed
from fedapps.core.settings import Settings
from fedapps.data.spec import Normalization, Pooled
from fedapps.models.layers import Slice
from fedapps.training.resident import ResidentModel, resident_model
from fedapps.training.run_data import MEBI, RunData
from fedapps.training.stacked.group import Group
from fedapps.training.trainer import Trainer


class Workspace:
    """What stays the same in a run; made from its settings alone, so all processes agree on it.

    `data` and `resident` have the parts; what methods often use of them is here as well. A device
    brings `data` of its own.
    """

    def __init__(
        self, settings: Settings, data: RunData | None = None, resident: ResidentModel | None = None
    ) -> None:
        keep_freed()
        self.data = data = data or RunData(settings)
        self.settings = settings = data.settings
        self.dataset, self.population, self.samples = data.dataset, data.population, data.samples
        self.task, self.torch_device = data.task, data.torch_device
        self.resident = resident or resident_model(settings, data)
        self.model, self.layout = self.resident.module, self.resident.layout
        self.initial, self.reset = self.resident.initial, self.resident.reset

    @cached_property
    def trainer(self) -> Trainer:
        """The one trainer of this process; it trains the model of the workspace."""
        found, augment = self.dataset, self.settings.augment
        if augment != "none" and not found.inputs.image:
            raise RunError(f'augment = "{augment}": is for images; {found.name} has {found.inputs}')
        mean, std = (found.normalization or Normalization()).tensors(found.inputs)
        return Trainer(
            self.resident.profile,
            batch_size=self.settings.batch_size,
            augment=augment,
            cache_bytes=self.settings.cache_limit * MEBI,
            task=self.task,
            border=(-mean / std).flatten().to(self.torch_device),
        )

    @property
    def class_names(self) -> tuple[str, ...]:
        """What data or keys call the classes or labels; () if nothing does."""
        s, found = self.settings, self.dataset.names
        own = s.names if s.class_names and s.on_devices else ()
        return (found or own) if self.task.has_names else ()

    @property
    def feature_shape(self) -> tuple[int, ...]:
        """The shape of a sample's features, which the head gets; () if the model cannot be cut."""
        return self.trainer.profile.shapes.get(self.layout.head[0], ())

    @property
    def has_templates(self) -> bool:
        """Whether samples can be scored without the head, by the mean features of each class."""
        return self.layout.can_be_cut and self.task.has_classes

    @cached_property
    def attackers(self) -> frozenset[int]:
        """The clients that are attackers in a simulation; raises `RunError` on devices."""
        s = self.settings
        if s.attackers and s.on_devices:
            raise RunError(f"attackers = {s.attackers:g}: only in a simulation, not on devices")
        return sample_attackers(s.seed, self.population.training, s.attackers)

    @cached_property
    def group(self) -> Group:
        """Does for several clients at once what the trainer does for one."""
        return Group(self.trainer, self.settings.group, self.initial)

    def another(self, model: str = "", seed: int | None = None) -> ResidentModel:
        """Return a model beside the run's own: of another kind, or with other initial weights.

        It is made for the same samples, and new in each call. It has no adapters, and its weights
        are drawn even if the run starts from those of a file. Raises `RunError` if it is not known,
        or not for such samples.
        """
        s = self.settings
        own = {"model": model or s.model, "seed": s.seed if seed is None else seed}
        drawn = msgspec.structs.replace(s, **own, initial_model="", adapter_rank=0)
        return resident_model(drawn, self.data)

    def restricted(self, layers: Slice) -> "Workspace":
        """Return the workspace of the same run with a model of its own that has `layers` only.

        The layers are consecutive, and the data are the same. Split learning needs this, because
        all clients of one message run in threads at the same time.
        """
        return Workspace(self.settings, self.data, self.resident.restricted(layers))


@lru_cache(maxsize=1)
def workspace(
    settings: Settings, pooled: Pooled | None = None, known: tuple[str, ...] = ()
) -> Workspace:
    """Return this process's workspace for a run; another run's workspace replaces it.

    Of a run that is over, `pooled` is what it found in its data, and `known` are its clients. A new
    workspace sets the number of torch threads of the process. Raises `RunError` if the model, the
    data set or the GPU is not there.
    """
    torch.set_num_threads(settings.threads)
    return Workspace(settings, RunData(settings, pooled=pooled, known=known))
