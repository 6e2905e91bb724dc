"""Who is asked in a round, and whose update counts when: the clock of a run.

`Clock` asks whom the method selects, and counts every update. `VirtualClock` knows how long each
client takes on its device (`devices`): the bytes that it downloads and uploads, and the
multiply-accumulates that it computes, divided by the speeds of its device. So a round can end
before all clients have answered, and an update can count in a later round than that in which its
client was asked. docs/time.md explains the keys.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from fedapps.core import log
from fedapps.core.draws import generator, sample_size, sample_some
from fedapps.core.errors import RunError
from fedapps.core.ids import Ids
from fedapps.engine.checks import replaced
from fedapps.engine.on_its_way import Answer, OnItsWay
from fedapps.engine.profiles import read
from fedapps.engine.robust import buffer_of
from fedapps.method.flower import BaseStrategy
from fedapps.method.update import ClientUpdate, Updates, replace
from fedapps.models.layers import Arrays

# Names in the strategy's state, for checkpoints; the last is how many updates have counted.
NOW, DEVICES, COUNTED = "clock/now", "clock/devices", "clock/counted"
ROUNDING = 1e-9  # 1.1 * 10 clients are 11, not 12
Traffic = Callable[[int], tuple[int, int]]  # returns a client's bytes (down, up) in this round


class Clock:
    """Without virtual time: the method selects, everybody is waited for, and everybody counts."""

    def __init__(self, strategy: BaseStrategy) -> None:
        self.strategy = strategy

    @property
    def now(self) -> float | None:
        """Virtual seconds since the start of the run."""
        return None

    @property
    def at_work(self) -> Collection[int]:
        """The clients at work for an earlier round."""
        return ()

    def begin(self) -> None:
        """Begin a run, or go on with a resumed one; raises `RunError` if that is impossible."""

    def there(self, round_: int) -> Sequence[int]:
        """Return the clients that can be asked."""
        return self.strategy.clients

    def select(self, round_: int, there: Sequence[int]) -> list[int]:
        """Return the clients to ask: those that the method selects, whoever else is `there`."""
        return self.strategy.select(round_)

    def reached(self, round_: int, selected: Sequence[int]) -> list[int]:
        """Return the selected clients that will answer."""
        return [*selected]

    def counted(self, round_: int, updates: Updates, traffic: Traffic) -> Updates:
        """Return the updates that make the new model, in client order."""
        return updates

    def close(self, moved: Mapping[int, tuple[int, int]], server_macs: int) -> None:
        """End the round: clients have also `moved` bytes (down, up), the server has computed."""

    def end(self) -> None:
        """Warn at the end of a run if no update has counted in any round."""


class VirtualClock(Clock):
    """Virtual time, from counted work and the speeds of `devices`; see `Clock`.

    The cohort has m clients. A round with `round-mode` "sync" ends when all clients that it asked
    have answered (with `over-selection`, the first m), or at the `deadline`. With "async" m clients
    are always at work, and a round ends when `buffer` updates have come. This is FedBuff (Nguyen et
    al., Federated Learning with Buffered Asynchronous Aggregation, AISTATS 2022), except that the
    clients that are done get their next model when the buffer is full (our choice), so that the
    clients of a round can run at the same time on any engine, and that an update's weight is that
    of the method (FedAvg's n_i) instead of 1.

    An update that comes s rounds late changes the model w that is there by 1 / sqrt(1 + s) times
    w_i - w_t, where w_t is what client i had downloaded. Statistics of BatchNorms are measured anew
    in each training: changes of several clients would add up, and variances would become negative.
    So their change is w_i - w. An update of the same round counts as it is.
    """

    def __init__(self, strategy: BaseStrategy) -> None:
        super().__init__(strategy)
        s = strategy.settings
        self.profiles = read(s.devices, s.num_clients, s.seed)
        self.is_async = s.round_mode == "async"
        ends_early = bool(s.deadline or s.over_selection)
        # whether an update can count in a later round, and whether it depends on others' updates
        self.keeps = self.is_async or (s.late == "later" and ends_early)
        self.ranks = self.keeps or bool(s.over_selection)
        self.limit = s.deadline or math.inf
        self.buffer = buffer_of(s, self.cohort)
        self.on_their_way = OnItsWay(strategy.state)
        strategy.state[NOW] = np.zeros(())
        strategy.state[DEVICES] = self.profiles.digest
        strategy.state[COUNTED] = np.zeros((), np.int64)
        self._warned = False  # that in a round all were late
        self._seconds: dict[int, float] = {}  # of the clients that have answered in this round
        self._gone = 0  # how many clients of this round have dropped out
        self._end = 0.0  # of a round in which it depends on all updates who counts

    @property
    def now(self) -> float:
        """Virtual seconds since the start of the run."""
        return float(self.strategy.state[NOW])

    @property
    def at_work(self) -> Collection[int]:
        """The clients whose updates are on their way."""
        return self.on_their_way.clients

    def begin(self) -> None:
        """Refuse to go on with a run that began with other devices."""
        if (self.strategy.state[DEVICES] != self.profiles.digest).any():
            text = self.strategy.settings.devices
            raise RunError(f'devices = "{text}": the devices are not those that the run began with')

    def there(self, round_: int) -> Sequence[int]:
        """Return the clients that are available, and not at work for an earlier round."""
        clients, busy = self.strategy.clients, self.at_work
        if (chance := self.profiles.availability).min() == 1 and not busy:
            return clients
        free = self._draws("availability", round_) < chance
        free[[*busy]] = False
        ids = np.fromiter(clients, np.int64)
        return Ids(ids[free[ids]])

    def select(self, round_: int, there: Sequence[int]) -> list[int]:
        """Draw the clients to ask as FedAvg does, unless the method selects by itself.

        These are the m of the cohort, and more with `over-selection`. With "async", they fill the
        places that are free.
        """
        s = self.strategy.settings
        if replaced(self.strategy, ["select"]):
            return [client for client in self.strategy.select(round_) if client in there]
        size = math.ceil((1 + s.over_selection) * self.cohort - ROUNDING)
        if self.is_async:
            size = max(0, size - len(self.at_work))  # devices can have left
        drawn = self.strategy.overall(round_)
        chosen = sample_some(s.seed, drawn, len(there), min(size, len(there)))
        return [there[index] for index in chosen]

    def reached(self, round_: int, selected: Sequence[int]) -> list[int]:
        """Return the selected clients without those that drop out; these are events."""
        self._seconds, self._gone = {}, 0
        if not (chance := self.strategy.settings.dropout):
            return [*selected]
        draws = self._draws("dropout", round_)
        for client in selected:
            if draws[client] < chance:
                self._gone += 1
                self.strategy.event(round_, client, "dropout", "does not answer")
        return [client for client in selected if draws[client] >= chance]

    def counted(self, round_: int, updates: Updates, traffic: Traffic) -> Updates:
        """Return the updates that make the new model, in client order.

        Only if it depends on all updates who counts, they are held until the last one has come.
        """
        count, find = 0, self._ranked if self.ranks else self._in_time
        for update in find(round_, updates, traffic):
            count += 1
            yield update
        self.strategy.state[COUNTED] = self.strategy.state[COUNTED] + count
        if self._seconds and not (count or self.keeps or self._warned):
            self._warned, took = True, min(self._seconds.values())
            log.warning(
                f"round {round_}: all clients were late, so no update counts: the fastest took"
                f" {took:.3g} virtual seconds; deadline = {self.limit:g} is too short"
            )

    def close(self, moved: Mapping[int, tuple[int, int]], server_macs: int) -> None:
        """Move the clock to the end of the round, when the server has the new model."""
        end = self._end
        if not self.ranks:
            for client, (down, up) in moved.items():
                more = self.profiles.seconds(client, 0, down, up)
                self._seconds[client] = self._seconds.get(client, 0.0) + more
            took = self.strategy.together(self._seconds)
            wait_on = self._gone and self.limit < math.inf  # for who has dropped out
            end = self.now + (self.limit if wait_on else min(took, self.limit))
        self.strategy.state[NOW] = np.array(end + server_macs / self.profiles.server)

    def end(self) -> None:
        """Warn at the end of a run if no update has counted, unless the server trained alone."""
        if not (self.strategy.state[COUNTED] or self.strategy.needs_union):
            cure = "a longer deadline" if self.limit < math.inf else "a smaller dropout"
            if self.strategy.settings.on_devices and self.limit < math.inf:
                cure = "round-timeout instead of deadline"
            log.warning(f"no update has counted in any round, so nothing was learned: use {cure}")

    # Inside -------------------------------------------------------------------------------

    @property
    def cohort(self) -> int:
        """m, the number of clients in a round, or that are at work at the same time."""
        return sample_size(len(self.strategy.clients), self.strategy.settings.fraction_train)

    def _draws(self, purpose: str, round_: int) -> np.ndarray:
        """Return a number from 0 to 1 for each client, a function of seed, round and client."""
        s = self.strategy.settings
        return generator(s.seed, purpose, self.strategy.overall(round_)).random(s.num_clients)

    def _takes(self, update: ClientUpdate, traffic: Traffic) -> float:
        """Return how long a client took; note it."""
        down, up = traffic(update.client)
        seconds = self.profiles.seconds(update.client, update.checked.macs, down, up)
        self._seconds[update.client] = seconds
        return seconds

    def _in_time(self, round_: int, updates: Updates, traffic: Traffic) -> Updates:
        """Let the updates count that come before the deadline, as they arrive."""
        for update in updates:
            if self._takes(update, traffic) <= self.limit:
                yield update
            else:
                self._late(round_, update.client)

    def _late(self, round_: int, client: int) -> None:
        took = f"took {self._seconds[client]:.6g} virtual seconds"
        self.strategy.event(round_, client, "late", took)

    def _ranked(self, round_: int, updates: Updates, traffic: Traffic) -> Updates:
        """Decide by the order of arrival who counts; return these in client order."""
        start, server = self.now, self.strategy.arrays
        parameters = {key: server[key] for key in self.strategy.layout.parameters}
        own = [Answer(start + self._takes(u, traffic), round_, u) for u in updates]
        answers = [*self.on_their_way.take(), *own]
        answers.sort(key=lambda answer: (answer.finish, answer.update.client))
        asked = [a for a in answers if self.is_async or a.round == round_]  # for whom it waits
        need = self._needed(len(asked) + self._gone)
        self._end = self._ends(asked, need, answers)
        left_out = {answer.update.client for answer in asked[need:]}
        come: list[Answer] = []
        for answer in answers:
            client = answer.update.client
            if answer.finish <= self._end and client not in left_out:
                come.append(answer)
                continue
            if answer.round == round_ and not self.is_async:
                self._late(round_, client)
            if self.keeps:
                self.on_their_way.keep(answer, round_, parameters)
        for answer in sorted(come, key=lambda a: a.update.client):
            yield self._current(answer, round_, server)

    def _ends(self, asked: Sequence[Answer], need: int, answers: Sequence[Answer]) -> float:
        """Return when the round ends that needs so many of the updates for which it waits."""
        limit = self.now + self.limit
        if len(asked) < need and self.limit < math.inf:  # it waits for who has dropped out
            return limit
        # if all are at work for earlier rounds, it waits for the first of them
        return min(limit, max([self.now, *(a.finish for a in asked[:need] or answers[:1])]))

    def _needed(self, asked: int) -> int:
        """Return how many of the updates that a round waits for end it."""
        if self.is_async:
            return min(self.buffer, asked)
        return min(self.cohort, asked) if self.strategy.settings.over_selection else asked

    def _current(self, answer: Answer, round_: int, server: Arrays) -> ClientUpdate:
        """Return an update as a change of the model that is there now; see `VirtualClock`."""
        late, update = round_ - answer.round, answer.update
        if late or self.is_async:
            self.strategy.event(round_, update.client, "staleness", str(late))
        if not late:
            return update
        weight, arrays = 1 / math.sqrt(1 + late), {}
        for key, array in update.arrays.items():
            change = array.astype(np.float64)
            if key not in self.strategy.layout.parameters:
                change -= server[key]
            arrays[key] = (server[key] + weight * change).astype(np.float32)
        return replace(update, arrays=arrays)
