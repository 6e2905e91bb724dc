"""The client store: a client's state between rounds, on disk under the client's logical id.

In a simulation any SuperNode may run any client; on a device the state survives restarts. Each
round in which a client saves its state writes a version, named by the round. Reading in round t
sees only versions before t, so that a repeated round starts from the same state. The versions that
a resumed run could go back to are kept.
"""

import hashlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from fedapps.core.errors import RunError
from fedapps.core.files import numbered, write_whole, writing
from fedapps.models.layers import as_stored

VERSIONS = 2  # at least this many versions of each client's state are kept
NONE = -1  # version number that stands for "this client has no state"
EARLIER_RUN = 0  # version number of a state that a device takes over from an earlier run
# The key of the metadata: a digest of the tensors, and who wrote them. (The order of several keys
# would be another in each file.)
_ABOUT = "blake2b"
CHANGED = "data-changed"  # a file, and an event: the data are others than at the begin
DRAWN = b"drawn"  # in this file, if test samples were drawn anew
TRAINED_ON = (  # if a device draws its test samples from all that it has
    ", and samples that it is scored on now may have been trained on then; give it a test part of"
    " its own, or set split=last in all runs and append new samples, in files whose names come last"
)
CLIENTS = "clients"  # folder in a run directory: the states of its clients
WITH_STATE = "clients_with_state"  # in summary.json, how many there are
FLAT = 10_000  # up to so many clients, their folders lie side by side
BRANCH = 1000  # otherwise, so many of them lie in a folder, such as clients/41000-41999/41730/


def data_changed(drawn: object) -> str:
    """Say that a device's data have changed during a run; `drawn`: its test samples, too."""
    return f"its data have changed since the run began{TRAINED_ON if drawn else ''}"


def state_folder(run: Path, client: int, clients: int) -> Path:
    """Return the folder for the state of one of so many `clients` of a simulated run."""
    if clients <= FLAT:
        return run / CLIENTS / str(client)
    first = client - client % BRANCH
    return run / CLIENTS / f"{first}-{first + BRANCH - 1}" / str(client)


def state_folders(run: Path) -> Iterator[Path]:
    """Yield the folders of all clients that have a state in a simulated run, in any order."""
    for folder in (run / CLIENTS).glob("*/"):
        yield from folder.glob("*/") if "-" in folder.name else (folder,)


def count_states(run: Path) -> int:
    """Count the clients that have a state in a simulated run, as far as this user may look."""
    found = 0
    for folder in state_folders(run):
        with suppress(RunError):
            found += ClientStore(folder).newest() != NONE
    return found


@dataclass(frozen=True)
class ClientStore:
    """The named tensors of one client in `folder`, one safetensors file per version.

    If the run is killed now, it may be resumed after round `needed` (`NONE`: it cannot be resumed).
    The version that it would then start from is kept. Each file says which client of which
    run, its owner, wrote it in which round, so that no other file is taken for it.
    """

    folder: Path
    needed: int = NONE
    owner: str = ""

    @property
    def durable(self) -> bool:
        """Whether a power cut must leave the state; nothing goes on from that of a lost run."""
        return self.needed != NONE

    def newest(self, round_: int = sys.maxsize) -> int:
        """Return the round of the newest state before `round_`, intact or not; or `NONE`."""
        return max((v for v in self._versions() if v < round_), default=NONE)

    def load_version(self, round_: int) -> tuple[int, dict[str, Tensor]]:
        """Return the round of the newest intact state before `round_` (or `NONE`), and the state.

        A file that is truncated or altered, or that another client or round wrote, is skipped; the
        caller then gets an older version. Raises `RunError` if one is there, but cannot be read.
        """
        for version in sorted((v for v in self._versions() if v < round_), reverse=True):
            path = self._path(version)
            try:
                return version, _read(path, self._writer(version))
            except (FileNotFoundError, SafetensorError, ValueError):  # deleted since, or damaged
                continue
            except OSError as error:
                raise RunError(f"cannot read {path}: {error.strerror or error}") from error
        return NONE, {}

    def save(self, round_: int, state: Mapping[str, Tensor]) -> None:
        """Write the state after `round_`; delete versions that no resumed run can go back to.

        A version is deleted if it is older than the last two and than the one for `needed`. Later
        versions stay: a SuperNode that answers too late must not undo newer work. Raises `RunError`
        if the state cannot be written.
        """
        self.make()
        tensors = as_stored(state)
        about = {_ABOUT: f"{_digest(tensors)} {self._writer(round_)}"}
        write_whole(self._path(round_), save(tensors, about), self.durable)
        kept = sorted(v for v in self._versions() if v <= round_)
        oldest = kept[-VERSIONS:][0]
        if self.needed != NONE:
            oldest = min(oldest, max((v for v in kept if v <= self.needed), default=kept[0]))
        self._delete(v for v in kept if v < oldest)

    def roll_back(self, round_: int) -> None:
        """Delete the versions that were written after `round_`: the run goes on from there."""
        self._delete(v for v in self._versions() if v > round_)

    def begin(self, from_newest: bool) -> int | None:
        """Begin a new run: delete all versions, or keep the newest as the state before round 1.

        Return the round of the newest version that was found (`EARLIER_RUN` if it was taken over
        from an earlier run itself), or None if there was none. Raises `RunError`, and deletes
        nothing, if a version cannot be read.
        """
        found, _ = self.load_version(sys.maxsize)  # a damaged one must not replace an intact one
        newest = None if found == NONE else found
        self._delete(v for v in self._versions() if v != newest or not from_newest)
        with writing(self.folder):
            (self.folder / CHANGED).unlink(missing_ok=True)
        if newest is not None and from_newest:
            with writing(self.folder):
                self._path(newest).replace(self._path(EARLIER_RUN))
        return newest

    @property
    def other_data(self) -> int:
        """1 if the client's data have changed during the run, 2 if its test samples, too; or 0."""
        path = self.folder / CHANGED
        return 1 + (path.read_bytes() == DRAWN) if path.exists() else 0

    def note_other_data(self, drawn: object) -> None:
        """Keep in mind that the client's data have changed; `drawn`: its test samples, too."""
        write_whole(self.folder / CHANGED, DRAWN if drawn else b"", durable=True)

    def advice(self, round_: int) -> str:
        """Say what to do if training from the state before `round_` fails.

        Here it is empty, as the state is this run's own.
        """
        return ""

    def save_personalized(self, client: Any) -> None:
        """Save the model of a client that has just been personalized; only devices do so."""

    def make(self) -> Path:
        """Make the folder in the run directory; raises `RunError` if that is not possible."""
        above = 2 if self.folder.parents[1].name == CLIENTS else 1  # folders between the two
        run = self.folder.parents[above]
        if not run.is_dir():
            raise RunError(
                f"cannot write {self.folder}: {run} is gone, or on another machine; put runs-dir "
                "on storage that all machines share"
            )
        for folder in (*reversed(self.folder.parents[:above]), self.folder):
            with writing(folder):
                folder.mkdir(mode=0o700, exist_ok=True)  # personal layers are private
        return self.folder

    def _versions(self) -> list[int]:
        return numbered(self.folder, "round-", ".safetensors")

    def _delete(self, versions: Iterable[int]) -> None:
        with writing(self.folder):
            for version in versions:
                self._path(version).unlink(missing_ok=True)

    def _writer(self, version: int) -> str:
        """Return what a version's file says about who wrote it; empty if that is not known.

        A state that was taken over is that of another run.
        """
        known = self.owner and version != EARLIER_RUN
        return f"{self.owner}, round {version}" if known else ""

    def _path(self, version: int) -> Path:
        return self.folder / f"round-{version:06d}.safetensors"


def _read(path: Path, writer: str) -> dict[str, Tensor]:
    """Read a version; raises SafetensorError or ValueError if the file was damaged or altered.

    The same holds if it says that somebody else than the `writer` wrote it.
    """
    path.open("rb").close()  # safe_open says of a file that it may not read that there is none
    with safe_open(path, "pt") as file:
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (no mapping)
        digest, _, told = (file.metadata() or {}).get(_ABOUT, "").partition(" ")
    if digest != _digest(tensors):
        raise ValueError(f"{path} was altered")
    if writer and told not in ("", writer):
        raise ValueError(f"{path} was written by {told}")
    return tensors


def _digest(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for key in sorted(tensors):
        digest.update(key.encode())
        digest.update(tensors[key].contiguous().numpy().tobytes())
    return digest.hexdigest()
