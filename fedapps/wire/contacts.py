"""File devices.json of a run directory: which device was heard of when, and how it is."""

import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec
from flwr.app import Message

from fedapps.core import log
from fedapps.core.certificates import given_above
from fedapps.core.errors import RunError
from fedapps.core.files import write_whole
from fedapps.wire import health
from fedapps.wire.fleet import Fleet
from fedapps.wire.health import Clock, Health

FILE = "devices.json"
EVERY = 10.0  # seconds between two writings if nobody has come or gone
STARTING = 300.0  # seconds in which a SuperNode that has come may load its libraries and data
Event = Callable[[int | str, str, str], None]  # of a client or "server": kind and detail


class LeftOut(NamedTuple):
    """Why a SuperNode is left out, and which client of the run it says it is, if any."""

    reason: str
    client: int | None = None


class Contact(msgspec.Struct, kw_only=True):
    """A device. Times are the server's, in seconds since 1970; 0: never.

    It is `there` if it took part when the server looked last, at the latest before the last round,
    and `left_out` if it was connected then, but could not. `answered` is when an answer of it came
    last; `seen` also counts that it was connected, unless it has said nothing for `STARTING`
    seconds. `asked` is since when the server waits for an answer; 0: it does not.
    """

    client: int
    node: str = ""
    there: bool = False
    left_out: bool = False
    seen: float = 0.0
    answered: float = 0.0
    asked: float = 0.0
    ahead: float | None = None  # its clock, in seconds, and how far this can be off
    within: float | None = None
    health: Health | None = None
    warnings: dict[str, str] = {}

    @property
    def clock(self) -> Clock:
        """Its clock, as it was measured last."""
        known = self.ahead is not None and self.within is not None
        return Clock(self.ahead or 0.0, self.within or 0.0) if known else Clock()


class Contacts(msgspec.Struct, kw_only=True):
    """The content of devices.json; `left_out` says for each misfit why it is left out.

    `starting` are the SuperNodes that have come lately and have not said yet who they are.
    """

    written: float = 0.0
    server: Health | None = None
    warnings: dict[str, str] = {}  # of the server
    devices: list[Contact] = []
    left_out: list[str] = []
    starting: list[str] = []


def read(run: Path) -> Contacts | None:
    """Read devices.json of a run directory; None if it has none that can be read."""
    try:
        return msgspec.json.decode((run / FILE).read_bytes(), type=Contacts)
    except (OSError, ValueError):
        return None


class Lookout:
    """Keeps devices.json up to date; `event` records what an operator has to know.

    Without a folder it does nothing: the SuperNodes are no devices.
    """

    def __init__(self, folder: Path | None = None, event: Event = lambda *_: None) -> None:
        self.folder, self.event = folder, event
        self._contacts: dict[int, Contact] = {}  # by client
        self._clients: dict[int, int] = {}  # by node
        self._told: dict[int, tuple[Health, Clock]] = {}  # by node: answers not yet looked at
        self._left_out: list[str] = []
        self._starting: list[str] = []
        self._placed: set[str] = set()  # the nodes that take part or are left out
        self._came: dict[str, float] = {}  # the others: when they came (monotonic)
        self._warnings: dict[str, str] = {}  # of the server
        self._written = -math.inf  # monotonic: the server's clock can be set
        if folder is None:
            return
        names = ("--ssl-certfile", "--ssl-ca-certfile")
        self._certificates = tuple(given_above(name, names[0]) for name in names)
        before = read(folder) or Contacts()  # a resumed run goes on with what it knew
        self._contacts = {known.client: known for known in before.devices}
        self._warnings = before.warnings

    def greeted(self, node: int, about: Health | None, took: float) -> None:
        """Note how a SuperNode is: its answer to a greeting that was sent `took` seconds ago."""
        if about is not None:
            now = time.time()
            self._told[node] = about, Clock.of(about.clock, now - took, now)
            for known in self._of(node, None):  # even if it is left out now
                known.answered = known.seen = now

    def asks(self, nodes: Collection[int]) -> None:
        """Note that from now on the server waits for answers of these SuperNodes only."""
        asked, now = {self._clients.get(node) for node in nodes}, time.time()
        for contact in self._contacts.values():
            contact.asked = now if contact.client in asked else 0.0

    def waits(self, connected: Callable[[], Iterable[int]]) -> None:
        """Keep the file up to date while no answer comes; `connected` says which nodes are there.

        It is asked no more often than the file is written.
        """
        if self._contacts and self._is_time():
            here, now = {*map(str, connected())}, time.time()
            self._note_starting(here - self._placed)
            alive = here & self._placed | {*self._starting}
            for contact in self._contacts.values():
                if contact.node in alive:
                    contact.seen = now
            self._write(now)

    def heard(self, reply: Message) -> None:
        """Note that a reply has come; one that Flower made itself says nothing of the device."""
        client = self._clients.get(reply.metadata.src_node_id)
        if client is not None and not reply.has_error():
            now = time.time()
            contact = self._contacts[client]
            contact.answered, contact.seen, contact.there, contact.asked = now, now, True, 0.0
            self._write(now)

    def look(
        self, fleet: Fleet, left_out: Mapping[int, LeftOut], unknown: Iterable[int] = ()
    ) -> None:
        """Note which devices are there, and record the events of those that have answered.

        `left_out` are the SuperNodes that are connected, but do not fit now; those that are
        `unknown` have not said who they are.
        """
        if self.folder is None:
            return
        now, before = time.time(), (self._clients, self._left_out, self._starting)
        self._clients = {bound.node: client for client, bound in fleet.bound.items()}
        self._left_out = sorted(misfit.reason for misfit in left_out.values())
        self._note_starting({*map(str, unknown)})
        self._placed = {*map(str, [*self._clients, *left_out])}
        told = {node: self._told.pop(node) for node in self._clients.keys() & self._told.keys()}
        changed = bool(told) or before != (self._clients, self._left_out, self._starting)
        server = self._server(now) if changed else None
        for contact in self._contacts.values():
            contact.there, contact.asked = contact.client in fleet.bound, 0.0
            contact.left_out = False
            if contact.node in self._starting:
                contact.seen = now
        for node, misfit in left_out.items():
            for contact in self._of(node, misfit.client):
                self._leave(node, contact)
                if contact.client not in fleet.bound:
                    contact.node, contact.left_out, contact.seen = str(node), True, now
        for node, client in self._clients.items():
            contact = self._contacts.setdefault(client, Contact(client=client))
            self._leave(node, contact)
            contact.node, contact.there, contact.seen = str(node), True, now
            if server and node in told:
                self._examine(contact, *told[node], server)
        self._write(now, server)

    def _note_starting(self, unknown: Collection[str]) -> None:
        """Take those that have said nothing for starting, unless they came too long ago."""
        now = time.monotonic()
        self._came = {node: self._came.get(node, now) for node in unknown}
        self._starting = sorted(n for n, came in self._came.items() if now - came < STARTING)

    def _of(self, node: int, client: int | None) -> list[Contact]:
        """Return the device that a SuperNode says it is; if it says none, what it was before."""
        if client is None:
            return [known for known in self._contacts.values() if known.node == str(node)]
        return [self._contacts.setdefault(client, Contact(client=client))]

    def _leave(self, node: int, contact: Contact) -> None:
        """Note that a SuperNode is this device, and so no other one any more."""
        for known in self._contacts.values():
            if known.node == str(node) and known is not contact:
                known.node = ""

    def _examine(self, contact: Contact, about: Health, clock: Clock, server: Health) -> None:
        """Take over what a device has said of itself."""
        clock = clock.after(contact.clock)
        contact.answered, contact.health = contact.seen, about
        contact.ahead, contact.within = clock.ahead, clock.within
        found = health.problems(about, contact.seen) | health.differences(about, server, clock)
        self._warn(contact.client, contact.warnings, found)
        contact.warnings = found

    def _server(self, now: float) -> Health:
        """Return how the server is."""
        assert self.folder is not None
        about = health.of_this_machine(self.folder, self._certificates)
        found = health.problems(about, now)
        self._warn("server", self._warnings, found)
        self._warnings = found
        return about

    def _warn(self, who: int | str, before: dict[str, str], now: dict[str, str]) -> None:
        """Record what was not known before."""
        for kind in sorted(now.keys() - before.keys()):
            log.warning("%s: %s", who if who == "server" else f"client {who}", now[kind])
            self.event(who, kind, now[kind])

    def _is_time(self) -> bool:
        return time.monotonic() - self._written >= EVERY

    def _write(self, now: float, server: Health | None = None) -> None:
        """Write the file if it is time, or if something has changed (`server` is given then)."""
        if self.folder is None or (server is None and not self._is_time()):
            return
        content = Contacts(
            written=now,
            server=server or self._server(now),
            warnings=self._warnings,
            devices=[self._contacts[client] for client in sorted(self._contacts)],
            left_out=self._left_out,
            starting=self._starting,
        )
        self._written = time.monotonic()
        try:
            write_whole(self.folder / FILE, msgspec.json.format(msgspec.json.encode(content)))
        except RunError as error:  # the tables report a full disk
            log.debug("%s", error)
