"""Holds a method against its twin: what both start from, both runs, and how far they are apart.

A twin is a function of a `World` that returns an `Outcome`. It is written from the method's paper
and from docs/, by somebody who has not read `strategies/` and `clients/`, and uses nothing of this
project but what a `World` has: samples, the order in which an epoch visits them, who is selected,
the initial model, and the values of the keys.
"""

import copy
import csv
import importlib
import io
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from fedapps.core import config
from fedapps.core.draws import generator, sample_clients
from fedapps.serial import run_serial
from fedapps.training.draw import Draw
from fedapps.training.workspace import Workspace
from tests.support.fits import recorded_fits

HERE = Path(__file__).parent
State = dict[str, Tensor]
GENERAL = (
    "num-clients=5 partitioner=dirichlet alpha=0.5 min-samples=6 num-rounds=3 fraction-train=0.6 "
    "evaluate-every=0 finetune-epochs=1 checkpoint-every=0 threads=1 device=cpu "
)
SETTINGS = {  # two for each method; a twin's own SETTINGS are laid over them
    "plain": 'model="tests/twins/models.py:plain" batch-size=8 local-epochs=1 lr=0.1 seed=1',
    "momentum": 'model="tests/twins/models.py:normed" batch-size=7 local-epochs=2 lr=0.05 seed=2 '
    "momentum=0.9 weight-decay=0.01 lr-schedule=cosine",
}


@dataclass
class World:
    """What a twin may use of a run: its data, and the values of its keys in `flat` and `s`."""

    flat: dict

    def __post_init__(self):
        self.s = config.read(self.flat)
        self.space = Workspace(self.s)
        self.layers = {name: self.space.layout.keys[name] for name in self.space.layout.names}
        self.names, self.head = [*self.layers], [*self.layers][-self.s.head_layers :]
        self.body = [name for name in self.names if name not in self.head]
        self.clients = range(self.s.num_clients)
        self.initial = {k: torch.tensor(v) for k, v in self.space.initial.items()}
        self._made = copy.deepcopy(self.space.model)

    def __getitem__(self, key: str):
        """Return the value of a method's key, such as `ditto.lambda`."""
        return self.flat[key]

    def keys(self, layers) -> list[str]:
        """Return the names of the arrays of some layers."""
        return [key for name in layers for key in self.layers[name]]

    def model(self, *states: State) -> nn.Module:
        """Return a new model in eval mode: the initial one with `states` laid over it in turn."""
        made = copy.deepcopy(self._made)
        for state in (self.initial, *states):
            made.load_state_dict(made.state_dict() | state)
        return made.requires_grad_().eval()

    def selected(self, round_: int) -> list[int]:
        """Return the clients that train in a round, in ascending order."""
        return sample_clients(self.s.seed, round_, self.s.num_clients, self.s.fraction_train)

    def data(self, client: int, part: str = "train") -> tuple[Tensor, Tensor]:
        """Return inputs and labels of a part of a client's samples."""
        x, y = self.space.samples(client, part)
        return x.contiguous(), y

    def size(self, client: int) -> int:
        """Return n_i."""
        return len(self.data(client)[1])

    def order(self, phase: str, round_: int, client: int, epoch: int, size: int = 0) -> Tensor:
        """Return the order in which an epoch (from 0 in each round) visits a client's samples."""
        return Draw(self.s.seed, phase, round_, client).order(epoch, size or self.size(client))

    def batches(self, phase, round_, client, epochs, first=0) -> list[tuple[Tensor, Tensor]]:
        """Return the batches of some epochs; the last ones of an epoch can be smaller."""
        x, y = self.data(client)
        orders = [self.order(phase, round_, client, first + epoch) for epoch in range(epochs)]
        return [(x[i], y[i]) for order in orders for i in order.split(self.s.batch_size)]

    def training(self, round_: int, client: int) -> list[tuple[Tensor, Tensor]]:
        """Return the batches of a client's local epochs in a round."""
        return self.batches("train", round_, client, self.s.local_epochs)

    def generator(self, purpose: str, *key: int) -> np.random.Generator:
        """Return the random numbers that a run draws for a purpose."""
        return generator(self.s.seed, purpose, *key)


@dataclass
class Outcome:
    """What a method has come to: the server's model, the clients' states, their test outputs.

    `outputs` are those before and after personalization, [n, classes], of every client.
    """

    server: State
    clients: dict[int, State] = field(default_factory=dict)
    outputs: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)


def twins() -> tuple[str, ...]:
    """Return the methods that have a twin: `tests/twins/x.py` has the function `x`."""
    files = (path.stem for path in HERE.glob("[a-z]*.py"))
    return tuple(sorted({*files} - {"common", "harness", "models", "test_twins"}))


def options(method: str, setting: str, folder: Path) -> dict:
    """Return the run-config of a method in one of the two settings, on 150 images in 4 classes."""
    draws = np.random.default_rng(5)
    labels = np.arange(150) % 4
    images = draws.integers(0, 160, (150, 8, 8)) + 40 * (labels[:, None, None] == np.arange(8) // 2)
    arrays = {"images": images.astype(np.uint8), "labels": labels}
    cuts = {"train": slice(0, 120), "test": slice(120, 150)}
    path = folder / "data.npz"
    np.savez(path, **{f"{part}_{k}": v[cuts[part]] for part in cuts for k, v in arrays.items()})
    own = getattr(_module(method), "SETTINGS", {}).get(setting, "")
    places = f'strategy="{method}" dataset="{path}" runs-dir="{folder}"'
    return config.parse([GENERAL, SETTINGS[setting], *[own] * bool(own), places])


def _module(method):
    return importlib.import_module(f"tests.twins.{method}")


def ours(flat: dict) -> tuple[Outcome, list[dict]]:
    """Run a method on the serial engine; return what it has come to, and its rows of scores."""
    with recorded_fits() as fits, redirect_stdout(io.StringIO()):
        folder = run_serial(flat, keep_going=False, plots=False)
    clients = {one.client: {k: v.clone() for k, v in state.items()} for one, state, _, _ in fits}
    with (folder / "clients.csv").open(encoding="utf-8", newline="") as file:
        rows = [*csv.DictReader(file)]
    return Outcome(load_file(folder / "model.safetensors"), clients), rows


def differences(method: str, setting: str, folder: Path) -> dict[str, float]:
    """Return the largest difference of the server's model, of the clients' states and of scores.

    Scores are the accuracies before and after personalization, and the loss after it.
    """
    flat = options(method, setting, folder)
    mine, rows = ours(flat)
    world = World(flat)
    twin = getattr(_module(method), method)(world)
    found = {"server": apart(mine.server, twin.server), "clients": 0.0, "scores": 0.0}
    for client in mine.clients.keys() | twin.clients.keys():
        states = (one.clients.get(client, {}) for one in (mine, twin))
        found["clients"] = max(found["clients"], apart(*states))
    assert sorted(twin.outputs) == [int(row["client"]) for row in rows]
    for row in rows:
        before, after = twin.outputs[int(row["client"])]
        y = world.data(int(row["client"]), "test")[1]
        right = [float((out.argmax(1) == y).double().mean()) for out in (before, after)]
        told = [float(row[name]) for name in ("accuracy_initial", "accuracy_personalized", "loss")]
        loss = float(nn.functional.cross_entropy(after, y))
        far = max(abs(a - b) for a, b in zip((*right, loss), told, strict=True))
        found["scores"] = max(found["scores"], far)
    return found


def apart(ours: State, twin: State) -> float:
    """Return the largest difference of two states, relative where a value is above 1."""
    assert ours.keys() == twin.keys(), f"only in one: {sorted(ours.keys() ^ twin.keys())}"
    assert all(ours[k].shape == twin[k].shape for k in ours)
    pairs = ((ours[k].double(), twin[k].double()) for k in ours if ours[k].numel())
    return max((float(((a - b) / b.abs().clamp(1)).abs().max()) for a, b in pairs), default=0.0)
