"""The initial model on a device: it comes with the greeting, is checked, and stays in `state-dir`.

A device uses no path from the server: where `initial-model` names a file there, the device has a
copy of its own.
"""

from pathlib import Path

import msgspec

from fedapps.core import signing
from fedapps.core.errors import RunError
from fedapps.core.files import write_whole
from fedapps.core.settings import Settings
from fedapps.core.signing import SignedModel

FILE = "initial-model.safetensors"


def keep(settings: Settings, sent: SignedModel | None, state_dir: Path, key: Path | None) -> None:
    """Write the initial model that the server has sent, for the messages of this run.

    It sends none when it greets a device again that has had it. Raises `RunError` if there is none
    although the run needs one, if it was altered, or if it is not signed with the device's `key`,
    and also if this key cannot be read.
    """
    if key is not None:
        signing.public_key(key)  # a mistake shows now, not with the first model that comes
    if not settings.initial_model:
        return
    if sent is None:
        if not (state_dir / FILE).exists():
            raise RunError("initial-model: the server has sent none; update fedapps on the server")
        return
    signing.check(sent, key, "initial-model")
    write_whole(state_dir / FILE, sent.content, durable=True)


def own(settings: Settings, state_dir: Path) -> Settings:
    """Return the settings with this device's copy of the initial model, if the run has one."""
    if not settings.initial_model:
        return settings
    return msgspec.structs.replace(settings, initial_model=str(state_dir / FILE))
