"""The initial model on a device: it comes with the greeting, is checked, and stays in `state-dir`.

A device uses no path from the server: where `initial-model` names a file there, the device has a
copy of its own, whose name is a digest of that, and of the key that has signed it. So runs that
start from different models can take turns, and no other key vouches for a copy.
"""

import hashlib
from contextlib import suppress
from pathlib import Path

import msgspec

from fedapps.core import signing
from fedapps.core.errors import RunError
from fedapps.core.files import write_whole
from fedapps.core.settings import Settings
from fedapps.core.signing import SignedModel

FILES = "initial-model*.safetensors"  # of all runs, also of earlier versions
KEPT = 2  # the newest of them


def keep(settings: Settings, sent: SignedModel | None, state_dir: Path, key: Path | None) -> None:
    """Write the initial model that the server has sent, for the messages of this run.

    It sends none when it greets a device again that has had it, unless this failed. Raises
    `RunError` if there is none although the run needs one, if it was altered, or if it is not
    signed with the device's `key`, and also if this key cannot be read.
    """
    if key is not None:
        signing.public_key(key)  # a mistake shows now, not with the first model that comes
    if not settings.initial_model:
        return
    if sent is None:
        own(settings, state_dir, key)  # the server sends it once it hears of an error
        return
    signing.check(sent, key, "initial-model")
    mine = copy(settings, state_dir, key)
    write_whole(mine, sent.content, durable=True)
    with suppress(OSError):  # another process has removed one
        others = {*state_dir.glob(FILES)} - {mine}  # the clock can be behind that of their times
        for path in sorted(others, key=lambda path: path.stat().st_mtime_ns)[: 1 - KEPT]:
            path.unlink()


def copy(settings: Settings, state_dir: Path, key: Path | None) -> Path:
    """Return where a device keeps its copy of the initial model of a run, checked with its `key`.

    Raises `RunError` if the key cannot be read.
    """
    digest = hashlib.sha256(settings.initial_model.encode())
    if key is not None:
        digest.update(signing.public_key(key).public_bytes_raw())
    return state_dir / f"initial-model-{digest.hexdigest()[:16]}.safetensors"


def own(settings: Settings, state_dir: Path, key: Path | None) -> Settings:
    """Return the settings with this device's copy of the initial model, if the run has one.

    Raises `RunError` if the copy is not there.
    """
    if not settings.initial_model:
        return settings
    mine = copy(settings, state_dir, key)
    if not mine.exists():
        raise RunError("initial-model: this device does not have the one of this run any more")
    return msgspec.structs.replace(settings, initial_model=str(mine))
