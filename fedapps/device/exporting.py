"""Write a model for use elsewhere: as arrays, as a program of torch.export, or as ONNX.

python -m fedapps export DIR --output model.pt2
"""

import importlib.util
import warnings
from io import BytesIO
from pathlib import Path
from typing import Any

import torch

from fedapps.core.errors import RunError, one_line
from fedapps.core.files import write_whole
from fedapps.device.personalized import Personalized, packed
from fedapps.models.own import random_samples

BATCH = {"inputs": {0: torch.export.Dim("batch")}}


def export(model: Personalized, path: Path) -> None:
    """Write the model as .safetensors, .pt2 (`torch.export`) or .onnx, as the suffix says.

    Models in .pt2 and .onnx take what `Personalized` takes, with any batch size n.
    Raises `RunError` for another suffix, a missing package, a model that torch cannot trace or
    ONNX cannot express, or a file that cannot be written.
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
    path.write_bytes(packed(model.module, model.about))


def _program(model: Personalized, path: Path) -> None:
    saved = BytesIO()  # if torch itself cannot write a file, it ends the process
    with warnings.catch_warnings():
        # channels-last weights are a problem only if they are not on the CPU, and ours are
        warnings.filterwarnings("ignore", "No complete tensor found")
        torch.export.save(_traced(model), saved)
    path.write_bytes(saved.getbuffer())


def _onnx(model: Personalized, path: Path) -> None:
    about, traced = model.about, _traced(model)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program: Any = torch.onnx.export(
                traced,
                input_names=["pixels" if about.inputs.image else "inputs"],
                output_names=["logits" if about.task.has_classes else "outputs"],
                dynamic_shapes=BATCH,
                dynamo=True,
                verbose=False,
            )
    except Exception as error:
        cause: BaseException = error  # torch says in the innermost what is wrong
        while cause.__cause__:
            cause = cause.__cause__
        told = f"ONNX cannot express this model ({one_line(str(cause))})"
        raise RunError(f"--output: {told}; export .pt2 or .safetensors") from error
    program.save(path)


def _traced(model: Personalized) -> torch.export.ExportedProgram:
    try:
        example = random_samples(model.about.inputs, 2, torch.Generator().manual_seed(0))
        with warnings.catch_warnings():
            # a GRU notes its weights again while it is traced, and they are the same
            warnings.filterwarnings("ignore", "The tensor attributes? .* assigned during export")
            program = torch.export.export(model, (example,), dynamic_shapes=BATCH)
    except Exception as error:  # of any kind, in whose first line torch says what is wrong
        needs = ".pt2 and .onnx need a model that torch can trace for any number of samples"
        first = one_line(str(error).strip().partition("\n")[0])
        cure = "in forward, write x.shape[0] for len(x), or export .safetensors"
        raise RunError(f"--output: {needs} ({type(error).__name__}: {first}); {cure}") from error
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # it has the folder of this program
    return program
