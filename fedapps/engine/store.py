"""The client store: what a client keeps between rounds, on disk under its logical id.

In simulation any SuperNode may run any client; on a device the state survives restarts. A version
is named by the round that wrote it. Reading in round t sees only versions before t, so that a
repeated round starts from the same state; what a run that is resumed may go back to is kept.
"""

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from fedapps.core.errors import RunError
from fedapps.core.files import write_whole

VERSIONS = 2  # of each client's state that are kept at least
NONE = -1  # the version of a client that has no state
EARLIER_RUN = 0  # of a device's state that an earlier run has left to this one
_DIGEST = "blake2b"  # key of the file's metadata


@dataclass(frozen=True)
class ClientStore:
    """Named tensors of one client in `folder`, one safetensors file per version.

    A run that is killed now may go on after round `needed` (`NONE`: it will not): what that starts
    from is kept.
    """

    folder: Path
    needed: int = NONE

    def load(self, round_: int) -> dict[str, Tensor]:
        """Return the newest whole state written before `round_`; empty if there is none."""
        return self.load_version(round_)[1]

    def load_version(self, round_: int) -> tuple[int, dict[str, Tensor]]:
        """Return the newest whole state before `round_`, and the round that wrote it (or `NONE`).

        A file that is truncated or altered is passed over; the caller sees the older version.
        """
        for version in sorted((v for v in self._versions() if v < round_), reverse=True):
            with suppress(OSError, SafetensorError, ValueError):
                return version, _read(self._path(version))
        return NONE, {}

    def save(self, round_: int, state: Mapping[str, Tensor]) -> None:
        """Write the state as it is after `round_`; drop versions that nothing can go back to.

        Those are the ones before the last two and before the one that is needed. Later versions
        stay: a SuperNode that answers too late must not undo what came after. Raises `RunError` if
        it cannot be written.
        """
        self._make()
        # safetensors refuses strides, and tensors that share memory.
        tensors = {
            key: value.detach().cpu().clone(memory_format=torch.contiguous_format)
            for key, value in state.items()
        }
        about = {_DIGEST: _digest(tensors)}
        write_whole(self._path(round_), save(tensors, about), durable=True)
        kept = sorted(v for v in self._versions() if v <= round_)
        oldest = kept[-VERSIONS:][0]
        if self.needed != NONE:
            oldest = min(oldest, max((v for v in kept if v <= self.needed), default=kept[0]))
        for version in (v for v in kept if v < oldest):
            self._path(version).unlink(missing_ok=True)

    def roll_back(self, round_: int) -> None:
        """Delete the versions that were written after `round_`: the run goes on from there."""
        for version in (v for v in self._versions() if v > round_):
            self._path(version).unlink(missing_ok=True)

    def begin(self, from_newest: bool) -> int | None:
        """Begin a new run with the newest version as the state before round 1, or with none.

        Return the round of the version that was found, `EARLIER_RUN` for such a beginning.
        """
        newest = max(self._versions(), default=None)
        for version in self._versions():
            if version != newest or not from_newest:
                self._path(version).unlink(missing_ok=True)
        if newest is not None and from_newest:
            self._path(newest).replace(self._path(EARLIER_RUN))
        return newest

    def advice(self, round_: int) -> str:
        """What to do if training from the state before `round_` fails: "", it is this run's own."""
        return ""

    def save_personalized(self, client: Any) -> None:
        """Take a client that has just been personalized; only a device writes its model."""

    def _make(self) -> None:
        """Make the folder, in a run directory that is there: one that is gone is not made anew."""
        run = self.folder.parent.parent
        if not run.is_dir():
            raise RunError(
                f"cannot write {self.folder}: {run} is gone, or on another machine; put runs-dir "
                "on storage that all machines share"
            )
        self.folder.parent.mkdir(mode=0o700, exist_ok=True)  # personal layers are nobody else's
        self.folder.mkdir(mode=0o700, exist_ok=True)

    def _versions(self) -> list[int]:
        paths = self.folder.glob("round-*.safetensors")
        return [int(path.stem.removeprefix("round-")) for path in paths]

    def _path(self, version: int) -> Path:
        return self.folder / f"round-{version:06d}.safetensors"


def _read(path: Path) -> dict[str, Tensor]:
    """Read a version; raises SafetensorError or ValueError if it is not as it was written."""
    with safe_open(path, "pt") as file:
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (no mapping)
        wanted = (file.metadata() or {}).get(_DIGEST)
    if wanted not in (None, _digest(tensors)):  # files of earlier versions have none
        raise ValueError(f"{path} was altered")
    return tensors


def _digest(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for key in sorted(tensors):
        digest.update(key.encode())
        digest.update(tensors[key].contiguous().numpy().tobytes())
    return digest.hexdigest()
