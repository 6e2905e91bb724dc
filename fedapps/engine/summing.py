"""Whether the server sees each client's update, or only their sum (key `secure-sum`).

`fedapps.secure` says what the clients and the server compute. Here its steps are sent around the
training of a round, and settings and methods that need single updates are refused.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from fedapps.core import log
from fedapps.core.draws import sample_size
from fedapps.core.errors import RunError
from fedapps.core.words import number
from fedapps.engine.checks import replaced
from fedapps.engine.privacy_mode import RESTS_ON
from fedapps.method.flower import BaseStrategy
from fedapps.method.update import SERVER, ClientUpdate, Failure, Updates
from fedapps.models.layers import Arrays
from fedapps.secure.client import FEWEST, STEPS
from fedapps.secure.masks import LIMIT, decoded
from fedapps.secure.server import SumServer, TooFew
from fedapps.training.plan import Plan
from fedapps.wire.arrays import MASKED
from fedapps.wire.checks import invalid_values
from fedapps.wire.exchange import answers_to
from fedapps.wire.fleet import Fleet
from fedapps.wire.grid import StreamingGrid
from fedapps.wire.requests import RoundInfo
from fedapps.wire.steps import pack_step, unpack_step

MOST = 500  # clients of a round: its work and its messages grow with their square


class Summing:
    """Without `secure-sum`: the server sees every update.

    In a round, `failures` are the clients that failed before training, `boxes` what clients get
    with their training request, and `moved` the bytes (down, up) of each client's other messages.
    `spoilt` says why the round has no sum though enough clients have answered; "" if it has one.
    """

    grid: StreamingGrid

    def __init__(self) -> None:
        self.failures: list[Failure] = []
        self.boxes: dict[int, bytes] = {}
        self.spoilt = ""
        self.moved: dict[int, tuple[int, int]] = {}

    def enough(self, round_: int, selected: list[int]) -> list[int]:
        """Return the clients of a round: those that are selected, or none."""
        return selected

    def begin(
        self, round_: int, plans: dict[int, Plan], info: RoundInfo, fleet: Fleet
    ) -> dict[int, Plan]:
        """Prepare a round; return the plans of the clients that can train."""
        return plans

    def release(self, updates: Updates, failures: list[Failure]) -> Updates:
        """Return what the server's code may see of the updates; add clients that failed."""
        return updates


class SecureSumming(Summing):
    """Secure sums; the constructor raises `RunError` for what needs more than the sum."""

    def __init__(self, strategy: BaseStrategy) -> None:
        super().__init__()
        self.strategy = strategy
        if why := _cannot(strategy):
            raise RunError(f"secure-sum = true: {why}")
        self.equal = strategy.settings.dp.by_clients  # all clients weigh 1
        self.server = SumServer()

    def enough(self, round_: int, selected: list[int]) -> list[int]:
        """Return nobody, with an event, if so many drop out in a simulation that there is no sum.

        Too few devices fail, so that a run that goes on without a sum ends.
        """
        if not 0 < len(selected) < FEWEST or self.strategy.devices:
            return selected
        there = number(len(selected), "client")
        self.strategy.event(round_, "server", "no-sum", f"{there} there, and it needs {FEWEST}")
        return []

    def begin(
        self, round_: int, plans: dict[int, Plan], info: RoundInfo, fleet: Fleet
    ) -> dict[int, Plan]:
        """Have the clients make keys and share them; return the plans of those that did."""
        self._check_layers(round_, plans)
        self.server, self.boxes, self.spoilt = SumServer(), {}, ""
        self.failures = self._too_large(round_, plans)
        self.moved = dict.fromkeys(plans, (0, 0))
        self.round, self.info, self.fleet = round_, info, fleet
        fit = plans.keys() - {failure.client for failure in self.failures}
        first = {client: b"" for client in plans if client in fit}
        given = self._step("keys", first, self.server.keys)
        self.boxes = self._step("shares", given, self.server.shares)
        for client, boxes in self.boxes.items():
            self._count(client, len(boxes), 0)
        return {client: plans[client] for client in self.boxes}

    def release(self, updates: Updates, failures: list[Failure]) -> Updates:
        """Add up the masked updates; yield their mean once the masks have been removed.

        `num_examples` is the sum of the weights. If a client lies, the masks hide which one it is:
        the round has no sum, and nobody has failed.
        """
        weight = 0
        for update in updates:
            self.server.add(update.client, update.arrays[MASKED])
            weight += 1 if self.equal else update.num_examples
        there = self.server.uploaded
        if not there:
            return
        try:
            mean = self._unmasked(weight)
        except TooFew as error:
            failures += [Failure(client, f"secure sum: {error}") for client in there]
        except ValueError as error:
            self.spoilt = str(error)
            self.strategy.event(self.round, "server", "no-sum", self.spoilt)
            log.warning(f"round {self.round}: no sum: {self.spoilt}; the round changes nothing")
        else:
            yield ClientUpdate(SERVER, mean, weight, weight=1.0)

    def _unmasked(self, weight: int) -> Arrays:
        """Return the mean of a round, whose weights sum up to `weight`; see `unmask`."""
        if why := self.server.too_few(self.server.uploaded):
            raise TooFew(why)
        answers, failed = self._ask("unmask", self.server.uploads())
        total = self.server.unmask(answers)
        for failure in (*failed, *self.server.failures):  # not of the round: the update counts
            what = f"secure sum, unmask: {failure.cause}"
            self.strategy.event(self.round, failure.client, "unanswered", what)
        mean, found = decoded(total, self.shapes)
        if found != weight:
            raise ValueError(f"masks are left (a weight of {found}, not {weight}): a client lies")
        for name, array in mean.items():
            if problem := invalid_values(array, self.strategy.settings.max_value):
                raise ValueError(f"the mean of {name} is {problem}")
        return mean

    def _check_layers(self, round_: int, plans: Mapping[int, Plan]) -> None:
        """Refuse clients that upload different layers."""
        layout = self.strategy.layout
        uploads = [plan.up(layout) for plan in plans.values()]
        if any(upload != uploads[0] for upload in uploads):
            raise RunError(
                f"secure-sum = true: in round {round_} clients upload different layers, and there "
                "is only one sum; use false"
            )
        self.shapes = {name: layout.shapes[name] for name in (*uploads, ())[0]}

    def _too_large(self, round_: int, plans: Mapping[int, Plan]) -> list[Failure]:
        """Return who has too many samples, where the sum of all would not fit in 64 bits.

        These are the devices that would take more than their share of it: their number of samples
        is their own claim. Raises `RunError` if half of them would, or if the numbers are known.
        """
        s = self.strategy.settings
        counts = {c: 1 if self.equal else self.strategy.count(c, "train") for c in plans}
        samples = sum(counts.values())
        if samples * s.max_value < LIMIT or s.dp.shared_out:  # `Distributed` limits dp.clip-norm
            return []
        share = LIMIT / len(plans)
        large = [client for client, count in counts.items() if count * s.max_value >= share]
        if not s.on_devices or 2 * len(large) >= len(plans):
            raise RunError(
                f"max-value = {s.max_value:g}: with secure-sum it must be below "
                f"{LIMIT / samples:g}, because round {round_} has"
                f" {number(samples, 'client' if self.equal else 'sample')}"
            )
        limit = math.ceil(share / s.max_value)
        most = f"with max-value = {s.max_value:g} it must have fewer than {limit}"
        causes = {c: f"secure sum: it says that it has {counts[c]} samples; {most}" for c in large}
        return [Failure(client, cause) for client, cause in causes.items()]

    def _step(
        self,
        step: str,
        given: Mapping[int, bytes],
        take: Callable[[Mapping[int, bytes]], dict[int, bytes]],
    ) -> dict[int, bytes]:
        """Do a step; return what clients are given for the next, nothing if there are too few."""
        if not given:
            return {}
        answers, failed = self._ask(step, given)
        following = take(answers)
        failed += self.server.failures
        if why := self.server.too_few(following):
            failed += [Failure(client, why) for client in following]
            following = {}
        self.failures += [
            replace(failure, cause=f"secure sum, {step}: {failure.cause}") for failure in failed
        ]
        return following

    def _ask(self, step: str, given: Mapping[int, bytes]) -> tuple[dict[int, bytes], list[Failure]]:
        """Send what clients are given for a step; return their answers, and the failures.

        All steps together wait as long as the training. Each has its own part of this, so that who
        is slow in one leaves the others as much time as before.
        """
        hosts = self.fleet.hosts([*given])
        messages = [
            pack_step(self.info, node, self.round, step, {c: given[c] for c in clients})
            for node, clients in hosts
        ]
        asked = [clients for _, clients in hosts]
        timeout = self.strategy.settings.round_timeout / len(STEPS)
        answers, failures = answers_to(self.grid, messages, asked, timeout, unpack_step)
        for client, bytes_ in given.items():
            self._count(client, len(bytes_), len(answers.get(client, b"")))
        return answers, failures

    def _count(self, client: int, down: int, up: int) -> None:
        before = self.moved[client]
        self.moved[client] = before[0] + down, before[1] + up


def _cannot(strategy: BaseStrategy) -> str:
    """Say what in the method or the settings of a run needs more than sums; "" if nothing does."""
    s, clients = strategy.settings, strategy.workspace.population.training
    plan = strategy.plan(1, clients[0])
    if not (plan.upload or plan.sends):
        return "clients upload nothing; use false"
    if plan.sends or plan.channel or replaced(strategy, RESTS_ON):
        return "this strategy needs more than the mean of the updates; use false"
    for key, value, off in (
        ("presum", str(s.presum).lower(), "false"),
        ("aggregation", s.aggregation, "mean"),
        ("dp.mode", s.dp.mode if s.dp.mode == "central" else "none", "none"),
        ("attack", s.attack if s.attack in ("alie", "inflated-count") else "none", "none"),
        ("round-mode", s.round_mode, "sync"),
        ("deadline", f"{s.deadline:g}", "0"),
        ("over-selection", f"{s.over_selection:g}", "0"),
    ):
        if value != off:
            return f"{key} = {value} needs every client's update; use {key}={off}"
    count = sample_size(len(clients), s.fraction_train)
    if not FEWEST <= count <= MOST:
        return f"a round has {count} clients (fraction-train), and it needs {FEWEST} to {MOST}"
    return ""
