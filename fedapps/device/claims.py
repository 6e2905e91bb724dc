"""The state folder of a device: it is of this device alone, and only this user may enter it."""

import re
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from fedapps.core import log
from fedapps.core.errors import RunError
from fedapps.device import personalized

_STATE = re.compile(r"\w+-.+-[0-9a-f]{8}")  # strategy, model, layers: see `Device.store`
_OTHERS = 0o077  # what a mode lets others than the owner do


def claim(state_dir: Path) -> None:
    """Make the state folder private; raises `RunError` if it serves another purpose.

    It does if others may enter it and it holds nothing of a device. Making such a folder private
    would lock out its users without a warning, unless the file system keeps no modes (FAT, exFAT,
    Windows' disks in WSL): there, nobody can be locked out, and a warning says so.
    """
    try:
        found = [*state_dir.iterdir()] if state_dir.is_dir() else []
        suspect = found and _open(state_dir) and not any(map(_ours, found))
        if suspect and _keeps_modes(state_dir):
            raise RunError(
                f'state-dir = "{state_dir}": others may enter it, and it holds other files; '
                "chmod 700 it, or name another folder"
            )
    except OSError as error:
        raise RunError(f"state-dir: cannot look into {state_dir} ({error.strerror})") from error
    private(state_dir)
    if _open(state_dir):
        _warn(state_dir)


def _open(folder: Path) -> bool:
    return bool(folder.stat().st_mode & _OTHERS)


def _keeps_modes(folder: Path) -> bool:
    """Tell whether a new folder in this one, which only this user may enter, really is so."""
    try:
        with TemporaryDirectory(dir=folder) as made:
            return not _open(Path(made))
    except OSError:  # nothing can be made there, as in a folder of someone else
        return True


@cache  # once in a process, not for each message
def _warn(state_dir: Path) -> None:
    log.warning(
        'state-dir = "%s": this disk keeps no permissions, so other users of this machine may be '
        "able to read the personal layers; name a folder on another disk",
        state_dir,
    )


def _ours(path: Path) -> bool:
    """Tell whether a path is a device's model or state, so that its folder is a device's, too."""
    state = bool(_STATE.fullmatch(path.name)) and (path / "run.json").is_file()
    return state or path.name == personalized.FILE


def private(folder: Path) -> None:
    """Make a folder that only this user may enter; raises `RunError` if that is impossible."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
    except OSError as error:
        raise RunError(f"state-dir: cannot make {folder} private ({error.strerror})") from error
