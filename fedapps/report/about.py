"""File run.json of a run directory: what the run is made with, written before it begins."""

import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from fedapps.core.files import write_whole
from fedapps.report.summary import versions

FILE = "run.json"


class About(msgspec.Struct, frozen=True, kw_only=True):
    """What a run directory says of its run from the start, however that ends."""

    started: str  # UTC, ISO 8601
    command: str
    versions: dict[str, str]

    @classmethod
    def new(cls) -> "About":
        """Return what a run says that begins now."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        return cls(started=now, command=command(sys.orig_argv), versions=versions())

    def write(self, run: Path) -> None:
        """Write it into a run directory; raises `RunError`."""
        content = msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n"
        write_whole(run / FILE, content, durable=True)


def command(words: list[str]) -> str:
    """Return the command of this process; of Flower's programs the name, as options hold tokens."""
    program = next((Path(word).name for word in words[:3] if _is_flowers(word)), "")
    return program or shlex.join([Path(words[0]).name, *words[1:]] if words else [])


def _is_flowers(word: str) -> bool:
    return Path(word).name.startswith(("flwr", "flower"))
