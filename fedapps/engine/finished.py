"""A run directory, looked at again: its shared model, its simulated clients as they were scored.

run = FinishedRun.open(Path("~/fedapps-runs/fedper-digits-s0").expanduser())
client = run.client(7)  # personalized again, on its own data, as the last evaluation did
client.predict(images)
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file

from fedapps.core import config, registry
from fedapps.core.config import DEVICE
from fedapps.core.errors import RunError, one_line
from fedapps.core.schema import Scalar
from fedapps.core.settings import Settings
from fedapps.engine import checkpoint
from fedapps.engine.recovery import Recovery
from fedapps.engine.store import ClientStore
from fedapps.engine.versions import StateVersions
from fedapps.method.client import BaseClient
from fedapps.method.strategy import BaseStrategy
from fedapps.method.update import ClientUpdate
from fedapps.models.layers import Arrays, as_sent, put
from fedapps.report import directory
from fedapps.report.directory import MODEL
from fedapps.training.plan import Plan
from fedapps.training.workspace import Workspace, workspace

# Choosing a round by scores is over; on test samples it would be refused, scoring must not be.
# Nobody connects any more, so certificates may be gone or on another machine.
OVER: dict[str, Scalar] = {"keep-best": False, "patience": 0, "channel-tls": ""}


def settings_of(folder: Path, changes: Mapping[str, Scalar]) -> Settings:
    """Return the settings of a run directory, to look at it again; raises `RunError`.

    `changes` are keys of its run-config that are others now.
    """
    flat = config.defaults() | config.stored(folder) | dict(changes) | OVER
    if flat["device"] == "cuda" and not torch.cuda.is_available():
        flat["device"] = "cpu"
    return config.read(flat)


@dataclass(frozen=True)
class FinishedRun:
    """A run directory with all that an evaluation after its last round, `round`, begins from."""

    folder: Path
    space: Workspace
    strategy: BaseStrategy
    round: int
    whole: bool  # whether what the method keeps on the server beside the model is there, too
    versions: StateVersions = field(default_factory=StateVersions)

    @classmethod
    def open(cls, folder: Path, changes: Mapping[str, Scalar] | None = None) -> "FinishedRun":
        """Read a run directory as its last checkpoint, or else its end, has left it.

        `changes` are keys of its run-config that are others now. Raises `RunError` if it has
        neither, or if it cannot be read.
        """
        settings = settings_of(folder, changes or {})
        space = workspace(settings)
        strategy: BaseStrategy = registry.strategy_class(settings.strategy)(space)
        if checkpoint.rounds(folder):
            found = checkpoint.load(folder)
            recovery = Recovery(settings)
            recovery.restore(folder, found, strategy)
            return cls(folder, space, strategy, recovery.done, True, recovery.versions)
        arrays = _read(folder / MODEL)
        if {k: v.shape for k, v in arrays.items()} != space.layout.shapes:
            raise RunError(f"{folder}: {MODEL} and config.toml are not of the same run")
        strategy.arrays.update(arrays)
        rows = directory.lines(folder / "rounds.csv")
        if not rows:
            raise RunError(f"{folder}: no round of this run has finished")
        return cls(folder, space, strategy, int(rows[-1]["round"]), whole=not strategy.state)

    @property
    def initial(self) -> tuple[str, ...]:
        """The layers of the shared model with entries that are as they were initialised."""
        before, now, layout = self.space.initial, self.strategy.arrays, self.space.layout
        same = {key for key, value in now.items() if np.array_equal(before[key], value)}
        return tuple(name for name in layout.names if same.intersection(layout.keys_of((name,))))

    def shared(self) -> torch.nn.Module:
        """Return the server's model; raises `RunError` if the run has trained none there."""
        before, now = self.space.initial, self.strategy.arrays
        if all(np.array_equal(before[key], value) for key, value in now.items()):
            raise RunError(
                f"{self.folder}: {self.strategy.settings.strategy} trains no shared model; "
                "name a client, as --client 0"
            )
        put(self.space.model, self.strategy.arrays)
        return self.space.model

    def client(self, number: int) -> BaseClient:
        """Return a client with the model that it was scored with last.

        Raises `RunError` if there is no such client.
        """
        settings = self.space.settings
        if settings.dataset == DEVICE:
            raise RunError(
                f"--client {number}: clients of this run are devices, each has its personalized "
                "model in its state-dir; give that instead of the run directory"
            )
        if not 0 <= number < settings.num_clients:
            raise RunError(f"--client {number}: must be 0 to {settings.num_clients - 1}")
        return self.score(number)[0]

    def score(self, number: int) -> tuple[BaseClient, ClientUpdate, Plan]:
        """Personalize and score a client; return it, its figures, and the plan that it followed.

        It gets what the server sent it then, starts from what it keeps, and personalizes itself on
        its own data with the same random numbers. Raises `RunError` if the server's part is lost or
        what the client keeps.
        """
        name = self.strategy.settings.strategy
        if not self.whole:
            raise RunError(
                f"{self.folder}: has no checkpoint, and {name} needs what the server keeps; "
                "run it again with checkpoint-every=1"
            )
        plan = self.strategy.evaluation_plan(self.round, number)
        store = ClientStore(self.folder / "clients" / str(number))
        version, state = store.load_version(self.round + 1)
        if lost := self.versions.lost(number, version):
            raise RunError(
                f"{self.folder}: client {number}: {lost}; it is missing in clients/ or damaged, "
                "or the run is still going on"
            )
        client: BaseClient = registry.client_class(name)(self.space, number, dict(state))
        received = as_sent(self.strategy.download(self.round, number, plan))
        update = client.score_round(plan, received)
        return client, update, plan


def _read(path: Path) -> Arrays:
    if not path.is_file():
        raise RunError(
            f"{path}: no such file; a run writes it at its end, so this one has not finished"
        )
    try:
        arrays: Arrays = load_file(path)
    except (OSError, SafetensorError) as error:
        raise RunError(f"{path}: cannot be read ({one_line(str(error))})") from error
    return arrays
