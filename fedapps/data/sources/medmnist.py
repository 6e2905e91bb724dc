"""The data sets of MedMNIST."""

import tempfile
from functools import partial
from pathlib import Path

import numpy as np

from fedapps.data.sources.source import Arrays, Source, downloading


def _medmnist(root: Path, *, name: str, cls: str) -> Arrays:
    """Download a MedMNIST data set in 28x28 pixels: a compressed .npz, which has `val_*`."""
    with downloading(name, root), tempfile.TemporaryDirectory(dir=root) as folder:
        import medmnist

        getattr(medmnist, cls)(split="test", root=folder, download=True)
        with np.load(Path(folder) / f"{name}.npz", allow_pickle=False) as file:
            return dict(file)


def _source(name: str, cls: str) -> Source:
    """Return a source whose mean and std are those of MedMNIST's own examples."""
    return Source(name, 11, (0.5,), (0.5,), partial(_medmnist, name=name, cls=cls))


ORGANAMNIST = _source("organamnist", "OrganAMNIST")
ORGANCMNIST = _source("organcmnist", "OrganCMNIST")
