"""The runs of a SuperLink, as `flwr ls` lists them."""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from fedapps.launcher.outcome import answer_of, details_of
from fedapps.launcher.superlink import PORT, SuperLink


@dataclass(frozen=True)
class ListedRun:
    """A run: id, status, the time when it was submitted (UTC), its seconds, and why it failed."""

    id: int
    status: str
    since: str
    seconds: float
    error: str


def listed(home: Path, link: SuperLink, limit: int) -> list[ListedRun]:
    """Return the newest runs of a home's SuperLink, newest first. Raises `RunError`."""
    env = dict(os.environ, FLWR_HOME=str(home))
    env[PORT] = str(link.port)
    answer = subprocess.run(
        [str(link.bin_dir / "flwr"), "ls", "--format", "json", "--limit", str(limit)],
        env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True,
    )  # fmt: skip
    return [
        ListedRun(
            int(run["run-id"]),
            run["status"],
            run["pending-at"],
            float(run["elapsed"]),
            details_of(run),
        )
        for run in answer_of(answer.stdout)["runs"]
    ]
