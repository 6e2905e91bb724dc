"""What the benchmarks share: options, a folder, settings of the papers, data, a trainer, time."""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedapps import models
from fedapps.core.errors import RunError
from fedapps.core.files import write_npz
from fedapps.data.spec import Spec, image_spec
from fedapps.launcher.outcome import LaunchResult
from fedapps.models.layers import layout_of
from fedapps.training.costs import profile
from fedapps.training.trainer import Trainer

ROOT = Path(__file__).parent.parent
IMAGES = image_spec((3, 32, 32))
DATA = "~/fedapps-data"
Samples = tuple[torch.Tensor, torch.Tensor]


def given(about: str | None, **options: Any) -> argparse.Namespace:
    """Parse the command line; `options` are the options' defaults, which give their types."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=about, formatter_class=formatter)
    for name, default in options.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    return parser.parse_args()


def in_folder(measure: Callable[[Path], int | None]) -> int:
    """Measure in a temporary folder; return the exit status, which is 1 after a `RunError`."""
    try:
        with tempfile.TemporaryDirectory(prefix="fedapps-") as folder:
            return measure(Path(folder)) or 0
    except RunError as error:
        print(f"error: {error}")
        return 1


def setting(name: str) -> str:
    """Return the path of a run-config of the papers."""
    return str(ROOT / "experiments" / "configs" / f"{name}.toml")


def timed(work: Callable[..., Any], *arguments: Any, **named: Any) -> tuple[float, Any]:
    """Call a function; return the seconds that it takes and what it returns."""
    begin = time.perf_counter()
    result = work(*arguments, **named)
    return time.perf_counter() - begin, result


def completed(result: LaunchResult) -> None:
    """End the program if a run failed."""
    if not result.completed:
        raise SystemExit(f"error: {result.error}")


def write_images(path: Path, labels: np.ndarray, tests: int) -> Path:
    """Write random images of 8 x 8 with these labels, the first `tests` of them as test samples."""
    images = np.random.default_rng(0).integers(0, 256, (len(labels), 8, 8), np.uint8)
    test = {"test_images": images[:tests], "test_labels": labels[:tests]}
    write_npz(path, {"train_images": images, "train_labels": labels, **test})
    return path


def random_samples(count: int, classes: int) -> Samples:
    """Return random images of 3 x 32 x 32 and labels."""
    draws = torch.Generator().manual_seed(0)
    images = torch.randn(count, 3, 32, 32, generator=draws)
    return images, torch.randint(classes, (count,), generator=draws)


def trainer_of(
    name: str,
    classes: int,
    batch: int,
    cache_bytes: int = 0,
    inputs: Spec = IMAGES,
    device: str | torch.device = "cpu",
) -> Trainer:
    """Return the trainer of a new model for such samples."""
    model = models.build(name, inputs, Spec((classes,)), seed=0).to(device)
    model.to(memory_format=torch.channels_last)
    facts = profile(model, layout_of(model, 1, "shared", False), inputs.shape)
    return Trainer(facts, batch, cache_bytes=cache_bytes)
