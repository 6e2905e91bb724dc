"""The figures of a run for Prometheus, made of its run directory at each visit."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from fedapps.core.prometheus import counter, gauge
from fedapps.report.page.reading import TableReader
from fedapps.report.status import RunStatus, read
from fedapps.wire.contacts import Contact
from fedapps.wire.health import PACKAGES

if TYPE_CHECKING:
    from prometheus_client.core import Metric


def of_run(folder: Path) -> "Callable[[], Iterable[Metric]]":
    """Return what collects the figures of the run in a directory."""
    tables = TableReader()
    return lambda: figures(read(folder, tables))


def figures(status: RunStatus) -> "Iterator[Metric]":
    """Yield the figures of a run; those of devices are labelled with the client."""
    versions = {name: status.versions.get(name, "") for name in PACKAGES}
    names = {"run": Path(status.folder).name, **versions}
    yield gauge("run_info", "the run and its versions", {tuple(names.values()): 1}, *names)
    yield gauge("run_running", "1 while the run goes on", {(): status.state == "running"})
    yield gauge("rounds_planned", "num-rounds", {(): status.rounds})
    yield gauge(
        "round_figure", "the newest value of a column of rounds.csv",
        {(name,): value for name, value in status.figures.items()}, "column",
    )  # fmt: skip
    yield counter(
        "rounds_sum", "the sum of a column of rounds.csv over all rounds",
        {(name,): value for name, value in status.totals.items()}, "column",
    )  # fmt: skip
    events = {(kind,): count for kind, count in status.events.items()}
    yield counter("events", "rows of events.csv", events, "kind")
    never = {(str(one.client),): 0 for one in _devices(status)}  # else the first one is no increase
    failed = never | {(client,): count for client, count in status.failures.items()}
    yield counter("failures", "how often a client has failed", failed, "client")
    yield gauge("server_disk_free_bytes", "free on the run directory's disk", {(): status.disk})
    yield from _of_devices(status)


def _devices(status: RunStatus) -> list[Contact]:
    """Return all devices of a run, also those that have never been there."""
    return [*status.devices.devices, *(Contact(client=client) for client in status.missing)]


def _of_devices(status: RunStatus) -> "Iterator[Metric]":
    known = status.devices
    if not known.written:
        return
    if known.server and known.server.certificate:
        ends = {(): known.server.certificate}
        yield gauge("server_certificate_expiry_timestamp_seconds", "when it expires", ends)
    yield gauge("devices_looked_timestamp_seconds", "when this was noted", {(): known.written})
    yield gauge("devices_left_out", "SuperNodes that do not fit", {(): len(known.left_out)})
    kinds = sorted({(who, kind) for who, kind, _ in status.warnings})
    yield gauge(
        "warning", "1 where something needs attention", dict.fromkeys(kinds, 1), "who", "kind"
    )

    def each(name: str, meaning: str, value: Callable[[Contact], float | None]) -> "Metric":
        values = {(str(one.client),): value(one) for one in _devices(status)}
        there = {key: found for key, found in values.items() if found is not None}
        return gauge(f"device_{name}", meaning, there, "client")

    yield each("there", "1 if it took part", lambda one: one.there)
    yield each("left_out", "1 if connected, but unable to take part", lambda one: one.left_out)
    seen = "when it was connected last"
    yield each("last_contact_timestamp_seconds", seen, lambda one: one.seen or None)
    yield each("clock_ahead_seconds", "ahead of the server's clock", lambda one: one.ahead)
    yield each("clock_within_seconds", "how far this can be off", lambda one: one.within)
    yield each("disk_free_bytes", "free where its state is", _disk)
    yield each("certificate_expiry_timestamp_seconds", "when its CA expires", _certificate)
    infos = {
        (str(one.client), *(getattr(one.health, name) for name in PACKAGES)): 1.0
        for one in known.devices
        if one.health
    }
    yield gauge("device_info", "the versions of a device", infos, "client", *PACKAGES)


def _disk(one: Contact) -> float | None:
    return one.health.disk if one.health and one.health.disk >= 0 else None


def _certificate(one: Contact) -> float | None:
    return (one.health.certificate or None) if one.health else None
