"""Fixtures that all tests share: tiny runs on the serial engine, and what they leave behind."""

import argparse
import csv
import json
import os
import signal
import textwrap
from itertools import compress
from operator import not_
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
from flwr.supercore.task_identity import TaskIdentity
from hypothesis import HealthCheck, settings
from safetensors.numpy import load_file

from fedapps.core import config
from fedapps.data.sources.scikit_learn import DIGITS
from fedapps.launcher import flwr as launcher_flwr
from fedapps.launcher import superlink
from fedapps.report import report
from fedapps.report.report import Report
from fedapps.serial import run_serial
from fedapps.split import channel, session
from fedapps.split import strategy as split_strategy
from fedapps.training.workspace import Workspace
from tests.support import ROOT
from tests.support.clock import Clock
from tests.support.fits import recorded_fits
from tests.support.tiny import BASE

# No files beside the sources, and no failure because the machine is busy.
settings.register_profile(
    "fedapps",
    database=None,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("fedapps")
# A shell that starts pytest with `&` lets it, and all processes of tests, ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)
torch.set_num_threads(1)  # as in a run; else what makes no run pays for threads of tiny models

ONLY_WHEN_ASKED_FOR = ("deployment", "long", "thorough")  # with -m


def pytest_collection_modifyitems(config, items):
    """Leave out what takes many minutes, unless the expression of `-m` names it."""
    left_out = [mark for mark in ONLY_WHEN_ASKED_FOR if mark not in config.option.markexpr]
    is_left_out = [any(map(item.get_closest_marker, left_out)) for item in items]
    config.hook.pytest_deselected(items=[*compress(items, is_left_out)])
    items[:] = compress(items, map(not_, is_left_out))


@pytest.fixture(autouse=True, scope="session")
def flower_identity():
    """Flower's messages can be made only where a task is known; its processes set it themselves."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 0, 0


@pytest.fixture(autouse=True, scope="session")
def own_home(tmp_path_factory):
    """A home folder of the tests: they read and write none of the user's, but for caches."""
    with pytest.MonkeyPatch.context() as patch:
        caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        patch.setenv("XDG_CACHE_HOME", caches)  # such as fonts that matplotlib has found
        patch.setenv("HOME", str(tmp_path_factory.mktemp("own-home")))
        yield


@pytest.fixture(scope="session")
def data_root(tmp_path_factory):
    """Folder of data sets, shared by the tests of one process: `digits` has every third image."""
    root = tmp_path_factory.mktemp("data")
    thinned = {name: array[::3] for name, array in DIGITS.make(root).items()}
    np.savez(root / "digits.npz", **thinned)
    return root


@pytest.fixture
def flat_config(tmp_path, data_root):
    """Return flat(*run_config): the tiny run-config with options laid over it; later ones win."""

    def flat(*run_config):
        folders = f'runs-dir="{tmp_path / "runs"}" data-root="{data_root}"'
        return config.parse([BASE, folders, *run_config])

    return flat


@pytest.fixture
def no_plots(monkeypatch):
    """Runs draw no pictures, no page and no last table, which take longer than a tiny run."""
    monkeypatch.setattr(Report, "_plot", lambda report: None)
    monkeypatch.setattr(Report, "draw_page", lambda report, left=None: None)
    monkeypatch.setattr(report, "print_summary", lambda *summary: None)


@pytest.fixture
def serial_run(flat_config, no_plots):
    """Return run(*run_config, **arguments) -> run directory, on the serial engine, no plots.

    The tiny base is BASE; every positional argument is a --run-config option, later ones win;
    the others are those of `run_serial`. Runs of one test that start in the same second get
    different directories.
    """

    def run(*run_config, **arguments):
        return run_serial(flat_config(*run_config), **arguments)

    return run


@pytest.fixture
def fits():
    """Record every local training: (client, its state afterwards, request, update)."""
    with recorded_fits() as records:
        yield records


# Ray neither joins a cluster that somebody has started here, nor ends workers because others need
# memory, nor gives up a process that starts slowly.
RAY_ALONE = {
    "RAY_ADDRESS": "local",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_agent_register_timeout_ms": "600000",
    "RAY_gcs_server_request_timeout_seconds": "600",
    "RAY_memory_monitor_refresh_ms": "0",
    "RAY_raylet_start_wait_time_s": "600",
    "RAY_worker_register_timeout_seconds": "600",
}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A Flower home of its own for runs with `launch`; its SuperLink ends with the module's tests.

    Whatever else runs on the machine makes no difference but time (`patience`, `RAY_ALONE`).
    """
    folder = tmp_path_factory.mktemp("flower")
    paths = [str(ROOT / "tests" / "support" / "patience"), os.environ.get("PYTHONPATH")]
    # not in `folder`: the paths of Ray's sockets may have 107 characters
    with TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as ray:
        own = {"RAY_TMPDIR": ray, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        with pytest.MonkeyPatch.context() as patch:
            for key, value in (RAY_ALONE | own).items():
                patch.setenv(key, value)
            yield folder
        superlink.stop(folder)


@pytest.fixture
def clock(monkeypatch):
    """The clock of split learning's rounds and streams, which stands until the test moves it."""
    made = Clock()
    made.rule(monkeypatch, channel, session, split_strategy)
    return made


@pytest.fixture
def sessions(monkeypatch):
    """The rounds of split learning that have begun, the last one last."""
    seen = []

    class Noted(session.Session):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            seen.append(self)

    monkeypatch.setattr(split_strategy, "Session", Noted)
    return seen


@pytest.fixture(scope="session")
def read_csv():
    """Return read(folder, name) -> the rows of a table of a run as dicts of texts."""

    def read(folder, name):
        with (folder / name).open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))

    return read


@pytest.fixture(scope="session")
def untimed_rounds(read_csv):
    """Return read(folder) -> rounds.csv as dicts of texts without seconds, for comparing runs."""

    def read(folder):
        rows = read_csv(folder, "rounds.csv")
        return [{key: text for key, text in row.items() if key != "seconds"} for row in rows]

    return read


@pytest.fixture(scope="session")
def read_rounds(read_csv):
    """Return read(folder) -> rounds.csv as a list of dicts: numbers, None where empty, phase."""

    def value(key, text):
        if text == "":
            return None
        return text if key == "phase" else float(text)

    def read(folder):
        return [{k: value(k, v) for k, v in row.items()} for row in read_csv(folder, "rounds.csv")]

    return read


@pytest.fixture(scope="session")
def read_summary():
    """Return read(folder) -> summary.json of a run."""
    return lambda folder: json.loads((folder / "summary.json").read_text("utf-8"))


@pytest.fixture(scope="session")
def read_model():
    """Return read(folder) -> the shared model of a run, arrays by name."""
    return lambda folder: load_file(folder / "model.safetensors")


@pytest.fixture(scope="session")
def workspace_of():
    """Return make(folder) -> the workspace of a run, made anew from its config.toml."""
    return lambda folder: Workspace(config.read(config.parse([str(folder / "config.toml")])))


@pytest.fixture(scope="session")
def make_npz():
    """Return make(path, train=, test=, classes=, side=, **replaced) -> path of an own data set.

    Class k is a bright square at its own place in noise: a model learns it in one epoch. An array
    given by its key replaces the made one; None leaves the key out.
    """

    def make(path, train=96, test=24, classes=3, side=8, seed=0, **replaced):
        draws = np.random.default_rng(seed)
        arrays = {}
        for part, size in (("train", train), ("test", test)):
            labels = np.arange(size) % classes
            images = draws.integers(0, 60, (size, side, side))
            for image, label in zip(images, labels, strict=True):
                image[2 * label : 2 * label + 3, 2 * label : 2 * label + 3] += 180
            arrays[f"{part}_images"] = images.astype(np.uint8)
            arrays[f"{part}_labels"] = labels
        arrays |= replaced
        np.savez(path, **{key: value for key, value in arrays.items() if value is not None})
        return path

    return make


@pytest.fixture(scope="session")
def tiny_npz(tmp_path_factory, make_npz):
    """Run-config of 120 images of 8x8 pixels in 3 classes, for runs in a fraction of a second."""
    path = make_npz(tmp_path_factory.mktemp("own") / "tiny.npz")
    return f'dataset="{path}" min-samples=4 alpha=10.0 batch-size=8'


@pytest.fixture(scope="session")
def parse():
    """Return parse(command, *words) -> the options of a command of the command line."""

    def parsed(command, *words):
        parser = argparse.ArgumentParser()
        command.add_arguments(parser)
        return parser.parse_args(words)

    return parsed


@pytest.fixture
def flwr(tmp_path, monkeypatch):
    """Return a function that puts a script in the place of the `flwr` program."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for module in (superlink, launcher_flwr):
        monkeypatch.setattr(module, "bin_dir", lambda: folder)

    def put(script):
        (folder / "flwr").write_text(f"import sys, time\n{textwrap.dedent(script)}")

    return put
