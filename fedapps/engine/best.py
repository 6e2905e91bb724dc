"""The best round by validation samples: kept beside the last one, and the reason to stop early."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np

from fedapps.core.errors import RunError
from fedapps.core.files import write_whole
from fedapps.report import directory

FOLDER = "best"


class Best(msgspec.Struct, frozen=True):
    """The best mean personalized accuracy on validation samples, and the evaluations since."""

    score: float = -1.0
    round: int = 0
    since: int = 0

    def after(self, round_: int, score: float) -> "Best":
        """Return what is best after an evaluation; of two equal ones the earlier."""
        if score > self.score:
            return Best(score, round_)
        return msgspec.structs.replace(self, since=self.since + 1)


def keep(run: Path, round_: int, arrays: Mapping[str, np.ndarray]) -> None:
    """Make `best/` of a run directory hold the model and all states as they are after a round.

    What clients keep on devices stays there: then `best/` has the server's model alone. Raises
    `RunError` if it cannot be written.
    """
    new, best = run / f".{FOLDER}-{round_}", run / FOLDER
    try:
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir()
        write_whole(new / "model.safetensors", directory.model_bytes(arrays))
        for path in sorted((run / "clients").glob("*/round-*.safetensors")):
            target = new / "clients" / path.parent.name
            target.mkdir(parents=True, exist_ok=True)
            for older in target.iterdir():  # the paths come in order: the last one stays
                older.unlink()
            os.link(path, target / path.name)  # a version's file never changes
        old = run / f".{FOLDER}-old"
        shutil.rmtree(old, ignore_errors=True)
        if best.exists():
            best.rename(old)
        new.rename(best)
        shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        raise RunError(f"cannot write {best}: {error.strerror or error}") from error
