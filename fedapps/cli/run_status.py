"""A run's status for the screen: what needs attention comes first, then the table of devices."""

import textwrap
from collections.abc import Hashable, Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

from fedapps.core.errors import printable
from fedapps.core.words import spans
from fedapps.report.devices import HEADS, days_left, rows_of
from fedapps.report.units import LINE_WIDTH, ago, human_bytes
from fedapps.wire.health import PACKAGES

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from fedapps.report.status import RunStatus
    from fedapps.wire.contacts import Contact

Said = TypeVar("Said", bound=Hashable)

MOST_CAUSES = 5
LATE = 30.0  # seconds without an answer, after which a device is named


def shown(status: "RunStatus") -> "Iterator[RenderableType]":
    """Yield lines and a table, at most 100 columns wide."""
    yield f"run {status.folder}"
    yield from _lines(_state(status))
    yield from _lines(_server(status))
    known = status.devices
    if known.written:
        there, every = sum(d.there for d in known.devices), len(known.devices) + len(status.missing)
        left_out = f", {len(known.left_out)} left out" * bool(known.left_out)
        as_of = ago(status.now - known.written)
        yield f"devices: {there} of {every} take part{left_out}, as of {as_of}"
    yield from _attention(status)
    if known.devices:
        yield ""
        yield _table(status)


def _state(status: "RunStatus") -> str:
    words = [f"{status.state}, round {status.round} of {status.rounds}"]
    if status.started:
        words.append(f"started {status.started}")
    if status.score:
        words.append(status.score)
    if status.state == "unfinished":
        words.append("its process was killed: resume it")
    return "; ".join(words) + (f": {status.detail}" if status.detail else "")


def _server(status: "RunStatus") -> str:
    words = [f"{name} {status.versions[name]}" for name in PACKAGES if name in status.versions]
    words.append(f"{human_bytes(status.disk)} free")
    if (about := status.devices.server) and about.certificate:
        words.append(f"certificate {days_left(about, status.now)}")
    return f"server: {', '.join(words)}"


def _attention(status: "RunStatus") -> Iterator[str]:
    """Say who is missing, what will soon stop somebody, and why clients have failed."""
    if status.state == "running" and (late := _late(status)):
        since = min(device.asked for device in late)
        clients = spans((device.client for device in late), ", ")
        yield from _lines(f"waits for: clients {clients}, asked {ago(status.now - since)}")
    away = [one for one in status.devices.devices if not (one.there or one.left_out)]
    starting = status.devices.starting if status.state == "running" else []
    if starting:
        back = {one.node: f"client {one.client}" for one in away}
        who = ", ".join(back.get(node, f"SuperNode {node}") for node in starting)
        yield from _lines(f"starting: {who}")
    gone = [one for one in away if one.node not in starting]
    gone.sort(key=lambda device: device.seen)
    for last, those in _grouped((ago(status.now - one.seen), one.client) for one in gone):
        yield from _lines(f"not there: {_clients(those)}, last contact {last}")
    if status.missing:
        yield from _lines(f"have never taken part: clients {spans(status.missing, ', ')}")
    for reason in status.devices.left_out:
        yield from _lines(f"left out: {reason}")
    for kind, told in status.devices.warnings.items():
        yield from _lines(f"{kind}: server: {told}")
    known = [(each, one.client) for one in status.devices.devices for each in one.warnings.items()]
    for (kind, told), those in _grouped(known):
        yield from _lines(f"{kind}: {_clients(those)}: {told}")
    for cause in status.causes[:MOST_CAUSES]:
        clients = ", ".join(cause.clients[:10]) + ", ..." * (len(cause.clients) > 10)
        yield from _lines(f"failed {cause.times} x: clients {clients}: {cause.cause}")
    if len(status.causes) > MOST_CAUSES:
        yield f"failed for {len(status.causes) - MOST_CAUSES} other reasons, see events.csv"


def _grouped(told: Iterable[tuple[Said, int]]) -> Iterable[tuple[Said, list[int]]]:
    """Return what is said of clients, each with all of whom it is said."""
    found: dict[Said, list[int]] = {}
    for said, client in told:
        found.setdefault(said, []).append(client)
    return found.items()


def _clients(those: list[int]) -> str:
    return f"client{'s' * (len(those) > 1)} {spans(those, ', ')}"


def _late(status: "RunStatus") -> "list[Contact]":
    """Return the devices that were asked a while ago and have not answered yet."""
    asked = [device for device in status.devices.devices if device.asked]
    return [device for device in asked if status.now - device.asked >= LATE]


def _table(status: "RunStatus") -> "Table":
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for head in HEADS:
        table.add_column(head, overflow="fold")
    for row in rows_of(status.devices, status.failures, status.now):
        table.add_row(*map(printable, row))
    return table


def _lines(text: str) -> list[str]:
    line = printable(" ".join(text.split()))  # the files can be a stranger's
    return textwrap.wrap(line, LINE_WIDTH, subsequent_indent="    ") or [line]
