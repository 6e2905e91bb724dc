"""Use a model after a run, a device's own or one of a simulation: save, load, predict, export.

A model is one safetensors file. Its header has one text, `fedapps`, which holds the run-config,
input shape, class names and normalization as JSON. A file is written completely or not at all.

    python -m fedapps predict DIR --input images.npz
    python -m fedapps export DIR --output model.pt2
"""

import copy
import importlib.util
import math
import warnings
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from fedapps import data, models
from fedapps.core import config, registry
from fedapps.core.config import DEVICE
from fedapps.core.errors import RunError, one_line
from fedapps.core.files import write_whole
from fedapps.data.pictures import MOST_PIXELS
from fedapps.data.spec import Normalization, Spec, image_spec, label_spec
from fedapps.engine.finished import FinishedRun
from fedapps.method.flower import BaseClient
from fedapps.training.batches import chunks
from fedapps.training.workspace import Workspace

FILE = "personalized.safetensors"


class ModelMetadata(msgspec.Struct, frozen=True, rename="kebab"):
    """What a model needs besides its arrays; `client` is None for the shared model."""

    client: int | None
    config: dict[str, config.Scalar]
    shape: tuple[int, ...]
    names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def inputs(self) -> Spec:
        """What a sample is."""
        return image_spec(self.shape)

    @property
    def normalization(self) -> Normalization:
        """How its values are normalized."""
        return Normalization(self.mean, self.std)


class Personalized(nn.Module):
    """Maps pixels in 0..1, float32 [n, C, H, W], to logits [n, classes]; normalizes them first."""

    mean: Tensor
    std: Tensor

    def __init__(self, module: nn.Module, about: ModelMetadata) -> None:
        super().__init__()
        self.about = about
        self.module = module
        mean, std = about.normalization.tensors(about.inputs)
        self.register_buffer("mean", mean, persistent=False)
        self.register_buffer("std", std, persistent=False)

    def forward(self, pixels: Tensor) -> Tensor:
        """Return logits."""
        logits: Tensor = self.module((pixels - self.mean) / self.std)
        return logits


def save(path: Path, client: BaseClient) -> None:
    """Write the model that `client` predicts with; the old file stays until the new is ready."""
    about, module = metadata(client.workspace, client.client), client.module()
    write_whole(path, _packed(module, about), durable=True)


def of_run(run: FinishedRun, client: int | None) -> Personalized:
    """Return a client's model of a finished run, or the shared one if `client` is None.

    The model is on the CPU and in eval mode. Raises `RunError` if the run has no such model.
    """
    module = run.shared() if client is None else run.client(client).module()
    own = copy.deepcopy(module).cpu()  # a copy, because the workspace uses its model again
    return Personalized(own, metadata(run.space, client)).eval()


def metadata(space: Workspace, client: int | None) -> ModelMetadata:
    """Describe a model of a run so that it can be built again without the run's data."""
    data_set, settings = space.dataset, space.settings
    normalization = data_set.normalization or Normalization()
    if not data_set.inputs.image:
        raise RunError(f"{data_set.name}: {data_set.inputs}: only models of images can be stored")
    on_devices = settings.dataset == DEVICE
    without_data = {
        "dataset": DEVICE,
        "input-shape": ",".join(map(str, data_set.shape)),
        "num-classes": data_set.classes,
        "class-names": settings.class_names if on_devices else "",
        "min-available": 1,
    }
    return ModelMetadata(
        client=client,
        config=dict(settings.flat) | without_data,
        shape=data_set.shape,
        names=settings.names if on_devices else tuple(map(str, range(data_set.classes))),
        mean=normalization.mean,
        std=normalization.std,
    )


def load(path: Path) -> Personalized:
    """Read a model from its file, or a device's model from its state folder.

    The model is on the CPU and in eval mode. Raises `RunError` if there is none, or if it cannot be
    read.
    """
    if path.suffix != ".safetensors":
        path = path / FILE
    if not path.is_file():
        raise RunError(
            f"{path}: no such file; a device writes it when a run evaluates it; check the path"
        )
    try:
        with safe_open(path, "pt") as file:
            about = msgspec.json.decode(
                (file.metadata() or {}).get("fedapps", ""), type=ModelMetadata
            )
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        module = _module(about, sum(value.numel() for value in tensors.values()))
        module.load_state_dict(tensors)
    except (OSError, SafetensorError, msgspec.DecodeError, RuntimeError, ValueError) as error:
        raise RunError(f"{path}: cannot be read ({one_line(str(error))})") from error
    return Personalized(module, about).eval()


def _module(about: ModelMetadata, held: int) -> nn.Module:
    """Build the module of a file that holds so many values. Its settings can be a stranger's.

    So no data set is opened, and RuntimeError refuses a model that is larger than the file.
    """
    flat = config.defaults() | about.config | {"device": "cpu", "dataset": DEVICE}
    if flat["num-classes"] != len(about.names):
        raise RuntimeError(f"num-classes = {flat['num-classes']}, but {len(about.names)} names")
    settings = config.read(flat)
    _check_images(about, settings.shape)
    wanted = models.size(settings.model, settings.shape, settings.num_classes)
    if wanted > held:
        raise RuntimeError(f"the settings ask for {wanted} values, the file has {held}")
    space = Workspace(settings)
    if about.client is None:
        return space.model
    module: nn.Module = registry.client_class(settings.strategy)(space, about.client, {}).module()
    return module


def _check_images(about: ModelMetadata, shape: tuple[int, ...]) -> None:
    """Refuse a header whose image size is huge or not that of the model, or a bad normalization."""
    if about.shape != shape or math.prod(shape) > MOST_PIXELS:
        raise RuntimeError(f"images of shape {about.shape}, but input-shape = {shape}")
    if not about.mean or not about.normalization.fits(about.inputs):
        raise RuntimeError(f"mean = {about.mean} and std = {about.std} cannot normalize images")


def predict(model: Personalized, images: Path) -> np.ndarray:
    """Return the class probabilities, float32 [n, classes], of images in an .npz file.

    The images' key is `images` or `test_images`. Raises `RunError` if they do not fit the model.
    """
    about = model.about
    rows = data.unlabelled(images, about.inputs)
    none = np.zeros(int(rows.starts[-1]), np.int64)
    asked = data.Dataset("asked", about.inputs, label_spec(1), none, 0, about.normalization, rows)
    normalised, _ = asked.tensors(np.arange(len(none)))
    with torch.no_grad():
        logits = torch.cat([model.module(chunk) for chunk in chunks(normalised)])
    return logits.softmax(1).numpy()


def save_predictions(path: Path, probabilities: np.ndarray, names: tuple[str, ...]) -> None:
    """Write labels (int64 [n]), probabilities (float32 [n, classes]) and class names to an .npz."""

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:
            np.savez(
                file,
                labels=probabilities.argmax(1),
                probabilities=probabilities,
                class_names=np.array(names),
            )

    write_whole(path, write)


def export(model: Personalized, path: Path) -> None:
    """Write the model as .safetensors, .pt2 (`torch.export`) or .onnx, as the suffix says.

    Models in .pt2 and .onnx take pixels in 0..1, float32 [n, C, H, W], with any batch size n.
    Raises `RunError` for another suffix, a missing package, or a file that cannot be written.
    """
    writers = {".safetensors": _safetensors, ".pt2": _program, ".onnx": _onnx}
    if path.suffix not in writers:
        raise RunError(f"--output {path}: must end in {', '.join(writers)}")
    if path.suffix == ".onnx":
        for package in ("onnx", "onnxscript"):
            if importlib.util.find_spec(package) is None:
                raise RunError(f"--output {path}: needs {package}; pip install onnx onnxscript")
    write_whole(path, lambda temporary: writers[path.suffix](model, temporary))


def _safetensors(model: Personalized, path: Path) -> None:
    path.write_bytes(_packed(model.module, model.about))


def _program(model: Personalized, path: Path) -> None:
    batch = {"pixels": {0: torch.export.Dim("batch")}}
    program = torch.export.export(model, (_example(model),), dynamic_shapes=batch)
    with path.open("wb") as file, warnings.catch_warnings():
        # channels-last weights are a problem only if they are not on the CPU, and ours are
        warnings.filterwarnings("ignore", "No complete tensor found")
        torch.export.save(program, file)  # given a name, it demands a suffix of its own


def _onnx(model: Personalized, path: Path) -> None:
    batch = {"pixels": {0: torch.export.Dim("batch")}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program: Any = torch.onnx.export(
            model,
            (_example(model),),
            input_names=["pixels"],
            output_names=["logits"],
            dynamic_shapes=batch,
            dynamo=True,
            verbose=False,
        )
    program.save(path)


def _example(model: Personalized) -> Tensor:
    return torch.rand(2, *model.about.shape, generator=torch.Generator().manual_seed(0))


def _packed(module: nn.Module, about: ModelMetadata) -> bytes:
    """Return the content of the file; safetensors' own `save_file` does not raise OSError."""
    tensors = {
        key: value.detach().cpu().clone(memory_format=torch.contiguous_format)
        for key, value in module.state_dict().items()
    }
    return save_tensors(tensors, {"fedapps": msgspec.json.encode(about).decode()})
