"""A device: a SuperNode with data of its own, and a folder where its personal layers live.

It is started with `--node-config 'client-id=7 data="/path/train.npz" state-dir="/path/state"'`.
Below the state folder, which nobody else may read, each method and model has a folder with the
client's state (`engine/store.py`) and `run.json`, which says in which run it was written last.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from threading import Lock

import msgspec
import torch
from torch import Tensor, nn

from fedapps import data
from fedapps.core import log
from fedapps.core.config import DEVICE, defaults
from fedapps.core.errors import RunError
from fedapps.core.files import remove_left_over, write_whole
from fedapps.core.paths import absolute
from fedapps.core.schema import Scalar
from fedapps.core.settings import Settings
from fedapps.device import personalized
from fedapps.engine.store import EARLIER_RUN, ClientStore
from fedapps.method.client import BaseClient
from fedapps.training.workspace import Workspace
from fedapps.wire.hello import Hello
from fedapps.wire.requests import RoundInfo

KEYS = ("client-id", "data", "state-dir")
EXAMPLE = """--node-config 'client-id=7 data="/path/train.npz" state-dir="/path/state"'"""
_STATE = re.compile(r"\w+-.+-[0-9a-f]{8}")  # strategy, model, layers: see `Device.store`
_making = Lock()  # two workspaces at the same time would draw from one generator


class StateRun(msgspec.Struct, frozen=True):
    """File `run.json`: the run that a state belongs to, and the client that it was in it.

    `run` is the run's random id: a directory of the same name may be another run's.
    """

    run: str
    client: int
    attempt: int = 0  # how often the run had been resumed

    @property
    def name(self) -> str:
        """The run in a message."""
        return f"run {self.run}{f' (resumption {self.attempt})' if self.attempt else ''}"


@dataclass(frozen=True)
class Device:
    """What the node-config of a SuperNode with data of its own says."""

    client: int
    data: Path
    state_dir: Path

    @classmethod
    def of(cls, node_config: Mapping[str, Scalar]) -> "Device | None":
        """Read a node-config; None: it has none of the keys. Raises `RunError` for a bad one."""
        if not any(key in node_config for key in KEYS):
            return None
        for key in KEYS:
            if key not in node_config:
                raise RunError(f"node-config: {key} is missing; give all three: {EXAMPLE}")
        client = node_config["client-id"]
        if type(client) is not int or client < 0:
            raise RunError(f'node-config: client-id = "{client}": must be an integer >= 0')
        return cls(client, _folder(node_config, "data"), _folder(node_config, "state-dir"))

    def hello(self, settings: Settings) -> Hello:
        """Say which client this is and what it has, or why it cannot take part."""
        try:
            if settings.dataset != DEVICE:
                raise RunError(
                    f'it has data of its own, which need dataset = "{DEVICE}";'
                    f' the run has "{settings.dataset}"'
                )
            if self.client >= settings.num_clients:
                raise RunError(
                    f"client-id = {self.client}: must be 0 to {settings.num_clients - 1}"
                    " (num-clients)"
                )
            claim(self.state_dir)
            share = device_workspace(settings, self).share(self.client)
        except RunError as error:
            return Hello(client=self.client, problem=str(error))
        return Hello(
            client=self.client,
            cuda=torch.cuda.is_available(),
            train=len(share.train),
            test=len(share.test),
            validation=len(share.validation),
        )

    def store(self, space: Workspace, info: RoundInfo) -> "DeviceStore":
        """Return where this client's state in a run is; a new run keeps or resets an earlier one.

        Of a run that was resumed the state is that of the round after which it goes on. A run in
        which other layers could be personal, by `head-layers` or the method's own keys, finds no
        state of this one: a server must not have a layer uploaded that an earlier run has promised
        to leave here. Raises `RunError` if another client has its state in the same folder.
        """
        settings = space.settings
        values, prefix = defaults() | dict(settings.flat), f"{settings.strategy}."
        own = {key: value for key, value in values.items() if key.startswith(prefix)}
        about = [space.layout.shapes, space.layout.head, own, settings.bn_local, settings.bn_stats]
        text = json.dumps(about, sort_keys=True).encode()
        digest = hashlib.sha256(text).hexdigest()[:8]
        folder = self.state_dir / f"{settings.strategy}-{settings.model}-{digest}"
        claim(self.state_dir)
        private(folder)
        run = info.run_id or info.run_dir
        now = StateRun(run, self.client, info.attempt)
        store = DeviceStore(folder, info.needed, run=now)
        before = store.state_run()
        if before == now:
            return store
        remove_left_over(folder)
        if before and before.run == run:
            if before.client != self.client:
                raise RunError(
                    f'state-dir = "{self.state_dir}": is that of client {before.client}, too; '
                    "every device needs one of its own"
                )
            if info.attempt < before.attempt:
                raise RunError(f"the run was resumed {before.attempt} times; this is older")
            store.roll_back(info.resumed)
        else:
            self._begin(store, settings.client_state)
        write_whole(folder / "run.json", msgspec.json.encode(now), durable=True)
        return store

    def _begin(self, store: "DeviceStore", client_state: str) -> None:
        """Begin a run that this state has not seen, and say what was there."""
        version = store.begin(from_newest=client_state == "keep")
        found = "found none"
        if version is not None:
            found = f"found the state of round {version} of an earlier run"
        log.info("client %s: %ss state; %s", self.client, client_state, found)


@dataclass(frozen=True)
class DeviceStore(ClientStore):
    """The store of a device in `run`, which also writes its personalized model for use outside.

    A process may still train for a run that has ended or was resumed since. It writes nothing then:
    the run that has the folder by now would go on from that.
    """

    run: StateRun = field(kw_only=True)

    def state_run(self) -> StateRun | None:
        """Return which run the state belongs to; None if it is not known."""
        try:
            return msgspec.json.decode((self.folder / "run.json").read_bytes(), type=StateRun)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            raise RunError(
                f"{self.folder}/run.json: cannot be read ({error}); delete it"
            ) from error

    def save(self, round_: int, state: Mapping[str, Tensor]) -> None:
        """Write the state after `round_`; raises `RunError` if another run has the folder."""
        self._check_run()
        super().save(round_, state)

    def advice(self, round_: int) -> str:
        """Name a state of an earlier run and how to be rid of it."""
        if max((v for v in self._versions() if v < round_), default=None) != EARLIER_RUN:
            return ""
        return f'; it began from {self.folder}: remove that, or client-state = "reset"'

    def save_personalized(self, client: BaseClient) -> None:
        """Write the model that the client has been scored with after its personalization.

        One that diverged is of no use, so the file stays as it is. Raises `RunError` if another run
        has the folder by now.
        """
        self._check_run()
        path = self.folder.parent / personalized.FILE
        if broken := _not_finite(client.module()):
            log.warning("personalization diverged (%s): %s is not written", broken, path)
        else:
            personalized.save(path, client)

    def _check_run(self) -> None:
        """Raise `RunError` if another run, or this one resumed, has taken over the folder."""
        found = self.state_run()
        if found is None or found == self.run:
            return
        raise RunError(
            f"{self.folder}: {found.name} has it by now, so nothing more of {self.run.name} is "
            "written; let one run at a time use the same method and model on a device"
        )


def _not_finite(module: nn.Module) -> str:
    """Name an entry of a module that has NaN or infinite values; "" if none has."""
    found = module.state_dict().items()
    return next((key for key, value in found if not torch.isfinite(value).all()), "")


@lru_cache(maxsize=64)  # a SuperNode has one; the serial engine has several in a process
def _make_workspace(settings: Settings, device: Device) -> Workspace:
    own = data.of_device(device.data, settings.shape, settings.names)
    return Workspace(settings, own, device.client)


def device_workspace(settings: Settings, device: Device) -> Workspace:
    """Return a device's workspace on its own data; raises `RunError` if they do not fit."""
    torch.set_num_threads(settings.threads)
    with _making:
        return _make_workspace(settings, device)


def claim(state_dir: Path) -> None:
    """Make the state folder private; raises `RunError` for one that serves something else.

    To close that without a word would lock out whoever uses it: others may enter it, and what it
    holds is not a device's.
    """
    try:
        found = [*state_dir.iterdir()] if state_dir.is_dir() else []
        if found and state_dir.stat().st_mode & 0o077 and not any(map(_ours, found)):
            raise RunError(
                f'state-dir = "{state_dir}": others may enter it and it holds other things; '
                "chmod 700 it, or name another folder"
            )
    except OSError as error:
        raise RunError(f"state-dir: cannot look into {state_dir} ({error.strerror})") from error
    private(state_dir)


def _ours(path: Path) -> bool:
    """Tell whether an entry of a folder shows that it is a device's: a model, or a state."""
    if path.name == personalized.FILE:
        return True
    return bool(_STATE.fullmatch(path.name)) and (path / "run.json").is_file()


def private(folder: Path) -> None:
    """Make a folder that only this user may enter; raises `RunError` if that cannot be."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
    except OSError as error:
        raise RunError(f"state-dir: cannot make {folder} private ({error.strerror})") from error


def _folder(node_config: Mapping[str, Scalar], key: str) -> Path:
    return absolute(str(node_config[key]), f"node-config: {key}")
