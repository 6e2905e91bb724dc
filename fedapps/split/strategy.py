"""Split learning: clients hold the first layers of the model, the server the others.

Flower's train message opens a round, which then runs over the channel (`channel.py`): a client
sends the output of its layers for a batch ("smashed data") and the labels, and the server answers
with the gradient. Strategies define what the server does with a wave of such batches (`step`), or
with a whole round (`serve`). Images stay on a client, but smashed data and labels leave it; this is
how these methods work.
"""

import math
import re
import time
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import ClassVar

import torch

from fedapps.core import log
from fedapps.core.errors import DIVERGED, RunError
from fedapps.core.paths import expanded
from fedapps.method.flower import BaseStrategy
from fedapps.method.update import ClientUpdate, Failure, replace
from fedapps.models.layers import Arrays, Slice
from fedapps.split.channel import ChannelServer
from fedapps.split.rules import BatchGradients, Rules, Smashed, frame_limit, levelled
from fedapps.split.server_part import ServerPart
from fedapps.split.session import Session
from fedapps.split.setup import (
    LEAK,
    LOOPBACK,
    OversampleSettings,
    check_settings,
    least_cut,
    reachable,
    read_certificate,
    training_nodes,
)
from fedapps.training.channel import Channel
from fedapps.training.costs import TrainingStats
from fedapps.training.plan import Plan

REPLY_TIME = 15.0  # seconds that a SuperNode has left to reply for a client that is out


class SplitStrategy(BaseStrategy):
    """Base of strategies whose clients train layers 1..c with gradients from the server.

    A method defines `step`. `part` holds the server's layers in a round.
    """

    figures = (LEAK,)
    sends_its_model = False
    needs_classes = True  # labels travel with the features
    clips_by_sample = False
    relays: ClassVar[bool] = False  # whether clients' layers go both ways through the channel

    part: ServerPart

    def setup(self) -> None:
        """Check the settings, the cuts and the channel's address; raises `RunError`."""
        check_settings(self)
        s = self.settings
        for client in self.workspace.population.training:  # a bad cut ends the run here
            self.cut(client)
        self._tls = expanded(s.channel_tls, "channel-tls") if s.channel_tls else None
        self._certificate = read_certificate(self._tls) if self._tls else ""
        self._reach = reachable(s.channel_address, s.channel_reach)
        self._session: Session | None = None
        self._work: Future[None] | None = None

    @property
    def unused(self) -> tuple[str, ...]:
        """The keys without effect: the limit of oversample, except with devices."""
        options, s = self.options, self.settings
        if not isinstance(options, OversampleSettings):
            return ()
        limited = options.oversample and s.on_devices
        return () if limited else (f"{s.strategy}.oversample-limit",)

    # Hooks of a split method --------------------------------------------------------------

    def cut(self, client: int) -> int:
        """Return the number of layers on a client: by default the method's key `cut`."""
        return self.checked_cut(self.settings.method.cut)

    def prepare(self, round_: int, plans: Mapping[int, Plan]) -> None:
        """Make the server's part of this round: by default all layers after the smallest cut."""
        self.part = self.server_part(round_, self.server_layers(least_cut(plans)))

    @abstractmethod
    def step(self, round_: int, wave: list[Smashed]) -> BatchGradients:
        """Train the server's layers on a wave, one batch per client; return the gradients."""

    def serve(self, round_: int, session: Session) -> None:
        """Answer all batches of a round; by default all clients train at the same time."""
        for wave in session.waves(session.tokens):
            session.send(self.step(round_, wave))

    def parts(self) -> Iterable[ServerPart]:
        """Return all parts that the server trains in this round."""
        return [self.part]

    def part_of(self, client: int) -> ServerPart:
        """Return the part that a client has trained with."""
        return self.part

    def aggregate(self, round_: int, updates: Iterator[ClientUpdate]) -> Arrays:
        """Return means of the clients' layers with n_k, and the layers of the server's part."""
        return super().aggregate(round_, updates) | self.part.arrays()

    # To build on --------------------------------------------------------------------------

    def checked_cut(self, cut: int, key: str = "cut") -> int:
        """Return the cut that a key of the method gives; 0 means the default.

        Raises `RunError` if one side would have no layer.
        """
        count = len(self.layout.names)
        cut = cut or min(4, count // 2)
        if not 0 < cut < count:
            raise RunError(
                f"{self.settings.strategy}.{key} = {cut}: must be from 1 to {count - 1}, "
                "one less than the model's layers"
            )
        return cut

    def server_part(self, round_: int, layers: Slice) -> ServerPart:
        """Return some of the server's layers as a part that is trained in this round."""
        space = self.workspace.restricted(layers)
        space.reset({key: self.arrays[key] for key in space.initial})
        return ServerPart(space, layers, self.stage(round_, layers))

    def server_layers(self, cut: int) -> Slice:
        """Return the layers after a cut."""
        return self.layout.names[cut:]

    def batches(self, client: int) -> int:
        """Return the number of batches in a client's epoch."""
        return -(-self.count(client, "train") // self.settings.batch_size)

    def served(self) -> None:
        """Wait for the end of the round on the channel; raises `RunError` if the server failed."""
        if self._work:
            self._work.result()

    # The general hooks --------------------------------------------------------------------

    def plan(self, round_: int, client: int) -> Plan:
        """Return a plan in which the client trains and exchanges its own layers only."""
        layers = self.layout.names[: self.cut(client)]
        shared, stage = () if self.relays else layers, self.stage(round_, layers)
        if any(self.workspace.trainer.profile.lone[name] for name in self.layout.names):
            stage = replace(stage, least=2)  # for BatchNorm, also on the server
        return Plan(round=round_, download=shared, stages=(stage,), upload=shared)

    def evaluation_plan(self, round_: int, client: int) -> Plan:
        """Return a plan in which the client is evaluated with the whole model."""
        stages = self.finetuning(round_)
        return Plan(round=round_, download=self.layout.names, stages=stages, upload=())

    def newcomer_plan(self, round_: int, client: int) -> Plan:
        """Return the plan of an evaluation: a newcomer gets the whole model, as all clients do."""
        return self.evaluation_plan(round_, client)

    def after_round(self, round_: int) -> TrainingStats:
        """Return the costs of training the server's layers."""
        done = TrainingStats()
        for part in self.parts() if self._work else ():  # there are none without clients
            done.spend(part.costs())
        return done

    @contextmanager
    def running(self) -> Iterator[None]:
        """Serve the channel during the run."""
        s = self.settings
        if not self._tls and self._reach.rpartition(":")[0] not in LOOPBACK:
            log.warning("without channel-tls, features, labels and tokens are sent unencrypted")
        everyone = {c: self.plan(1, c) for c in self.workspace.population.training}
        one, known = dict.fromkeys(everyone, 1), () if self.devices else self.clients
        has = {c: self.count(c, "train") for c in known}  # a device can claim any number
        limits = (frame_limit(self._rules({c: p}, one), has.get(c, 0)) for c, p in everyone.items())
        self._channel = ChannelServer(s.channel_address, self._tls, s.num_clients, max(limits))
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="split-server")
        try:
            yield
        except Exception:
            if self._session:  # the server's own error comes first: clients fail because of it
                self._session.abort()
                self.served()
            raise
        finally:
            if self._session:
                self._session.abort()
            self._channel.stop()
            self._thread.shutdown(wait=False)

    def begin_round(self, round_: int, plans: dict[int, Plan]) -> dict[int, Plan]:
        """Open the session of a round; return plans with the address and token to join it."""
        if not plans:  # all have dropped out, say
            self._work = None
            return {}
        counts = {client: self.batches(client) for client in plans}
        if isinstance(self.options, OversampleSettings) and self.options.oversample:
            limit = self.options.oversample_limit if self.devices else math.inf
            counts = levelled(counts, limit)
            stages = {c: replace(plan.stages[0], batches=counts[c]) for c, plan in plans.items()}
            plans = {c: replace(plan, stages=(stages[c],)) for c, plan in plans.items()}
        self._session = Session(self._rules(plans, counts))
        self.prepare(round_, plans)
        self._channel.begin(self._session)
        self._work = self._thread.submit(self._serve, round_, self._session)
        channel = Channel(
            address=re.sub(":0$", f":{self._channel.port}", self._reach),
            certificate=self._certificate,
            limit=self._channel.limit,
            join=self.settings.join_timeout,
            wait=self.settings.round_timeout,
            relay=self.relays,
        )
        own = {c: {"token": t, "batches": counts[c]} for c, t in self._session.tokens.items()}
        return {c: replace(p, channel=replace(channel, **own[c])) for c, p in plans.items()}

    def train_nodes(self, nodes: list[int], workers: int) -> list[int]:
        """Return the SuperNodes to train on: one in a simulation, unless `channel-nodes` is set."""
        return nodes[: training_nodes(self.settings.channel_nodes, len(nodes), workers)]

    def unreachable(self) -> dict[int, str]:
        """Return clients that have been out of the round for too long to get a reply, and why."""
        if self._session is None:
            return {}
        why = self._session.gone | self._session.lost
        at, now = dict(self._session.lost_at), time.monotonic()
        first = min(at.values(), default=now)
        return {client: why[client] for client in why if now - at.get(client, first) > REPLY_TIME}

    def screen(
        self, round_: int, updates: Iterator[ClientUpdate]
    ) -> Iterator[ClientUpdate | Failure]:
        """Pass on updates of clients that stayed on the channel to the end; fail the others."""
        arrived = [*updates]
        self.served()
        lost = self._session.lost if self._session else {}
        diverged = [p for p in self.parts() if not p.is_finite()] if arrived else []
        for update in arrived:
            reason = lost.get(update.client)
            if reason is None and any(part is self.part_of(update.client) for part in diverged):
                reason = f"{DIVERGED}: the server's layers are not finite after the round"
            yield Failure(update.client, reason) if reason is not None else update

    def end_round(self, round_: int) -> Mapping[int, tuple[int, int]]:
        """Record refused streams; return the bytes that went through the channel, by client."""
        self.served()
        if (session := self._session) is None:
            return {}
        self._session = None
        for client, reason in session.refusals():
            log.info("round %s: refused a stream (client %s): %s", round_, client, reason)
            self.event(round_, client, "refused", reason)
        return {c: (session.bytes_down[c], session.bytes_up[c]) for c in session.tokens}

    # Inside -------------------------------------------------------------------------------

    def _serve(self, round_: int, session: Session) -> None:
        torch.set_num_threads(self.settings.threads)  # PyTorch keeps this setting per thread
        try:
            self.serve(round_, session)
        except RunError:
            raise
        except Exception as error:
            log.debug("round %s: the server's layers failed", round_, exc_info=error)
            raise RunError(f"the server's layers: {type(error).__name__}: {error}") from error
        finally:
            session.close()

    def _rules(self, plans: Mapping[int, Plan], batches: Mapping[int, int]) -> Rules:
        s, space = self.settings, self.workspace
        relayed = self.layout.names[: least_cut(plans)] if self.relays else ()
        return Rules(
            shapes={client: self._smashed_shape(plan) for client, plan in plans.items()},
            batches=batches,
            epochs=s.local_epochs,
            classes=space.dataset.classes,
            batch_size=s.batch_size,
            dtype=next(space.model.parameters()).dtype,
            torch_device=space.torch_device,
            least=max(plan.stages[0].least for plan in plans.values()),
            join_timeout=s.join_timeout,
            step_timeout=s.step_timeout,
            round_timeout=s.round_timeout,
            largest=s.max_value,
            relays={key: self.layout.shapes[key] for key in self.layout.shared(relayed)},
        )

    def _smashed_shape(self, plan: Plan) -> tuple[int, ...]:
        return self.workspace.trainer.profile.shapes[self.layout.names[len(plan.stages[0].layers)]]
