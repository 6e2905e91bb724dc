"""Who is there: SuperNodes that come are greeted, those that leave are forgotten."""

import itertools
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from flwr.app import Message

from fedapps.core import log
from fedapps.core.errors import RunError
from fedapps.core.words import number
from fedapps.wire.fleet import Bound, Fleet
from fedapps.wire.grid import StreamingGrid, poll_wait
from fedapps.wire.hello import Hello, pack_greeting, unpack_hello

FIRST_LINE = 5.0  # seconds after which a wait is told; then whenever it has doubled
PARTS = ("train", "test", "validation")
HELLO_WAIT = 60.0  # seconds that a newcomer may take to say who it is before a round goes on
GREETINGS = 3  # to a SuperNode that does not answer, HELLO_WAIT apart, whose answers still count


@dataclass
class Guest:
    """A SuperNode that is there. Times are monotonic, in seconds."""

    came: float  # when it was first seen
    asked: dict[str, float] = field(default_factory=dict)  # greetings without an answer: when
    hello: Hello | None = None  # its last answer
    place: int = 0  # the lower, the longer it has been who it says it is
    recheck: bool = False  # whether it is to be asked again

    def is_due(self, now: float) -> bool:
        """Tell whether to greet it: it has to say who it is, and was not asked just now."""
        asked = any(now - at < HELLO_WAIT for at in self.asked.values())
        return not asked and (self.hello is None or self.recheck)

    def forget(self, until: float) -> None:
        """Wait no more for answers to what it was asked `until` then."""
        self.asked = {message: at for message, at in self.asked.items() if at > until}


class NodeRegistry:
    """The SuperNodes that are there: it greets those that come and forgets those that leave.

    `devices` is the number of clients if each of them is a device with data of its own, else 0;
    each can have `max_samples` of a part.
    `simulated`: the SuperNodes are Flower's own, and believed what they say of the simulation. A
    SuperNode that does not fit the run is left out, with a line.
    """

    def __init__(
        self,
        grid: StreamingGrid,
        at_least: int,
        timeout: float,
        devices: int = 0,
        simulated: bool = True,
        max_samples: int = 2**40,
    ) -> None:
        self.grid, self.at_least, self.timeout = grid, at_least, timeout
        self.devices, self.simulated = devices, simulated and not devices
        self.max_samples = max_samples
        self.closed = simulated and bool(devices)  # nobody else will come
        self.complete = False  # whether there ever were enough
        self._guests: dict[int, Guest] = {}  # by node, ascending
        self._places = itertools.count(1)
        self._rejected: dict[int, str] = {}  # by node: why
        self._reported: set[str] = set()
        self._patience = HELLO_WAIT

    def wait_for_nodes(self) -> Fleet:
        """Wait for `at_least` SuperNodes, and for newcomers to say who they are.

        Those that did not fit or did not answer are asked again, once per `HELLO_WAIT`: somebody
        may repair them meanwhile. They and those to recheck are not waited for.
        Each time that newcomers have let it wait in vain, the next ones get half as long.
        In a simulation a node also tells how many there will be, since they register one by one.
        Raises `RunError` if there are too few after `timeout` seconds.
        """
        start, next_line, enough_since = time.monotonic(), FIRST_LINE, math.inf
        next_recheck = start
        while True:
            if time.monotonic() >= next_recheck:
                self._recheck(self._rejected)
                next_recheck = time.monotonic() + HELLO_WAIT
            self._greet(sorted(self.grid.get_node_ids()))
            fleet = self._fleet()
            now = time.monotonic()
            unknown = {node: g for node, g in self._guests.items() if not g.hello}
            newcomers = [node for node, g in unknown.items() if now - g.came < self._patience]
            late = now - start > self.timeout or (self.closed and self._guests and not newcomers)
            enough = len(fleet.nodes) >= self.at_least
            enough_since = min(enough_since, now) if enough else math.inf
            if enough and (late or not newcomers or now - enough_since >= self._patience):
                self.complete = True
                if any(guest.came >= start for guest in unknown.values()):
                    self._patience /= 2
                return fleet
            if late:
                raise RunError(self._too_few(fleet, [*unknown]))
            if now - start > next_line:
                next_line = 2 * (now - start)
                log.info("%s", self._waiting(fleet, len(newcomers), now - start))
            time.sleep(poll_wait(now - start))

    def _waiting(self, fleet: Fleet, starting: int, seconds: float) -> str:
        """Say what is waited for: SuperNodes that are there and start, or such that are to come."""
        ready = len(fleet.nodes)
        if ready + starting >= self.at_least:
            return f"{number(starting, 'SuperNode')} starting, for {seconds:.0f} s now"
        come = f"{ready} of {self.at_least} are ready (min-available)"
        more = f", {starting} starting" if starting else ""
        return f"waiting for {number(self.at_least - ready - starting, 'SuperNode')}: {come}{more}"

    def recheck(self, clients: Iterable[int], fleet: Fleet) -> None:
        """Ask the devices of `clients` again: one that failed may have been started anew."""
        self._recheck(fleet.bound[client].node for client in clients if client in fleet.bound)

    def _recheck(self, nodes: Iterable[int]) -> None:
        for node in self._guests.keys() & nodes:
            self._guests[node].recheck = True

    def _greet(self, nodes: Sequence[int]) -> None:
        """Forget who has left, greet those that are due, and take the answers that are there."""
        now = time.monotonic()
        self._guests = {node: self._guests.get(node) or Guest(now) for node in nodes}
        due = [node for node, guest in self._guests.items() if guest.is_due(now)]
        ids = list(self.grid.push_messages([pack_greeting(node) for node in due])) if due else []
        for node, message in zip(due, ids, strict=True):
            if message:  # else it could not be reached
                self._guests[node].asked[message] = now
        asked = {
            message: (at, node)
            for node, guest in self._guests.items()
            for message, at in guest.asked.items()
        }
        for reply in self.grid.pull_messages(sorted(asked, key=asked.__getitem__)):  # oldest first
            self._hear(reply, *asked[reply.metadata.reply_to_message_id])
        for guest in self._guests.values():
            guest.forget(now - GREETINGS * HELLO_WAIT)

    def _hear(self, reply: Message, asked_at: float, node: int) -> None:
        """Note what a SuperNode says of itself; one that says something new comes last."""
        guest, hello = self._guests[node], unpack_hello(reply)
        guest.forget(asked_at)  # what answers an earlier greeting is out of date
        if not guest.hello or guest.hello.problem or guest.hello.client != hello.client:
            guest.place = next(self._places)
        guest.hello, guest.recheck = hello, False
        if self.simulated:
            if reply.has_error() and not self.complete:
                raise RunError(f"a SuperNode could not start: {hello.problem}")
            self.at_least = max(self.at_least, hello.nodes)

    def _fleet(self) -> Fleet:
        """Return the nodes that fit; of two with the same client, that which has it for longer."""
        self._rejected = {}
        here: dict[int, Hello] = {}
        owners: dict[int, int] = {}
        for node, guest in sorted(self._guests.items(), key=lambda item: item[1].place):
            if not (hello := guest.hello):
                continue
            problem = hello.problem or self._problem_of(hello, owners)
            if problem:
                self._reject(node, hello, problem)
                continue
            here[node] = hello
            if hello.client != "any":
                owners[hello.client] = node
        samples = {
            client: {part: getattr(here[node], part) for part in PARTS}
            for client, node in owners.items()
        }
        return Fleet(
            sorted(here),
            all(hello.cuda for hello in here.values()),
            max((h.workers for h in here.values()), default=0) if self.simulated else 0,
            {client: Bound(owners[client], samples[client]) for client in sorted(owners)},
        )

    def _problem_of(self, hello: Hello, owners: Mapping[int, int]) -> str:
        """Say why a SuperNode does not fit into this run; empty if it does."""
        client = hello.client
        if client == "any":
            return 'it has no data, the run has dataset = "device"' if self.devices else ""
        if not self.devices:
            return 'it has data of its own, which need dataset = "device"'
        if not 0 <= client < self.devices:
            return f"client-id = {client}: must be 0 to {self.devices - 1} (num-clients)"
        if client in owners:
            return f"client-id = {client} is that of SuperNode {owners[client]}, too; change one"
        if not (hello.train and hello.test):
            return "it has no samples to train or test on"
        for part in PARTS:
            if (count := getattr(hello, part)) > self.max_samples:
                return f"it claims {count} {part} samples: at most {self.max_samples} (max-samples)"
        return ""

    def _reject(self, node: int, hello: Hello, problem: str) -> None:
        """Say so once."""
        client = "" if hello.client == "any" else f", client {hello.client}"
        self._rejected[node] = reason = f"SuperNode {node}{client}: {problem}"
        if reason not in self._reported:
            log.info("left out: %s", reason)
        self._reported.add(reason)

    def _too_few(self, fleet: Fleet, unknown: list[int]) -> str:
        """Say how many there are, who was left out, and who is there but did not answer."""
        count = f"{len(fleet.nodes)} of {self.at_least} SuperNodes"
        waited = "" if self.closed else f" after {self.timeout:g} s"
        reasons = "; ".join(_first_three([*self._rejected.values()]))
        rejected = f"; left out: {reasons}" if reasons else ""
        silent = ", ".join(_first_three([f"SuperNode {node}" for node in unknown]))
        mute = f"; no answer from {silent}: see what is printed there" if silent else ""
        return f"{count}{waited} (min-available){rejected}{mute}"


def _first_three(names: list[str]) -> list[str]:
    """Return the first three, and how many more there are."""
    return names[:3] + ([f"{len(names) - 3} more"] if len(names) > 3 else [])
