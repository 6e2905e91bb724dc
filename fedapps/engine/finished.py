"""Open a run directory to use its shared model, or its simulated clients as they were scored.

run = FinishedRun.open(Path("~/fedapps-runs/fedper-digits-s0").expanduser())
client = run.client(7)  # personalized again on its own data, as in the last evaluation
client.predict(inputs)
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import zip_longest
from pathlib import Path

import msgspec
import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file

from fedapps.core import config, log, registry
from fedapps.core.changes import owner
from fedapps.core.errors import RunError, one_line
from fedapps.core.schema import Scalar
from fedapps.core.settings import Settings
from fedapps.engine import checkpoint, evaluations, returned
from fedapps.engine.checkpoint import Checkpoint
from fedapps.engine.clock import COUNTED
from fedapps.engine.fingerprints import NAMES, changed, fingerprints, told
from fedapps.engine.recovery import Recovery
from fedapps.engine.store import CLIENTS, NONE, WITH_STATE, ClientStore, count_states, state_folder
from fedapps.engine.versions import StateVersions
from fedapps.method.flower import BaseClient, BaseStrategy
from fedapps.method.update import ClientUpdate
from fedapps.models.layers import Arrays, as_sent, put
from fedapps.report import directory
from fedapps.report.about import fingerprints_of, pooled_of
from fedapps.report.cells import harmless, original
from fedapps.report.directory import MODEL
from fedapps.training.plan import Plan
from fedapps.training.workspace import Workspace, workspace

SUBSETS = ("train", "test", "validation")
# The first two keys choose a round, which is over; with test samples they would be refused.
# The third is for connections, and its certificates may be gone or on another machine. For the
# fourth, the server would reserve memory.
OVER: dict[str, Scalar] = {
    "keep-best": False, "patience": 0, "channel-tls": "", "checkpoint-every": 0,
}  # fmt: skip
RESCALED = (
    ", and values are scaled by their mean and deviation, so predictions can be others: this run is"
    " of an earlier version, which did not keep its own"
)


def settings_of(folder: Path, changes: Mapping[str, Scalar]) -> Settings:
    """Return the settings to use a run directory again; raises `RunError` if one is invalid.

    `changes` are run-config keys with new values. The GPU of the run can be missing here.
    """
    flat = config.defaults() | config.stored(folder) | dict(changes) | OVER
    if "device" not in changes and flat["device"] == "cuda" and not torch.cuda.is_available():
        flat["device"] = "cpu"
    return config.read(flat)


@dataclass(frozen=True)
class FinishedRun:
    """A run directory with all that an evaluation after its last round, `round`, needs."""

    folder: Path
    space: Workspace
    strategy: BaseStrategy
    round: int
    whole: bool  # whether the state that the method keeps on the server is known, too
    found: Checkpoint | None = None  # the last one, whose arrays the strategy holds, too
    versions: StateVersions = field(default_factory=StateVersions)

    @classmethod
    def open(
        cls, folder: Path, changes: Mapping[str, Scalar] | None = None, trust: str = ""
    ) -> "FinishedRun":
        """Read a run directory: its last checkpoint, or else the model written at the run's end.

        `changes` are run-config keys with new values; `trust` is as in `config.check_code`. Raises
        `RunError` if there is neither, if a file cannot be read, or if the data have other clients
        or classes now.
        """
        config.check_code(folder, trust)
        settings = settings_of(folder, changes or {})
        space = workspace(settings, kept := pooled_of(folder), directory.names(folder))
        strategy: BaseStrategy = registry.strategy_class(settings.strategy)(space)
        then, now = fingerprints_of(folder), fingerprints(strategy)
        for what in changed(then, now):
            lost = what == NAMES["data"] and space.data.pooled and not kept
            log.warning("%s: not as in the run: %s%s", folder, what, RESCALED if lost else "")
        _check_classes(folder, space)
        since = told(then, now)
        why = f"; {since} since the run; put back what was there" if since else ""
        if checkpoint.rounds(folder):
            found = checkpoint.load(folder)
            recovery = Recovery(settings)
            try:
                recovery.restore(folder, found, strategy)
            except RunError as error:
                raise RunError(f"{error}{why}") from error
            return cls(folder, space, strategy, recovery.done, True, found, recovery.versions)
        arrays = _read(folder / MODEL)
        if {k: v.shape for k, v in arrays.items()} != space.layout.shapes:
            raise RunError(f"{folder}: {MODEL} and config.toml do not belong to the same run{why}")
        strategy.arrays.update(arrays)
        rows = directory.lines(folder / "rounds.csv")
        if not rows:
            raise RunError(f"{folder}: no round of this run has finished")
        run = cls(folder, space, strategy, int(rows[-1]["round"]), whole=not strategy.state)
        return replace(run, whole=False) if run.is_partial else run

    @property
    def is_partial(self) -> bool:
        """Whether it is a copy that lacks checkpoints, of which one at least has been written."""
        every = int((config.defaults() | config.stored(self.folder))["checkpoint-every"])
        due = every and (self.round >= every or directory.has_finished(self.folder))
        return bool(due) and self.found is None

    @cached_property
    def stored(self) -> Settings:
        """The settings of the run itself, to which the states of its clients belong."""
        return settings_of(self.folder, {})

    @property
    def initial(self) -> tuple[str, ...]:
        """The layers of the shared model of which a part, such as its norms, is as initialized.

        A single array can be so by itself: the gradient of a bias before a BatchNorm is 0. And a
        part without parameters that train has to be so, such as the layer below an adapter. But
        what never travels, such as statistics with `bn-stats=local`, counts entry by entry.
        """
        before, now, layout = self.space.initial, self.strategy.arrays, self.space.layout
        changed = {key for key, value in now.items() if not np.array_equal(before[key], value)}
        parts = (one for part in layout.part_names for one in layout.part_of(layout.names, part))
        keys = {part: layout.keys_of((part,)) for part in parts}
        untouched = tuple(
            part for part, own in keys.items()
            if changed.isdisjoint(own) and not layout.parameters.isdisjoint(own)
        )  # fmt: skip
        return layout.touched(untouched + layout.layers_of(layout.stays - changed))

    def shared(self) -> torch.nn.Module:
        """Return the shared model; raises `RunError` if the run has not trained one."""
        before, now = self.space.initial, self.strategy.arrays
        if all(np.array_equal(before[key], value) for key, value in now.items()):
            told = f"{self.strategy.settings.strategy} has trained no shared model"
            if self.whole and self.strategy.state.get(COUNTED) == 0:
                told = "no update has counted (docs/time.md), so there is no trained shared model"
            raise RunError(f"{self.folder}: {told}; name a client, for example --client 0")
        put(self.space.model, self.strategy.arrays)
        return self.space.model

    def newcomer_plan(self) -> Plan | None:
        """Return the plan of a client that comes now, after the run; None if it is not known."""
        if not self.whole:
            return None
        settings, new = self.space.settings, self.space.settings.num_clients
        grown = msgspec.structs.replace(settings, num_clients=new + 1)
        strategy = type(self.strategy)(self.space, grown, {new: dict.fromkeys(SUBSETS, 1)})
        if self.found is not None:
            Recovery(grown).restore(self.folder, self.found, strategy)
        return strategy.plan_of_newcomer(self.round, new)

    def client(self, number: int) -> BaseClient:
        """Return a client with the model of its last evaluation.

        Raises `RunError` if there is no such client.
        """
        settings = self.space.settings
        if settings.on_devices:
            raise RunError(
                f"--client {number}: clients of this run are devices, and each keeps its "
                "personalized model in its state-dir; give that instead of the run directory"
            )
        if not 0 <= number < settings.num_clients:
            raise RunError(f"--client {number}: must be 0 to {settings.num_clients - 1}")
        return self.evaluate(number)[0]

    def samples(self, number: int, subset: str) -> tuple[np.ndarray, np.ndarray]:
        """Return a subset of a client's samples as they are in the data, and their targets.

        Raises `RunError` for another subset than train, test or validation, and for what this
        process has no samples of.
        """
        if subset not in SUBSETS:
            raise RunError(f'subset = "{subset}": must be one of {", ".join(SUBSETS)}')
        if self.space.settings.on_devices:
            raise RunError(
                f"--client {number}: clients of this run are devices, which keep their data"
            )
        return self.space.data.unscaled(number, subset)

    def evaluate(self, number: int) -> tuple[BaseClient, ClientUpdate, Plan]:
        """Personalize and score a client; return the client, its update and its plan.

        The client gets the layers that the server sent it in that round, starts from its own saved
        state, and personalizes itself on its own data with the same random numbers. Raises
        `RunError` if the state of the server or of the client is lost.
        """
        name = self.strategy.settings.strategy
        if not self.whole:
            again = "run it again with checkpoint-every=1"
            cure = "copy the whole run" if self.is_partial else again
            raise RunError(
                f"{self.folder}: has no checkpoint, and {name} needs what the server keeps in one; "
                f"{cure}"
            )
        plan = evaluations.plan_of(self.strategy, self.round, number)
        clients = self.space.settings.num_clients
        folder = state_folder(self.folder, number, clients)
        store = ClientStore(folder, owner=owner(self.stored, number))
        version, state = store.load_version(self.round + 1)
        here = StateVersions({number: store.newest(self.round + 1)})
        if lost := (self.versions if self.found else here).lost(number, version):
            raise RunError(
                f"{self.folder}: client {number}: {lost}; it is missing in clients/ or damaged, "
                "or the run is still going on"
            )
        client: BaseClient = registry.client_class(name)(self.space, number, dict(state))
        received = as_sent(returned.download(self.strategy, self.round, number, plan))
        update = client.evaluate_round(plan, received)
        if version == NONE and self.found is None and self._lacks_states(number, client):
            raise RunError(f"{self.folder}: {CLIENTS}/ is missing or not whole; copy the whole run")
        return client, update, plan

    def _lacks_states(self, number: int, client: BaseClient) -> bool:
        """Tell whether states are missing of which no checkpoint knows; this client has none."""
        if self._missing is None:  # an earlier version wrote the summary, or the run ended early
            keeps = client.parts or client.keeps(self.strategy.plan(self.round, number))
            return bool(keeps) and not (self.folder / CLIENTS).exists()
        return self._missing > 0

    @cached_property
    def _missing(self) -> int | None:
        """How many states fewer there are than at the end of the run; None if nobody counted."""
        kept = directory.summary(self.folder).get(WITH_STATE)
        return None if kept is None else kept - count_states(self.folder)


def _check_classes(folder: Path, space: Workspace) -> None:
    """Refuse data with other classes than in the run: a number would be another class.

    Devices do not tell theirs.
    """
    known = directory.names(folder, directory.CLASS_NAMES)
    now = tuple(original(harmless(name)) for name in space.class_names)
    if known and known != now and not space.settings.on_devices:
        place = next(i for i, both in enumerate(zip_longest(known, now)) if len({*both}) > 1)
        was, called = ([*names, "nothing"][min(place, len(names))] for names in (known, now))
        raise RunError(
            f"{folder}: needs the data of the run: class {place} was {was}, and is {called} now;"
            " put back what the run had, or use models exported before"
        )


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
