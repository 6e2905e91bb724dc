"""The client store: what a client keeps between rounds, on disk under its logical id.

In simulation any SuperNode may run any client; on a device the state survives restarts. A version
is named by the round that wrote it. Reading in round t sees only versions before t, so that a
repeated round starts from the same state; the version before the newest one is kept for that.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from fedapps.core.errors import RunError
from fedapps.core.files import write_whole

VERSIONS = 2  # of each client's state; older ones are deleted


@dataclass(frozen=True)
class ClientStore:
    """Named tensors of one client in `folder`, one safetensors file per version."""

    folder: Path

    def load(self, round_: int) -> dict[str, Tensor]:
        """Return the newest state written before `round_`; empty if there is none."""
        earlier = [version for version in self._versions() if version < round_]
        return load_file(self._path(max(earlier))) if earlier else {}

    def save(self, round_: int, state: Mapping[str, Tensor]) -> None:
        """Write the state as it is after `round_`; drop versions before the last one but one.

        Later versions stay: a SuperNode that answers too late must not undo what came after.
        """
        self._make()
        # safetensors refuses strides, and tensors that share memory.
        tensors = {
            key: value.detach().cpu().clone(memory_format=torch.contiguous_format)
            for key, value in state.items()
        }
        write_whole(self._path(round_), lambda path: save_file(tensors, path), durable=True)
        for version in sorted(v for v in self._versions() if v <= round_)[:-VERSIONS]:
            self._path(version).unlink(missing_ok=True)

    def begin(self, from_newest: bool) -> int | None:
        """Begin a new run with the newest version as the state before round 1, or with none.

        Return the round of the version that was found, 0 for one that was such a beginning.
        """
        newest = max(self._versions(), default=None)
        for version in self._versions():
            if version != newest or not from_newest:
                self._path(version).unlink(missing_ok=True)
        if newest is not None and from_newest:
            self._path(newest).replace(self._path(0))
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
            raise RunError(f"cannot write {self.folder}: {run} is gone")
        self.folder.mkdir(parents=True, exist_ok=True)

    def _versions(self) -> list[int]:
        paths = self.folder.glob("round-*.safetensors")
        return [int(path.stem.removeprefix("round-")) for path in paths]

    def _path(self, version: int) -> Path:
        return self.folder / f"round-{version:06d}.safetensors"
