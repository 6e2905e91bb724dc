"""Fixtures of devices: the data of each, its node-config, and runs on the serial engine."""

from types import SimpleNamespace

import numpy as np
import pytest

from fedapps.core import config
from fedapps.serial import run_serial
from fedapps.training.workspace import Workspace
from tests.device.helpers import DEVICES, RUN
from tests.support.devices import node_configs


@pytest.fixture(scope="module")
def union(tmp_path_factory, make_npz):
    """One data set, partitioned; and the file of each client's part of it."""
    folder = tmp_path_factory.mktemp("union")
    path = make_npz(folder / "all.npz")
    options = f'dataset="{path}" num-clients={DEVICES} alpha=10.0 batch-size=8 fraction-train=1.0'
    space = Workspace(config.read(config.parse([options])))
    images, labels = space.dataset.rows, space.dataset.labels
    for client in space.population.training:
        share = space.population.share(client)
        parts = {"train": share.train, "test": share.test}
        arrays = {f"{part}_images": images.read(rows) for part, rows in parts.items()}
        arrays |= {f"{part}_labels": labels[rows] for part, rows in parts.items()}
        np.savez(folder / f"{client}.npz", **arrays)
    return SimpleNamespace(folder=folder, options=options)


@pytest.fixture
def nodes(union, tmp_path):
    """Node-configs of the devices, which a test may change."""
    return node_configs([union.folder / f"{client}.npz" for client in range(DEVICES)], tmp_path)


@pytest.fixture
def device_run(flat_config, no_plots, nodes):
    """Return run(*run_config, nodes=) -> run directory, on devices on the serial engine."""

    def run(*run_config, nodes=nodes):
        return run_serial(flat_config(RUN, *run_config), node_configs=nodes)

    return run
