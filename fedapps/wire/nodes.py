"""Who is there: SuperNodes that come are greeted, those that leave are forgotten."""

import math
import time
from collections.abc import Iterable, Mapping, Sequence

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
        self._hellos: dict[int, Hello] = {}  # by node, in the order of their first answers
        self._asked: dict[str, tuple[int, float]] = {}  # unanswered messages: to whom and when
        self._came: dict[int, float] = {}  # when each node that is there was first seen
        self._recheck: set[int] = set()
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
                self._recheck |= self._rejected.keys()
                next_recheck = time.monotonic() + HELLO_WAIT
            nodes = sorted(self.grid.get_node_ids())
            self._greet(nodes)
            fleet = self._fleet()
            now = time.monotonic()
            unknown = [node for node in nodes if node not in self._hellos]
            newcomers = [node for node in unknown if now - self._came[node] < self._patience]
            late = now - start > self.timeout or (self.closed and nodes and not newcomers)
            enough = len(fleet.nodes) >= self.at_least
            enough_since = min(enough_since, now) if enough else math.inf
            if enough and (late or not newcomers or now - enough_since >= self._patience):
                self.complete = True
                if any(self._came[node] >= start for node in unknown):
                    self._patience /= 2
                return fleet
            if late:
                raise RunError(self._too_few(fleet, unknown))
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
        self._recheck |= {fleet.bound[client].node for client in clients if client in fleet.bound}

    def _greet(self, nodes: Sequence[int]) -> None:
        """Forget who has left, ask newcomers who they are, and take the answers that are there."""
        for gone in self._came.keys() - nodes:
            del self._came[gone]
            self._hellos.pop(gone, None)
        self._asked = {id_: (n, at) for id_, (n, at) in self._asked.items() if n in self._came}
        now = time.monotonic()
        waiting = {node for node, at in self._asked.values() if now - at < HELLO_WAIT}
        known = self._hellos.keys() - self._recheck
        new = [node for node in nodes if node not in waiting and node not in known]
        for node in new:
            self._came.setdefault(node, now)
        ask = [pack_greeting(node) for node in new]
        ids = list(self.grid.push_messages(ask)) if ask else []
        self._asked |= {id_: (node, now) for id_, node in zip(ids, new, strict=True) if id_}
        for reply in self.grid.pull_messages([*self._asked]):  # the oldest first
            node, asked_at = self._asked.pop(reply.metadata.reply_to_message_id)
            self._forget_greetings(asked_at, node)  # what answers them is out of date
            hello, before = unpack_hello(reply), self._hellos.get(node)
            if before and (before.problem or before.client != hello.client):
                del self._hellos[node]  # to the end: who has had a client's id for longer keeps it
            self._hellos[node] = hello
            self._recheck.discard(node)
            if self.simulated:
                if reply.has_error() and not self.complete:
                    raise RunError(f"a SuperNode could not start: {hello.problem}")
                self.at_least = max(self.at_least, hello.nodes)
        self._forget_greetings(now - GREETINGS * HELLO_WAIT)

    def _forget_greetings(self, until: float, node: int | None = None) -> None:
        """Wait no more for answers to what was asked `until` then: of all SuperNodes or of one."""
        self._asked = {
            id_: (asked, at)
            for id_, (asked, at) in self._asked.items()
            if at > until or node not in (None, asked)
        }

    def _fleet(self) -> Fleet:
        """Return the nodes that fit, of each client the first one."""
        self._rejected = {}
        here: dict[int, Hello] = {}
        owners: dict[int, int] = {}
        for node, hello in self._hellos.items():
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
