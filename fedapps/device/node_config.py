"""A device's node-config. This loads fast, so that a mistake shows at the start of a SuperNode."""

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from fedapps.core import log
from fedapps.core.errors import RunError
from fedapps.core.paths import absolute
from fedapps.core.words import did_you_mean
from fedapps.device import readiness

KEYS = ("client-id", "data", "state-dir")
OPTIONAL = ("model-key", "dp-budget", "dp-delta", "scores", "ready")
DELTA = 1e-5
EXAMPLE = """--node-config 'client-id=7 data="/path/train.npz" state-dir="/path/state"'"""
MOST = 2**63 - 1  # the largest number that a message can hold
_OTHERS = {"num-partitions", "partition-id", "workers"}  # of simulations and of any SuperNode


@dataclass(frozen=True)
class NodeConfig:
    """The node-config of a SuperNode with data of its own: who it is, and where its files are.

    With a `model_key`, it starts only from initial models that are signed with this key. With a
    `budget`, it sends no update that would make its epsilon of all runs larger; None: any. A run
    can make `delta` smaller, but not larger: that would stretch the budget. Without `scores`, the
    server hears nothing of its evaluations. It works only while the command `ready` ends with
    status 0; "": always.
    """

    client: int
    data: Path
    state_dir: Path
    model_key: Path | None = None
    budget: float | None = None
    delta: float = DELTA
    scores: bool = True
    ready: str = ""

    @classmethod
    def of(cls, given: Mapping[str, bool | int | float | str]) -> Self | None:
        """Read a node-config; return None if it has no key of a device. Raises `RunError`."""
        if not _is_device(given.keys()):
            return None
        client, budget = given["client-id"], given.get("dp-budget")
        delta = given.get("dp-delta", DELTA)
        if type(client) is not int or not 0 <= client <= MOST:
            bounds = "must be an integer from 0 to num-clients - 1"
            raise RunError(f'node-config: client-id = "{client}": {bounds}')
        if budget is not None and (isinstance(budget, bool | str) or not 0 < budget < float("inf")):
            # 0 is refused, because it means "any" for the server (dp.budget), and "nothing" here
            raise RunError(
                f'node-config: dp-budget = "{budget}": must be a number above 0;'
                " for no budget, leave it out"
            )
        if isinstance(delta, bool | str) or not 0 < delta < 1:
            raise RunError(f'node-config: dp-delta = "{delta}": must be a number between 0 and 1')
        scores, ready = given.get("scores", True), given.get("ready", "")
        if not isinstance(scores, bool):
            raise RunError(f'node-config: scores = "{scores}": must be true or false')
        if not isinstance(ready, str):
            raise RunError(f'node-config: ready = "{ready}": must be a command, a text')

        def path(key: str) -> Path:
            return absolute(str(given[key]), f"node-config: {key}")

        model_key = path("model-key") if "model-key" in given else None
        most = None if budget is None else float(budget)
        data, state = path("data"), path("state-dir")
        return cls(client, data, state, model_key, most, float(delta), scores, ready)

    def check(self) -> None:
        """Raise `RunError` if a path or command can serve no run; warn of a private key.

        What is in the data is checked when a run says what they must have.
        """
        _usable("data", self.data, os.R_OK)
        _usable("state-dir", self.state_dir, os.W_OK | os.X_OK)
        if self.ready:
            readiness.words(self.ready)
        if self.model_key is not None:
            from fedapps.core import signing  # a serial run's help need not wait for it

            signing.public_key(self.model_key)
            if signing.is_private(self.model_key):
                log.warning(
                    "model-key: %s is the private key, which signs models: keep it off devices, "
                    "and give this one the public key (.pub)",
                    self.model_key,
                )


def _usable(key: str, path: Path, mode: int) -> None:
    """Raise `RunError` if this user cannot use a path; a state folder is made when it is needed."""
    where, folder = f'node-config: {key} = "{path}"', key == "state-dir"
    ways = (path, *path.parents) if folder else (path,)
    try:
        there = next((way for way in ways if way.exists()), None)
    except OSError as error:
        raise RunError(f"{where}: cannot be reached ({error.strerror})") from error
    if there is None:
        raise RunError(f"{where}: no such file or folder")
    if folder and not there.is_dir():
        raise RunError(f"{where}: must be a folder; {there} is a file")
    if not os.access(there, mode):
        what = f"cannot write in {there}" if folder else "cannot be read"
        raise RunError(f"{where}: {what} (Permission denied); chown or chmod it for this user")


def _is_device(keys: Collection[str]) -> bool:
    """Tell whether these are the keys of a device, or those of a SuperNode without data.

    Raises `RunError` if a key is missing or unknown. An unknown key is not passed over: a device
    whose `model-key` is misspelt would take part in a run that this key refuses, and one that has
    only misspelt keys would be a SuperNode without data.
    """
    known = (*KEYS, *OPTIONAL)
    for key in keys:
        if key not in known and key not in _OTHERS:
            hint = did_you_mean(key, known) or f": must be one of {', '.join(known)}"
            raise RunError(f"node-config: unknown key {key}{hint}")
    if not any(key in keys for key in known):
        return False
    for key in KEYS:
        if key not in keys:
            raise RunError(f"node-config: {key} is missing; give all three: {EXAMPLE}")
    return True
