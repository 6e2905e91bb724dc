"""A device's personalized model, for use outside of runs: one file, prediction, export.

The file is a safetensors file with one text in its header, `fedapps`: run-config, input shape,
class names and normalisation as JSON. One file is either there as a whole or not at all.

    python -m fedapps predict --state-dir DIR --input images.npz
    python -m fedapps export --state-dir DIR --output model.pt2
"""

import importlib.util
import warnings
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from fedapps import data
from fedapps.core import config, registry
from fedapps.core.errors import RunError, one_line
from fedapps.core.files import write_whole
from fedapps.method.client import BaseClient
from fedapps.training.batches import chunks
from fedapps.training.workspace import Workspace

FILE = "personalized.safetensors"


class ModelMetadata(msgspec.Struct, frozen=True, rename="kebab"):
    """What a personalized model needs beside its arrays."""

    client: int
    config: dict[str, config.Scalar]
    shape: data.Shape
    names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]


class Personalized(nn.Module):
    """Pixels in 0..1, float32 [n, C, H, W], to logits [n, classes]; normalises them first."""

    mean: Tensor
    std: Tensor

    def __init__(self, module: nn.Module, about: ModelMetadata) -> None:
        super().__init__()
        self.about = about
        self.module = module
        self.register_buffer("mean", torch.tensor(about.mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(about.std).view(-1, 1, 1), persistent=False)

    def forward(self, pixels: Tensor) -> Tensor:
        """Return logits."""
        logits: Tensor = self.module((pixels - self.mean) / self.std)
        return logits


def save(path: Path, client: BaseClient) -> None:
    """Write the model that `client` predicts with; the old one stays until the new one is there."""
    space = client.workspace
    about = ModelMetadata(
        client=client.client,
        config=dict(space.settings.flat),
        shape=space.dataset.shape,
        names=space.settings.names,
        mean=space.dataset.mean,
        std=space.dataset.std,
    )
    module = client.module()
    write_whole(path, lambda temporary: _save_tensors(module, about, temporary), durable=True)


def load(state_dir: Path) -> Personalized:
    """Read a device's personalized model, in eval mode on the CPU.

    Raises `RunError` if there is none or if it cannot be read.
    """
    path = state_dir / FILE
    if not path.is_file():
        raise RunError(
            f"{path}: no such file; a device writes it when a run evaluates it: check --state-dir"
        )
    try:
        with safe_open(path, "pt") as file:
            about = msgspec.json.decode(
                (file.metadata() or {}).get("fedapps", ""), type=ModelMetadata
            )
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        settings = config.read(config.defaults() | about.config | {"device": "cpu"})
        space = Workspace(settings)
        module = registry.client_class(settings.strategy)(space, about.client, {}).module()
        module.load_state_dict(tensors)
    except (OSError, SafetensorError, msgspec.DecodeError, RuntimeError) as error:
        raise RunError(f"{path}: cannot be read ({one_line(str(error))})") from error
    return Personalized(module, about).eval()


def predict(model: Personalized, images: Path) -> np.ndarray:
    """Return the class probabilities, float32 [n, classes], of images in an .npz.

    Its key is `images` or `test_images`. Raises `RunError` if they do not fit the model.
    """
    about = model.about
    pixels = data.unlabelled(images, about.shape, len(about.names))
    normalised, _ = pixels.tensors(np.arange(len(pixels.labels)))
    with torch.no_grad():
        logits = torch.cat([model.module(chunk) for chunk in chunks(normalised)])
    return logits.softmax(1).numpy()


def save_predictions(path: Path, probabilities: np.ndarray, names: tuple[str, ...]) -> None:
    """Write labels (int64 [n]), probabilities (float32 [n, classes]) and class names."""

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
    """Write the model as .safetensors, .pt2 (`torch.export`) or .onnx; the batch may have any size.

    The latter two take pixels in 0..1, float32 [n, C, H, W]. Raises `RunError`.
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
    _save_tensors(model.module, model.about, path)


def _program(model: Personalized, path: Path) -> None:
    batch = {"pixels": {0: torch.export.Dim("batch")}}
    program = torch.export.export(model, (_example(model),), dynamic_shapes=batch)
    with path.open("wb") as file:  # torch.export.save wants its own suffix in a name
        torch.export.save(program, file)


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


def _save_tensors(module: nn.Module, about: ModelMetadata, path: Path) -> None:
    tensors = {
        key: value.detach().cpu().clone(memory_format=torch.contiguous_format)
        for key, value in module.state_dict().items()
    }
    save_file(tensors, path, {"fedapps": msgspec.json.encode(about).decode()})
