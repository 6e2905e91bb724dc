"""What a machine says about itself, so that its operator hears of trouble before it stops a run."""

import math
import platform
import shutil
import time
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from fedapps.core import project
from fedapps.core.certificates import end_of
from fedapps.core.flower import CLOCK_AHEAD, CLOCK_BEHIND
from fedapps.core.words import number

LEAST_DISK = 10**9  # bytes
LEAST_DAYS = 14.0  # that a certificate is still valid
MOST_BEHIND, MOST_AHEAD = 60.0, 2.0  # seconds at which a clock is named, long before it is refused
DAY = 86400.0
PACKAGES = ("fedapps", "flwr", "torch", "python")
COMPARED = ("fedapps", "torch")  # whose versions have to be those of the server
Version = Annotated[str, Meta(max_length=40, pattern=r"\A[0-9A-Za-z.+!_?-]*\Z")]
Time = Annotated[float, Meta(ge=0, lt=2**40)]  # seconds since 1970


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """Record `health` of a greeting: versions, clock, disk and certificates of a machine.

    `disk` are the free bytes where the machine keeps its state, -1 if unknown. `certificate` is
    when its certificates begin to expire, 0 if unknown.
    """

    clock: Time
    fedapps: Version = ""
    flwr: Version = ""
    torch: Version = ""
    python: Version = ""
    disk: Annotated[int, Meta(ge=-1, lt=2**62)] = -1
    certificate: Time = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.clock) and math.isfinite(self.certificate)):
            raise ValueError("a time must be finite")

    def days(self, now: float) -> float | None:
        """Return the days until a certificate expires, below 0 after that; None if unknown."""
        return (self.certificate - now) / DAY if self.certificate else None


def of_this_machine(folder: Path, certificates: tuple[Path | None, ...] = ()) -> Health:
    """Return what this machine says about itself; `folder` is where it keeps its state."""
    try:
        disk = shutil.disk_usage(folder).free
    except OSError:
        disk = -1
    return Health(
        **{name: _version(name)[:40] for name in PACKAGES},
        disk=disk,
        certificate=min(filter(None, map(end_of, certificates)), default=0.0),
        clock=time.time(),
    )


def _version(package: str) -> str:
    """Return the installed version; that of fedapps itself need not be in the app of a run."""
    if package == "python":
        return platform.python_version()
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return project.version() if package == "fedapps" else "?"


class Clock(msgspec.Struct, frozen=True):
    """How many seconds a clock is ahead of the server's, and how far this can be off."""

    ahead: float = 0.0
    within: float = math.inf

    @classmethod
    def of(cls, clock: float, asked: float, answered: float) -> "Clock":
        """Compare a clock with the server's, on which it was asked for, and answered."""
        return cls(clock - (asked + answered) / 2, (answered - asked) / 2)

    def after(self, before: "Clock") -> "Clock":
        """Return the more exact one of two measurements that agree, or else this later one."""
        agree = abs(self.ahead - before.ahead) <= self.within + before.within
        return before if agree and before.within < self.within else self


def problems(health: Health, now: float) -> dict[str, str]:
    """Name what will soon stop the machine: kinds of events with a line for each."""
    found = {}
    days = health.days(now)
    if days is not None and days < LEAST_DAYS:
        on = datetime.fromtimestamp(health.certificate, UTC).date()
        when = f"ends in {number(int(days), 'day')}" if days > 0 else "has ended"
        found["certificate"] = f"a certificate {when}, on {on}: renew it (deploy/README.md)"
    if 0 <= health.disk < LEAST_DISK:
        free, least = health.disk / 1e9, LEAST_DISK / 1e9
        found["disk"] = f"{free:.2f} GB of its disk are free, less than {least:g} GB: make room"
    return found


def differences(health: Health, server: Health, clock: Clock) -> dict[str, str]:
    """Name in what a device differs from the server, as `problems` does."""
    found = {}
    if clock.ahead - clock.within > MOST_AHEAD:
        found["clock"] = _clock_told(f"{clock.ahead:.0f} s ahead of", CLOCK_AHEAD)
    if -clock.ahead - clock.within > MOST_BEHIND:
        found["clock"] = _clock_told(f"{-clock.ahead:.0f} s behind", CLOCK_BEHIND)
    other = [
        f"{name} {theirs or '?'} (the server {ours})"
        for name in COMPARED
        # builds for CPU and GPU, 2.9.1+cpu and 2.9.1+cu128, are one version
        if (theirs := getattr(health, name)).partition("+")[0]
        != (ours := getattr(server, name)).partition("+")[0]
    ]
    if other:
        told = "install the same requirements.lock on all machines"
        found["version"] = f"it has {', '.join(other)}: {told}"
    return found


def _clock_told(off: str, limit: int) -> str:
    return f"its clock is {off} the server's; from {limit} s on, Flower refuses it: set it"
