"""How a run is now, read from its run directory: for `fedapps status` and for Prometheus."""

import shutil
import time
from collections import Counter
from pathlib import Path

import msgspec

from fedapps.core.errors import RunError
from fedapps.core.files import held
from fedapps.report import directory
from fedapps.report.page.facts import ENDS, state_of, versions
from fedapps.report.page.reading import FAILURE, Row, RunFiles, TableReader, number
from fedapps.report.rows import OF_ROUND
from fedapps.report.summary import TOTALS
from fedapps.wire.contacts import Contacts


class Cause(msgspec.Struct, frozen=True):
    """Why clients failed, how often, and which ones, the latest last."""

    cause: str
    times: int
    clients: list[str]


class RunStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How a run is at the time `now` (seconds since 1970).

    `state` is running, finished, failed, interrupted or, if its process was killed, unfinished;
    `detail` says more. `score` is the newest one in words. `figures` has the newest value of each
    column of rounds.csv (of a phase after the last round the scores only), and `totals` the run's
    costs so far. `failures` counts by client, `events` by kind. `devices` is empty if the clients
    are no devices with data of their own; `missing` are those that have never been there. `disk`
    are the free bytes of the run directory.
    """

    folder: str
    now: float
    state: str
    detail: str
    started: str
    round: int
    rounds: int
    score: str
    figures: dict[str, float]
    totals: dict[str, float]
    failures: dict[str, int]
    causes: list[Cause]
    events: dict[str, int]
    versions: dict[str, str]
    disk: int
    devices: Contacts
    missing: list[int]

    @property
    def warnings(self) -> list[tuple[str, str, str]]:
        """What will soon stop the server or a device: who, kind and a line."""
        who = {f"client {one.client}": one.warnings for one in self.devices.devices}
        who = {"server": self.devices.warnings} | who
        return [(name, kind, told) for name, all_ in who.items() for kind, told in all_.items()]


def read(folder: Path, reader: TableReader | None = None) -> RunStatus:
    """Read how the run in a directory is; raises `RunError` if its files cannot be read.

    `reader` remembers what has been read of the tables before.
    """
    run, now = RunFiles.read(folder, clients=False, reader=reader), time.time()
    known = run.contacts or Contacts()
    running = not directory.is_final(run.summary) and _is_locked(folder)
    state = state_of(run, 0.0 if running else None)
    failed = [event for event in run.events if event.get("kind") == FAILURE]
    seen = {device.client for device in known.devices}
    clients = int(run.config.get("num-clients", 0)) if run.contacts else 0
    return RunStatus(
        folder=str(folder),
        now=now,
        state=state.word,
        detail=state.text if state.word in ENDS.values() else "",
        started=str(run.about.get("started", "")),
        round=int(number(run.rounds[-1], "round") or 0) if run.rounds else 0,
        rounds=int(run.config.get("num-rounds", 0)),
        score=_score(run),
        figures=_newest(run),
        totals={name: run.total(name) for name in TOTALS},
        failures=dict(Counter(event.get("client", "") for event in failed)),
        causes=_causes(failed),
        events=dict(Counter(event.get("kind", "") for event in run.events)),
        versions=dict(versions(run)),
        disk=shutil.disk_usage(folder).free,
        devices=known,
        missing=[client for client in range(clients) if client not in seen],
    )


def find(folder: Path) -> Path | None:
    """Return the run directory that a folder is, or the newest one in it, or None.

    Those of federations and sweeps are in folders of their own. Raises `RunError` if this user may
    not look into the folder.
    """
    try:
        if directory.is_run(folder):  # before a look at its clients, of which there can be many
            return folder
        runs = [*folder.glob("*/config.toml"), *folder.glob("*/*/config.toml")]
        there = {
            path.parent: path.stat().st_mtime for path in runs if directory.is_run(path.parent)
        }
    except OSError as error:
        raise RunError(f"{folder}: cannot be read ({error.strerror})") from error
    return max(there, key=there.__getitem__, default=None)


def _newest(run: RunFiles) -> dict[str, float]:
    """Return the newest value of each column of rounds.csv."""
    found: dict[str, float] = {}
    for rows, of_round in ((run.rounds, False), (run.of_training, True)):
        for row in rows:
            values = {name: number(row, name) for name in row if (name in OF_ROUND) == of_round}
            found |= {name: value for name, value in values.items() if value is not None}
    return found


def _score(run: RunFiles) -> str:
    """Return the newest mean over the clients of the leading metric, in words."""
    if not (evaluated := run.evaluated(run.rounds)):
        return ""
    last, lead = evaluated[-1], run.lead
    value = lead.shown(number(last, lead.personalized) or 0.0)
    return f"{lead.label} {value} (round {last.get('round')})"


def _causes(failed: list[Row]) -> list[Cause]:
    """Count failures by cause, the most frequent first."""
    clients: dict[str, list[str]] = {}
    for event in failed:
        clients.setdefault(event.get("detail", ""), []).append(event.get("client", ""))
    found = [Cause(cause, len(who), [*dict.fromkeys(who)]) for cause, who in clients.items()]
    return sorted(found, key=lambda cause: -cause.times)


def _is_locked(folder: Path) -> bool:
    """Tell whether a process works in the run directory."""
    with held(folder) as free:
        return not free
