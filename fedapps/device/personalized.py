"""Use a model after a run, a device's own or one of a simulation: save, load, predict.

A model is one safetensors file. Its header has one text, `fedapps`, which holds the run-config,
what inputs and targets are, class names and normalization as JSON. A file is written whole.

    python -m fedapps predict DIR --input images.npz
"""

from collections.abc import Callable
from itertools import chain
from pathlib import Path

import msgspec
import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from fedapps import data, models
from fedapps.core import config, log, registry
from fedapps.core.data_settings import DEVICE
from fedapps.core.errors import RunError, one_line
from fedapps.core.files import write_whole
from fedapps.core.schema import Scalar
from fedapps.core.words import composed
from fedapps.data.pictures import MOST_PIXELS
from fedapps.data.spec import PLAIN, Normalization, Spec, label_spec
from fedapps.method.flower import BaseClient
from fedapps.models.adapters import merged
from fedapps.models.layers import as_stored
from fedapps.tasks import Task, task_for
from fedapps.training.batches import chunks
from fedapps.training.plan import Plan
from fedapps.training.run_data import RunData
from fedapps.training.workspace import Workspace

FILE = "personalized.safetensors"
# Keys with folders, files, addresses or names of one machine; a model is used without them.
PLACES = (
    "channel-address", "channel-reach", "channel-tls", "data-root", "devices", "federation",
    "initial-model", "resume", "run-name", "runs-dir", "unseen-clients",
)  # fmt: skip
# The errors that a broken file or a stranger's header cause.
_UNREADABLE = (OSError, SafetensorError, LookupError, TypeError, RuntimeError, ValueError, RunError)


class ModelMetadata(msgspec.Struct, frozen=True, rename="kebab"):
    """What a model needs besides its arrays; `client` is None for the shared model.

    `names` are those of the classes or labels; a regression has none, but a `scaling` of its
    targets. `columns` are those of a table, as the key `columns` writes them. `newcomer` says what
    a client does that begins with the shared model now, and `initial` which layers of it no client
    shares.
    """

    client: int | None
    config: dict[str, Scalar]
    inputs: Spec
    targets: Spec
    names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    filling: tuple[float, ...] = ()
    scaling: Normalization = PLAIN
    columns: str = ""
    newcomer: Plan | None = None
    initial: tuple[str, ...] = ()

    @property
    def task(self) -> Task:
        """What the model has learned."""
        task = task_for(str(self.config["task"]), self.inputs, self.targets, "the file")
        return task.scaled(self.scaling)

    @property
    def normalization(self) -> Normalization:
        """How its values are normalized."""
        return Normalization(self.mean, self.std, self.filling)

    @property
    def is_scaled(self) -> bool:
        """Whether it says how values are scaled: with devices, each does so by its own numbers."""
        return (
            self.client is not None or bool(self.mean) or self.inputs.kind in ("images", "tokens")
        )


class Personalized(nn.Module):
    """Maps inputs [n, ...] to the outputs of the model, such as logits; normalizes them first.

    Images are pixels in 0..1, float32 [n, C, H, W]. Numbers come out in the unit of the targets.
    """

    mean: Tensor
    std: Tensor
    target_mean: Tensor
    target_std: Tensor

    def __init__(self, module: nn.Module, about: ModelMetadata) -> None:
        super().__init__()
        self.about = about
        self.module = module
        scales = about.normalization.tensors(about.inputs), about.scaling.tensors(about.targets)
        names = ("mean", "std", "target_mean", "target_std")
        for name, values in zip(names, chain(*scales), strict=True):
            self.register_buffer(name, values, persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the outputs [n, ...]; raises `RunError` for images of another shape."""
        self.about.inputs.check_images(inputs.shape)
        if not self.about.inputs.is_whole:
            inputs = (inputs - self.mean) / self.std
        outputs: Tensor = self.module(self.about.normalization.filled(inputs))
        return outputs * self.target_std + self.target_mean if self.about.scaling.mean else outputs


def save(path: Path, client: BaseClient) -> None:
    """Write the model that `client` predicts with; the old file stays until the new is ready."""
    about, module = metadata(client.workspace, client.client), client.module()
    write_whole(path, packed(merged(module), about), durable=True)


def metadata(space: Workspace, client: int | None) -> ModelMetadata:
    """Describe a model of a run so that it can be built again without the run's data.

    It says nothing of the machine of the run, nor who took no part in the training.
    """
    data_set, settings, usual = space.dataset, space.settings, config.defaults()
    normalization = data_set.normalization or Normalization()
    numbers = tuple(map(str, range(space.task.outputs(data_set.targets).shape[-1])))
    names = (space.class_names or numbers) if space.task.has_names else ()
    without_data = {key: usual[key] for key in PLACES} | {
        "model": models.own.in_app(settings.model),
        "dataset": DEVICE,
        "num-clients": settings.num_clients,
        "task": space.task.name,
        "input-shape": ",".join(map(str, data_set.shape)),
        "num-classes": max(1, len(names)),
        "class-names": settings.class_names if settings.on_devices and names else "",
        "min-available": 1,
        "adapter-rank": 0,
    }
    return ModelMetadata(
        client=client,
        config=dict(settings.flat) | without_data,
        inputs=data_set.inputs,
        targets=data_set.targets,
        names=names,
        mean=normalization.mean,
        std=normalization.std,
        filling=normalization.filling,
        scaling=data_set.scaling or PLAIN,
        columns=data_set.columns or settings.columns,
    )


def load(path: Path) -> Personalized:
    """Read a model from its file, or a device's model from its state folder.

    The model is on the CPU, in eval mode. Raises `RunError` if it is not there or cannot be read.
    """
    given, path = path, path if path.suffix == ".safetensors" else path / FILE
    if not path.is_file():
        raise RunError(
            f"{given}: no model is there; must be a run directory, a .safetensors file, or the"
            f" folder of a device, which writes {FILE} when it is evaluated"
        )
    try:
        with safe_open(path, "pt") as file:
            header = (file.metadata() or {}).get("fedapps", "")
            if not header:  # as in a run directory
                raise RuntimeError("it does not describe its model; of a run, give the directory")
            about = msgspec.json.decode(header, type=ModelMetadata)
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        module = _module(about, sum(value.numel() for value in tensors.values()))
        module.load_state_dict(tensors)
    except _UNREADABLE as error:
        raise RunError(f"{path}: cannot be read ({one_line(str(error))})") from error
    return Personalized(module, about).eval()


def _module(about: ModelMetadata, held: int) -> nn.Module:
    """Build the module of a file that holds so many values. Its settings can be a stranger's.

    So no data set or other file is opened, and RuntimeError refuses a model that is larger than the
    file.
    """
    usual = config.defaults()
    if other := [key for key in about.config if "." not in key and key not in usual]:
        what = f"another version of fedapps, with the key {other[0]}, has written it"
        raise RuntimeError(f"{what}: install the version of the run here")
    flat = usual | about.config | {key: usual[key] for key in PLACES}
    flat |= {"device": "cpu", "dataset": DEVICE, "evaluate-rounds": ""}  # which can be a long list
    flat["model"] = models.of_file(str(flat["model"]))
    if flat["num-classes"] != max(1, len(about.names)):
        raise RuntimeError(f"num-classes = {flat['num-classes']}, but {len(about.names)} names")
    settings, outputs = config.read(flat), about.task.outputs(about.targets)
    if about.task.has_names and outputs.size != len(about.names):
        raise RuntimeError(f"{outputs.size} outputs, but {len(about.names)} names")
    _check_inputs(about)
    wanted = models.size(settings.model, about.inputs, outputs)
    if wanted > held:
        raise RuntimeError(f"the settings ask for {wanted} values, the file has {held}")
    declared = data.declared(DEVICE, about.inputs, about.targets)
    space = Workspace(settings, RunData(settings, declared))
    if about.client is None:
        return space.model
    try:
        made: BaseClient = registry.client_class(settings.strategy)(space, about.client, {})
    except RunError as error:  # of the data, of which there are none here
        what = f"clients/{settings.strategy}.py: setup uses samples; use them in another hook"
        raise RunError(what) from error
    return made.module()


def _check_inputs(about: ModelMetadata) -> None:
    """Refuse a header whose samples are huge, or that cannot normalize them."""
    if min(about.inputs.shape, default=0) < 1 or about.inputs.size > MOST_PIXELS:
        raise RuntimeError(f"samples of shape {about.inputs.shape} are not possible")
    fits = about.normalization.fits(about.inputs)
    if not fits or not about.scaling.fits(about.task.outputs(about.targets)):
        raise RuntimeError("samples or targets cannot be normalized by its means and deviations")


def predict(
    model: Personalized,
    samples: Path,
    copy: bool = False,
    tell: Callable[[str], None] = log.warning,
) -> tuple[np.ndarray, np.ndarray | None]:
    """Return predictions [n, ...] and their probabilities, if there are any, for an .npz file.

    Predictions have the form of the task's targets; probabilities are float32 [n, classes]. The
    samples' key is `images` (for others `inputs`), or `test_images`. Raises `RunError` if they do
    not fit the model, or if it is not scaled; of a file that is the `copy` of a data frame, it
    names rows, not lines. What a user has to know, such as rows that are left out, goes to `tell`.
    """
    about = model.about
    if not about.is_scaled:
        cure = "give a device's state-dir, or `fedapps adopt` the model"
        raise RunError(f"a run on devices does not know how its values are scaled; {cure}")
    gaps, who = bool(about.filling), composed(str(about.config.get("client-column", "")))
    rows = data.unlabelled(samples, about.inputs, about.columns, gaps, copy, who)
    for line in rows.told:
        tell(line)
    none = np.zeros(int(rows.starts[-1]), np.int64)
    asked = data.Dataset("asked", about.inputs, label_spec(1), none, 0, about.normalization, rows)
    normalised, _ = asked.tensors(np.arange(len(none)))
    with torch.no_grad():
        outputs = torch.cat([model.module(chunk) for chunk in chunks(normalised)])
    chances = about.task.probabilities(outputs)
    return about.task.predict(outputs).numpy(), None if chances is None else chances.numpy()


def packed(module: nn.Module, about: ModelMetadata) -> bytes:
    """Return the content of the file; safetensors' own `save_file` does not raise OSError."""
    tensors = as_stored(module.state_dict())
    return save_tensors(tensors, {"fedapps": msgspec.json.encode(about).decode()})
