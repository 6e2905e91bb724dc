"""Keep track of the connected SuperNodes: greet those that come, forget those that leave."""

import itertools
import math
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from flwr.app import Message

from fedapps.core import log
from fedapps.core.errors import RunError
from fedapps.core.signing import SignedModel
from fedapps.core.words import number
from fedapps.wire.contacts import LeftOut, Lookout
from fedapps.wire.fleet import Bound, Fleet
from fedapps.wire.grid import StreamingGrid, poll_wait
from fedapps.wire.hello import Hello, pack_greeting, unpack_hello

FIRST_LINE = 5.0  # seconds of waiting before a log line; the next when the wait has doubled
PARTS = ("train", "test", "validation")
HELLO_WAIT = 60.0  # seconds that a run waits, at its begin, for a newcomer to say who it is
BUSY_WAIT = 3.0  # seconds that a round waits for a newcomer, or one that was late; Flower's ask so
REFRESH = 600.0  # seconds after which a device is asked again, as its disk fills meanwhile
GREETINGS = 3  # unanswered greetings, HELLO_WAIT apart, to which an answer still counts
BUSY = "it has not answered in time (round-timeout), and takes part again once it does"
MORE = "it has more samples than it said, and takes part again once it says how many"


@dataclass
class Guest:
    """A connected SuperNode. Times are monotonic, in seconds."""

    came: float  # when it was first seen
    asked: dict[str, float] = field(default_factory=dict)  # unanswered greetings: when sent
    hello: Hello | None = None  # its last answer
    place: int = 0  # lower means that it has claimed its client id for longer
    answered: float = -math.inf  # when the greeting of its last answer was sent
    outdated: float = -math.inf  # answers to greetings that were sent earlier are out of date
    late: float = -math.inf  # when it was last given up; it may be at work until it answers
    why: str = BUSY  # why it is left out until then
    has_model: bool = False  # whether it has the initial model, as far as is known

    def is_due(self, now: float) -> bool:
        """Tell whether to greet it now: its answer is needed, and no greeting is recent."""
        asked = any(now - at < HELLO_WAIT for at in self.asked.values())
        return not asked and (self.hello is None or self.answered < self.outdated)

    @property
    def is_busy(self) -> bool:
        """Whether it may still be at work for an earlier round: it answers in order."""
        return self.answered < self.late

    def answers_soon(self, now: float) -> bool:
        """Tell whether a round waits for it, which is busy, to say that it no longer is."""
        return any(now - at < BUSY_WAIT for at in self.asked.values())

    def forget(self, until: float) -> None:
        """Stop waiting for answers to greetings that were sent at the time `until` or before."""
        self.asked = {message: at for message, at in self.asked.items() if at > until}


class NodeRegistry:
    """The connected SuperNodes: greets those that come and forgets those that leave.

    `device_count` is the number of clients if each is a device with data of its own, else 0.
    A device may have at most `max_samples` in each subset; one whose client is `held_out` does not
    count as available, because it does not train. `simulated` says that the SuperNodes are
    those of Flower's simulation, so that what they say about it can be trusted. Greetings bring the
    `initial` model to those that may not have it yet. A SuperNode that does not fit the run is left
    out, with a log line and an event.
    """

    def __init__(
        self,
        grid: StreamingGrid,
        at_least: int,
        timeout: float,
        device_count: int = 0,
        simulated: bool = True,
        max_samples: int = 2**40,
        held_out: Collection[int] = (),
        initial: SignedModel | None = None,
    ) -> None:
        self.grid, self.at_least, self.timeout, self.initial = grid, at_least, timeout, initial
        self.device_count, self.simulated = device_count, simulated and not device_count
        self.max_samples, self.held_out = max_samples, held_out
        self.closed = simulated and bool(device_count)  # no further SuperNodes will come
        self.lookout = Lookout()
        self.complete = False  # whether there have ever been enough
        self._guests: dict[int, Guest] = {}  # by node, ascending
        self._places = itertools.count(1)
        self._rejected: dict[int, LeftOut] = {}  # by node
        self._reported: dict[int, str] = {}  # by node: the reason that was told last
        self._busy: dict[int, int | str] = {}  # by node: the clients left out only as they are late

    def wait_for_nodes(self) -> Fleet:
        """Wait for `at_least` SuperNodes, and for newcomers to say who they are.

        SuperNodes that did not fit or did not answer are asked again once per `HELLO_WAIT`, because
        they may be repaired meanwhile; neither these nor SuperNodes to recheck are waited for. Busy
        ones get `BUSY_WAIT`, and newcomers, too, once there have been enough. In a simulation,
        SuperNodes register one by one, so each also says how many there will be. Raises `RunError`
        if there are too few after `timeout` seconds; in a simulation, as soon as that is certain.
        """
        start, next_line, enough_since = time.monotonic(), FIRST_LINE, math.inf
        next_recheck = start
        if self.lookout.folder:
            met = {node: guest for node, guest in self._guests.items() if guest.hello}
            self._recheck(node for node, guest in met.items() if start - guest.answered > REFRESH)
        while True:
            begun = time.monotonic()
            self._see(sorted(self.grid.get_node_ids()))
            if time.monotonic() >= next_recheck:
                self._fleet()  # finds out who does not fit now
                self._recheck(node for node in self._rejected if not self._guests[node].asked)
                next_recheck = time.monotonic() + HELLO_WAIT
            self._read(self._greet())
            fleet = self._fleet()
            now = time.monotonic()
            unknown = {node: g for node, g in self._guests.items() if not g.hello}
            self.lookout.look(fleet, self._rejected, unknown)
            newcomers = [g.came for g in unknown.values() if now - g.came < HELLO_WAIT]
            all_here = self.closed and self._guests and not newcomers and not self._busy
            late = now - start > self.timeout or all_here
            ready = self._ready(fleet)
            at_work = sum(client not in self.held_out for client in self._busy.values())
            enough = 0 < ready >= self.at_least - at_work
            enough_since = min(enough_since, now) if enough else math.inf
            patience = BUSY_WAIT if self.complete else HELLO_WAIT
            soon = any(now - came < patience for came in newcomers)
            soon = soon or any(self._guests[node].answers_soon(now) for node in self._busy)
            if enough and (late or not soon or now - enough_since >= patience):
                self.complete = True
                return fleet
            if late:
                raise RunError(self._too_few(fleet, [*unknown]))
            if now - start > next_line:
                next_line = 2 * (now - start)
                log.info("%s", self._waiting(fleet, len(newcomers), now - start))
            time.sleep(poll_wait(now - start, now - begun))  # as in a round

    def _ready(self, fleet: Fleet) -> int:
        """Return how many SuperNodes can train: those of held-out clients cannot."""
        return len(fleet.nodes) - len(fleet.bound.keys() & {*self.held_out})

    def _waiting(self, fleet: Fleet, starting: int, seconds: float) -> str:
        """Say what the server waits for: SuperNodes that are starting, or that must connect."""
        ready = self._ready(fleet)
        if ready + starting >= self.at_least:
            return f"{number(starting, 'SuperNode')} starting, for {seconds:.0f} s now"
        come = f"{ready} of {self.at_least} are ready (min-available)"
        more = f", {starting} starting" if starting else ""
        return f"waiting for {number(self.at_least - ready - starting, 'SuperNode')}: {come}{more}"

    def recheck(
        self,
        clients: Iterable[int],
        fleet: Fleet,
        late: Collection[int] = (),
        grown: Collection[int] = (),
    ) -> None:
        """Ask the devices of `clients` again: one that failed may have been restarted.

        It gets the initial model again, because it may have lost that. Those that are `late`, too,
        have not answered at all, and are left out until they do: else they would work for rounds
        that are over. So are those that have `grown`, as no reply of theirs would count.
        """
        nodes = {fleet.bound[client].node: client for client in clients if client in fleet.bound}
        self._recheck(nodes)
        for node in self._guests.keys() & nodes:
            guest = self._guests[node]
            guest.has_model = False
            if nodes[node] in {*late, *grown}:
                guest.late, guest.why = guest.outdated, MORE if nodes[node] in grown else BUSY

    def _recheck(self, nodes: Iterable[int]) -> None:
        for node in self._guests.keys() & nodes:
            self._guests[node].outdated = time.monotonic()

    def _see(self, nodes: Sequence[int]) -> None:
        """Forget who has left, and read the answers to earlier greetings.

        A greeting that is too old is then given up; a long round must not cost its answer.
        """
        now = time.monotonic()
        self._guests = {node: self._guests.get(node) or Guest(now) for node in nodes}
        self._read({message: node for node, g in self._guests.items() for message in g.asked})
        for guest in self._guests.values():
            guest.forget(now - GREETINGS * HELLO_WAIT)

    def _greet(self) -> dict[str, int]:
        """Greet those that are due; return their nodes by the id of the greeting."""
        now = time.monotonic()
        due = [node for node, guest in self._guests.items() if guest.is_due(now)]
        has_it = {node for node in due if self._guests[node].has_model}
        greetings = [pack_greeting(n, None if n in has_it else self.initial) for n in due]
        ids = list(self.grid.push_messages(greetings)) if due else []
        sent = {message: node for node, message in zip(due, ids, strict=True) if message}
        for message, node in sent.items():  # the other nodes could not be reached
            self._guests[node].asked[message] = now
        return sent

    def _read(self, greetings: Mapping[str, int]) -> None:
        """Read the answers that have come to greetings (nodes by message id), oldest first."""
        sent = {message: self._guests[node].asked[message] for message, node in greetings.items()}
        for reply in self.grid.pull_messages(sorted(sent, key=sent.__getitem__)):
            message = reply.metadata.reply_to_message_id
            self._hear(reply, sent[message], greetings[message])

    def _hear(self, reply: Message, asked_at: float, node: int) -> None:
        """Record what a SuperNode says about itself; a new client id gets the last place."""
        guest, hello = self._guests[node], unpack_hello(reply)
        self.lookout.greeted(node, hello.health, time.monotonic() - asked_at)
        guest.forget(asked_at)  # answers to earlier greetings are out of date
        if not guest.hello or guest.hello.problem or guest.hello.client != hello.client:
            guest.place = next(self._places)
        guest.hello, guest.answered, guest.has_model = hello, asked_at, not hello.problem
        if self.simulated and not self.complete:
            if hello.problem:
                raise RunError(f"a SuperNode could not start: {hello.problem}")
            if self.at_least > hello.nodes:  # the run would wait for ever
                most = f"must be at most num-supernodes = {hello.nodes}"
                raise RunError(f"min-available = {self.at_least}: {most}")
            self.at_least = hello.nodes

    def _fleet(self) -> Fleet:
        """Return the nodes that fit; of two with the same client id, the one that had it first."""
        self._rejected, self._busy = {}, {}
        here: dict[int, Hello] = {}
        owners: dict[int, int] = {}
        for node, guest in sorted(self._guests.items(), key=lambda item: item[1].place):
            if not (hello := guest.hello):
                continue
            problem = hello.problem or self._problem_of(hello, owners)
            if problem:
                self._reject(node, hello, problem)
                continue
            if hello.client != "any":
                owners[hello.client] = node
            if guest.is_busy:
                self._busy[node] = hello.client
                self._reject(node, hello, guest.why)
            else:
                here[node] = hello
                self._reported.pop(node, None)  # what comes again is told again
        samples = {
            client: {part: getattr(here[node], part) for part in PARTS}
            for client, node in sorted(owners.items())
            if node in here
        }
        return Fleet(
            sorted(here),
            all(hello.cuda for hello in here.values()),
            max((h.workers for h in here.values()), default=0) if self.simulated else 0,
            {client: Bound(owners[client], counts) for client, counts in samples.items()},
        )

    def _problem_of(self, hello: Hello, owners: Mapping[int, int]) -> str:
        """Say why a SuperNode does not fit into this run; empty if it does."""
        client = hello.client
        if client == "any":
            return 'it has no data, but the run has dataset = "device"' if self.device_count else ""
        if not self.device_count:
            return 'it has its own data, which needs dataset = "device"'
        if not 0 <= client < self.device_count:
            return f"client-id = {client}: must be 0 to {self.device_count - 1} (num-clients)"
        if client in owners:
            return f"client-id = {client} is also that of SuperNode {owners[client]}; change one"
        if not (hello.train and hello.test):
            return "it has no samples to train or test on"
        for part in PARTS:
            if (count := getattr(hello, part)) > self.max_samples:
                return f"it claims {count} {part} samples: at most {self.max_samples} (max-samples)"
        return ""

    def _reject(self, node: int, hello: Hello, problem: str) -> None:
        """Leave a SuperNode out, and log the reason once."""
        own = None if hello.client == "any" else hello.client
        reason = f"SuperNode {node}{'' if own is None else f', client {own}'}: {problem}"
        self._rejected[node] = LeftOut(reason, own if own in range(self.device_count) else None)
        if self._reported.get(node) != reason:
            log.info("left out: %s", reason)
            self.lookout.event("server" if own is None else own, "left-out", reason)
        self._reported[node] = reason

    def _too_few(self, fleet: Fleet, unknown: list[int]) -> str:
        """Say how many SuperNodes there are, which were left out, and which did not answer."""
        count = f"{self._ready(fleet)} of {self.at_least} SuperNodes"
        waited = "" if self.closed else f" after {self.timeout:g} s (round-timeout)"
        reasons = "; ".join(_first_three([misfit.reason for misfit in self._rejected.values()]))
        rejected = f"; left out: {reasons}" if reasons else ""
        silent = ", ".join(_first_three([f"SuperNode {node}" for node in unknown]))
        mute = f"; no answer from {silent}: see what is printed there" if silent else ""
        return f"{count} (min-available){waited}{rejected}{mute}"


def _first_three(names: list[str]) -> list[str]:
    """Return the first three names, followed by the number of further ones."""
    return names[:3] + ([f"{len(names) - 3} more"] if len(names) > 3 else [])
