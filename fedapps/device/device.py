"""A device: a SuperNode with data of its own, and a state folder for its personal layers.

It is started with `--node-config 'client-id=7 data="/path/train.npz" state-dir="/path/state"'`.
Only this user can read the state folder. In it, each method and model has a folder with the
client's state (`engine/store.py`) and with `run.json`, which names the run that wrote it last.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from threading import Lock

import msgspec
import torch
from torch import Tensor, nn

from fedapps import data
from fedapps.core import log
from fedapps.core.certificates import given_above
from fedapps.core.changes import folder_name, owner
from fedapps.core.config import LAST, defaults, tables_in_use
from fedapps.core.errors import RunError, told_to_server
from fedapps.core.files import remove_left_over, stamp, write_whole
from fedapps.core.settings import TABLES, Settings
from fedapps.core.signing import SignedModel
from fedapps.device import initial, personalized, spending, trained
from fedapps.device.claims import claim, private
from fedapps.device.node_config import NodeConfig
from fedapps.engine.store import EARLIER_RUN, TRAINED_ON, ClientStore, data_changed
from fedapps.method.flower import BaseClient
from fedapps.tasks import specs_of_devices
from fedapps.training.run_data import RunData
from fedapps.training.workspace import Workspace
from fedapps.wire import health
from fedapps.wire.hello import Hello
from fedapps.wire.requests import RoundInfo

_making = Lock()  # two workspaces made at the same time would draw from the same generator
_stamps = dict["Device", tuple[object, ...]]()  # of the files from which workspaces were made


class StateRun(msgspec.Struct, frozen=True):
    """File `run.json`: the run that a state belongs to, and the device's client id in that run.

    `run` is the run's random id, because another run can have a directory of the same name. `data`
    is the fingerprint of the device's data, which never leaves it; `split` is how they are split.
    """

    run: str
    client: int
    attempt: int = 0  # how often the run had been resumed
    data: str = ""
    split: str = ""  # not known

    @property
    def name(self) -> str:
        """The name of the run in messages."""
        return f"run {self.run}{f' (resumption {self.attempt})' if self.attempt else ''}"


class Device(NodeConfig):
    """A SuperNode with data of its own, as its node-config describes it."""

    def hello(self, settings: Settings, model: SignedModel | None = None) -> Hello:
        """Say which client this is, how many samples it has and how it is, or why it cannot join.

        The initial `model` of the run is kept for its messages. The server checks what the device
        says about itself (`wire/health.py`).
        """
        answer = self._joined(settings, model)
        certificate = given_above("--root-certificates", beside="--superlink")
        about = health.of_this_machine(self.state_dir, (certificate,))
        return msgspec.structs.replace(answer, health=about)

    def _joined(self, settings: Settings, model: SignedModel | None) -> Hello:
        try:
            _check_dataset(settings)
            if self.client >= settings.num_clients:
                most = settings.num_clients - 1
                raise RunError(f"client-id = {self.client}: must be 0 to {most} (num-clients)")
            spending.check(settings.dp, self.state_dir, self.budget, self.delta)
            claim(self.state_dir)
            initial.keep(settings, model, self.state_dir, self.model_key)
            share = device_workspace(settings, self).population.share(self.client)
        except RunError as error:
            if (problem := told_to_server(error)) != str(error):
                log.info("client %s: %s", self.client, error)
            return Hello(client=self.client, problem=problem)
        return Hello(
            client=self.client,
            cuda=torch.cuda.is_available(),
            train=len(share.train),
            test=len(share.test),
            validation=len(share.validation),
        )

    def store(self, space: Workspace, info: RoundInfo) -> "DeviceStore":
        """Return the store of this client's state in a run.

        A new run keeps or resets the state of an earlier run, according to `client-state`. A
        resumed run gets the state of the last round that no resumption has undone. Runs that
        differ, for example, in `head-layers` or in the method's own keys have separate states,
        because other layers can be personal in them, which an earlier run has promised to leave
        here. Raises `RunError` if another client has its state in the same folder, and before
        anything is touched if the run begins here beyond the budget.
        """
        settings = space.settings
        values = defaults() | dict(settings.flat)
        tables = tables_in_use(values) - TABLES.keys()  # also that of a method to build on
        own = {key: v for key, v in values.items() if key.partition(".")[0] in tables}
        about = [space.layout.shapes, space.layout.head, own, settings.bn_local, settings.bn_stats]
        digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:8]
        model = folder_name(settings.model)  # which can be a path, and comes from the server
        folder = self.state_dir / f"{settings.strategy}-{model}-{digest}"
        run = info.run_id or info.run_dir
        last, own_draw = settings.split == LAST, f"{settings.seed} {self.client}"
        split = f"{settings.test_fraction:g} {LAST if last else own_draw}"
        now = StateRun(run, self.client, info.attempt, space.dataset.digest, split)
        store = DeviceStore(folder, info.needed, owner(settings, self.client), run=now)
        before = store.state_run()
        if before != now:
            spending.check(settings.dp, self.state_dir, self.budget, self.delta)
        claim(self.state_dir)
        private(folder)
        if before == now:
            return store
        remove_left_over(self.state_dir)
        whole = space.dataset.num_train == len(space.dataset.target_values)
        changed = before and before.data not in ("", now.data)
        samples = space.dataset, space.population.share(self.client)
        drawn = whole and before and (before.split not in ("", split) or (changed and not last))
        drawn = drawn or (whole and changed and trained.tests(folder, *samples))
        if before and before.run == run:
            if before.client != self.client:
                raise RunError(
                    f'state-dir = "{self.state_dir}": is also that of client {before.client}; '
                    "every device needs one of its own"
                )
            if info.attempt < before.attempt:
                raise RunError(
                    f"this message is from attempt {info.attempt} of the run, which has been"
                    f" resumed since then (attempt {before.attempt})"
                )
            if info.attempt > before.attempt:  # it may have been away for several resumptions
                store.roll_back(min(info.resumed[before.attempt :]))
            if changed:
                log.warning("client %s: %s", self.client, data_changed(drawn))
                store.note_other_data(drawn)
        else:
            if drawn:
                told = "its data, or the split, have changed since its last run"
                log.warning("client %s: %s%s", self.client, told, TRAINED_ON)
            self._begin(replace(store, owner=""), settings.client_state)
        if last and (drawn or not before or before.data != now.data):
            trained.note(folder, *samples)
        write_whole(folder / "run.json", msgspec.json.encode(now), durable=True)
        return store

    def _begin(self, store: "DeviceStore", client_state: str) -> None:
        """Begin a new run, and log which state of an earlier run was found."""
        version = store.begin(from_newest=client_state == "keep")
        found = "none" if version is None else f"the state of round {version} of an earlier run"
        log.info("client %s: %ss state; found %s", self.client, client_state, found)


@dataclass(frozen=True)
class DeviceStore(ClientStore):
    """The store of a device in `run`; it also writes the personalized model for use after the run.

    A process may still be training for a run that has ended, or has been resumed meanwhile. It then
    writes nothing, because the run that owns the folder now would go on from that state.
    """

    run: StateRun = field(kw_only=True)

    @property
    def durable(self) -> bool:
        """It is: the next run can go on from it."""
        return True

    def state_run(self) -> StateRun | None:
        """Return the run that the state belongs to, or None if that is not known."""
        path = self.folder / "run.json"
        try:
            return msgspec.json.decode(path.read_bytes(), type=StateRun)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            raise RunError(f"{path}: cannot be read ({error}); delete it") from error

    def save(self, round_: int, state: Mapping[str, Tensor]) -> None:
        """Write the state after `round_`; raises `RunError` if another run has the folder."""
        self._check_run()
        super().save(round_, state)

    def advice(self, round_: int) -> str:
        """If training began from an earlier run's state, say how to drop it, and where it is."""
        if self.newest(round_) != EARLIER_RUN:
            return ""
        return f'; client-state = "reset" drops the old state that it began from, {self.folder}'

    def save_personalized(self, client: BaseClient) -> None:
        """Write the personalized model that the client has just been scored with.

        If personalization diverged, the model is useless, and the old file stays. Raises `RunError`
        if another run owns the folder now.
        """
        self._check_run()
        path = self.folder.parent / personalized.FILE
        if broken := not_finite(client.module()):
            log.warning("personalization diverged (%s): %s is not written", broken, path)
        else:
            personalized.save(path, client)

    def _check_run(self) -> None:
        """Raise `RunError` if another run, or a resumption of this run, owns the folder now."""
        found = self.state_run()
        if found and found != self.run:
            raise RunError(
                f"{self.folder}: {found.name} uses it now, so nothing more of {self.run.name} is "
                "written; let one run at a time use the same method and model on a device"
            )


def not_finite(module: nn.Module) -> str:
    """Name a tensor of a module that has NaN or infinite values; "" if there is none."""
    found = module.state_dict().items()
    return next((key for key, value in found if not torch.isfinite(value).all()), "")


@lru_cache(maxsize=64)  # a SuperNode needs one; in the serial engine a process needs several
def _make_workspace(settings: Settings, device: Device) -> Workspace:
    form = data.Form.of(settings, settings.names)
    own = data.of_device(device.data, *specs_of_devices(settings), form)
    run = initial.own(settings, device.state_dir, device.model_key)
    space = Workspace(run, RunData(run, own, device.client))
    for note in [*own.told, *space.population.told]:  # which can hold values: only here
        log.info("note: %s", note)
    return space


def device_workspace(settings: Settings, device: Device) -> Workspace:
    """Return a device's workspace with its own data; raises `RunError` if the data does not fit.

    It is made anew if the data, or the initial model, have changed since the last time.
    """
    _check_dataset(settings)
    torch.set_num_threads(settings.threads)
    with _making:
        now = stamp(device.data), stamp(initial.copy(settings, device.state_dir, device.model_key))
        if _stamps.setdefault(device, now) != now:
            _make_workspace.cache_clear()  # old data would only take memory
            _stamps[device] = now
        return _make_workspace(settings, device)


def _check_dataset(settings: Settings) -> None:
    """Raise `RunError` for a run with other data: a device trusts no path in its settings."""
    if not settings.on_devices:
        raise RunError(
            f'it has its own data, which needs dataset = "device"; the run has "{settings.dataset}"'
        )
