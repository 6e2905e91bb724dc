"""Split learning: clients hold the first layers of the model, the server the others.

A round is opened by Flower's train message and runs over the channel (`channel.py`): a client
sends the output of its layers ("smashed data") and the labels of a batch, the server answers with
the gradient. Strategies say what the server does with a wave of such batches (`step`), or with a
whole round (`serve`). Personal data stays, but smashed data and labels leave a client: that is
what these methods are.
"""

import queue
import secrets
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

import msgspec
import numpy as np
import torch
from flwr.app import ArrayRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from msgspec import Meta
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedapps.channel import ChannelServer, Frame, Stream
from fedapps.config import MethodSettings, doc
from fedapps.config import Settings as RunSettings
from fedapps.errors import RunError, one_line
from fedapps.fleet import StreamingGrid
from fedapps.layers import Arrays, Slice, put, take
from fedapps.messages import ClientUpdate, pack_question, unpack_speeds
from fedapps.plan import Channel, Plan, Stage
from fedapps.strategy import BaseStrategy
from fedapps.training import Sgd, Trained
from fedapps.workspace import Workspace

GRACE = 5.0  # seconds in which a SuperNode whose stream broke may still reply
LABEL_BYTES = 8


class SplitSettings(MethodSettings, frozen=True):
    """What all methods with one cut for all clients have."""

    cut: Annotated[
        int, Meta(ge=0), doc("layers on the client; 0: 4, or half the layers if these are fewer")
    ]


@dataclass(frozen=True)
class Smashed:
    """A batch as the server gets it: `data` [b, ...] is the output of the client's layers.

    `data` is a leaf that collects the gradient; `labels` are int64 [b]; `step` is (epoch, batch).
    """

    client: int
    step: tuple[int, int]
    data: Tensor
    labels: Tensor

    def answer(self, loss: Tensor) -> "Answer":
        """Return the answer when `loss` has been taken backward."""
        assert self.data.grad is not None
        return Answer(self.data.grad, float(loss.detach()))


@dataclass(frozen=True)
class Answer:
    """What a client gets back: the gradient with respect to its smashed data, and the loss."""

    gradient: Tensor
    loss: float


Answers = dict[int, Answer]


@dataclass
class ServerPart:
    """Consecutive layers that the server trains in one round, with an optimizer of their own.

    `samples[layer]` counts what passed through; `trained` sums up the costs.
    """

    space: Workspace
    layers: Slice
    stage: Stage
    samples: dict[str, int] = field(init=False)
    cost_paper: int = 0

    def __post_init__(self) -> None:
        parameters = self.space.trainer.freeze_all_but(self.layers)
        self.samples = dict.fromkeys(self.layers, 0)
        self._sgd = Sgd([*parameters.values()], self.stage)

    def run(self, x: Tensor, layers: Iterable[str]) -> Tensor:
        """Run some of the layers on their input [b, ...]."""
        for name in layers:
            x = self.space.model.get_submodule(name)(x)
            self.samples[name] += len(x)
        return x

    def backward(self, smashed: Smashed) -> Answer:
        """Add the gradients of one client's batch loss (mean over its samples)."""
        loss = cross_entropy(self.run(smashed.data, self.layers), smashed.labels)
        loss.backward()
        return smashed.answer(loss)

    def scale(self, factor: float) -> None:
        """Multiply the gradients."""
        for parameter in self.space.model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(factor)

    def step(self) -> None:
        """Take one step along the gradients and drop them."""
        moved = [n for n, p in self.space.model.named_parameters() if p.grad is not None]
        self.cost_paper += sum(int(np.prod(self.space.layout.shapes[name])) for name in moved)
        self._sgd()

    def arrays(self, layers: Iterable[str] | None = None) -> Arrays:
        """Copy the values of some of the layers (of all)."""
        names = self.layers if layers is None else tuple(layers)
        return take(self.space.model, self.space.layout.shared(names))

    def costs(self) -> Trained:
        """Return multiply-accumulates and the papers' costs so far."""
        per_sample = self.space.trainer.profile.layer_macs
        macs = sum(count * per_sample(name) for name, count in self.samples.items())
        return Trained(macs=macs, cost_paper=self.cost_paper)


@dataclass
class Session:
    """One round on the channel: who has joined, what waits for an answer, who is done or lost.

    `shapes[client]` is the shape of one smashed sample of a client, `batches[client]` the most
    batches that it has in each of the `epochs`, `relays` the names and shapes
    of the arrays that a client hands over when it is done. The transport's threads hand
    in what arrives; `waves` and all else belong to the one thread that serves the round.
    """

    shapes: Mapping[int, tuple[int, ...]]
    batches: Mapping[int, int]
    epochs: int
    classes: int
    batch_size: int
    dtype: torch.dtype
    device: torch.device
    join_timeout: float
    step_timeout: float
    relays: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    bytes_up: int = 0
    bytes_down: int = 0
    lost: dict[int, str] = field(default_factory=dict)
    gone: dict[int, float] = field(default_factory=dict)  # by broken stream, and when
    refusals: list[tuple[int, str]] = field(default_factory=list)
    relayed: dict[int, Arrays] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tokens = {client: secrets.token_hex(16) for client in self.shapes}
        self._unused = dict(self.tokens)
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._streams: dict[int, Stream] = {}
        self._waiting: dict[int, Smashed] = {}
        self._done: set[int] = set()
        self._last: dict[int, tuple[int, int]] = {}
        self._all_joined = False

    @property
    def limit(self) -> int:
        """Most bytes of tensors in a frame of smashed data and labels."""
        largest = max(int(np.prod(shape)) for shape in self.shapes.values())
        return self.batch_size * (largest * self.dtype.itemsize + LABEL_BYTES)

    # Called by the transport's threads ----------------------------------------------------

    def token(self, client: int) -> str | None:
        """Return a client's token for its one use."""
        return self._unused.get(client)

    def joined(self, client: int, stream: Stream) -> bool:
        """A client has joined: its token is used up, if it was not by now."""
        if self._unused.pop(client, None) is None:
            return False

        def note() -> None:
            self._streams[client] = stream

        self._inbox.put(note)
        return True

    def arrived(self, frame: Frame, tensors: dict[str, Tensor]) -> None:
        """Take a frame of a client that has joined."""
        self._inbox.put(lambda: self._take(frame, tensors))

    def broken(self, client: int, reason: str) -> None:
        """The stream of a client has ended, which is right only if all on it were done."""

        def note() -> None:
            together = [c for c, s in self._streams.items() if s is self._streams.get(client)]
            if working := [c for c in together if c not in self._done and c not in self.lost]:
                self.gone |= dict.fromkeys(together, time.monotonic())
            for other in working:
                self._lose(other, reason)

        self._inbox.put(note)

    def refused(self, client: int, reason: str) -> None:
        """Somebody who claimed to be `client` was refused."""
        self.refusals.append((client, reason))

    # Called by the thread that serves ------------------------------------------------------

    def waves(self, clients: Iterable[int], relay: Arrays | None = None) -> Iterator[list[Smashed]]:
        """Let `clients` begin; yield their batches of each (epoch, batch), ascending by client.

        A client with fewer batches is not in the later waves of an epoch. A client that fails or
        is too late is left out from then on. `relay` is sent as the values of its layers.
        """
        clients = [*clients]
        self._gather()
        for client in clients:
            if client not in self.lost:
                tensors = {key: torch.from_numpy(value) for key, value in (relay or {}).items()}
                self.bytes_down += sum(tensor.nbytes for tensor in tensors.values())
                self._streams[client].send(Frame("begin", client), tensors)
        while True:
            self._await(lambda: self._silent(clients), self.step_timeout)
            for client in self._silent(clients):
                self.drop(client, f"sent nothing in {self.step_timeout:g} s (step-timeout)")
            ready = [self._waiting[client] for client in clients if client in self._waiting]
            if not ready:
                return
            first = min(smashed.step for smashed in ready)
            wave = [smashed for smashed in ready if smashed.step == first]
            for smashed in wave:
                del self._waiting[smashed.client]
            yield sorted(wave, key=lambda smashed: smashed.client)

    def answer(self, answers: Answers) -> None:
        """Send gradients back."""
        for client, answer in answers.items():
            self.bytes_down += answer.gradient.nbytes
            frame = Frame("gradient", client, loss=answer.loss)
            self._streams[client].send(frame, {"gradient": answer.gradient})

    def drop(self, client: int, reason: str) -> None:
        """Tell a client that it is out of this round, and go on without it."""
        self._lose(client, reason)
        if client in self._streams:
            self._streams[client].send(Frame("drop", client, text=reason))

    def close(self) -> None:
        """End all streams, also of clients that came too late to be waited for."""
        self._unused.clear()
        while not self._inbox.empty():
            self._inbox.get()()
        for stream in {id(stream): stream for stream in self._streams.values()}.values():
            stream.close()

    def _lose(self, client: int, reason: str) -> None:
        self.lost[client] = reason
        self._waiting.pop(client, None)

    def _gather(self) -> None:
        """Wait once for all clients to join."""
        if self._all_joined:
            return

        def missing() -> list[int]:
            return [c for c in self.shapes if c not in self._streams and c not in self.lost]

        self._await(missing, self.join_timeout)
        for client in missing():
            self.drop(
                client,
                f"did not join the channel in {self.join_timeout:g} s (join-timeout): its "
                "SuperNode is down or busy, or cannot reach channel-reach",
            )
        self._all_joined = True

    def _silent(self, clients: Iterable[int]) -> list[int]:
        heard = {*self._waiting, *self._done, *self.lost}
        return [client for client in clients if client not in heard]

    def _await(self, missing: Callable[[], list[int]], seconds: float) -> None:
        """Take what arrives until nobody is missing, or for so many seconds."""
        deadline = time.monotonic() + seconds
        while missing() and (left := deadline - time.monotonic()) > 0:
            try:
                self._inbox.get(timeout=left)()
            except queue.Empty:
                return

    def _take(self, frame: Frame, tensors: dict[str, Tensor]) -> None:
        client = frame.client
        if client in self.lost or client in self._done:
            return
        if frame.kind == "failed":
            self._lose(client, one_line(frame.text))
        elif frame.kind == "done" and (reason := self._unfit(tensors)):
            self.drop(client, reason)
        elif frame.kind == "done":
            self._done.add(client)
            self.relayed[client] = {key: value.numpy() for key, value in tensors.items()}
            self.bytes_up += sum(tensor.nbytes for tensor in tensors.values())
        elif frame.kind != "data" or client in self._waiting:
            self.drop(client, f"sent {frame.kind} out of turn")
        elif reason := self._fault(client, tensors):
            self.drop(client, reason)
        elif not self._last.get(client, (-1, 0)) < frame.step < (self.epochs, 0):
            self.drop(client, f"sent a batch of step {frame.step} out of turn")
        elif frame.step[1] >= self.batches[client]:
            self.drop(client, f"sent more than {self.batches[client]} batches in an epoch")
        else:
            self._last[client] = frame.step
            data, labels = tensors["data"].to(self.device), tensors["labels"].to(self.device)
            self.bytes_up += data.nbytes + labels.nbytes
            self._waiting[client] = Smashed(client, frame.step, data.requires_grad_(), labels)

    def _unfit(self, layers: dict[str, Tensor]) -> str:
        """Say what is wrong with the layers that a client hands over."""
        if {key: tuple(value.shape) for key, value in layers.items()} != self.relays:
            return "handed over other arrays than those of its layers"
        fine = all(v.dtype == self.dtype and bool(v.isfinite().all()) for v in layers.values())
        return "" if fine else "handed over layers that are not finite or of another dtype"

    def _fault(self, client: int, tensors: dict[str, Tensor]) -> str:
        """Say what is wrong with a client's batch; nothing: an empty text."""
        if tensors.keys() != {"data", "labels"}:
            return f"sent {', '.join(tensors) or 'nothing'}: expected data and labels"
        data, labels = tensors["data"], tensors["labels"]
        shape = (len(labels), *self.shapes[client]) if labels.dim() == 1 else None
        if shape is None or data.shape != shape or not 0 < len(labels) <= self.batch_size:
            return (
                f"sent data {tuple(data.shape)} and labels {tuple(labels.shape)}: expected up to "
                f"{self.batch_size} samples of {self.shapes[client]}"
            )
        if data.dtype != self.dtype or labels.dtype != torch.int64:
            return f"sent data as {data.dtype} and labels as {labels.dtype}"
        if not torch.isfinite(data).all():
            return "sent smashed data that are not finite"
        if labels.min() < 0 or labels.max() >= self.classes:
            return f"sent a label outside 0..{self.classes - 1}"
        return ""


class SplitStrategy(BaseStrategy):
    """Rounds in which selected clients train layers 1..c against gradients from the server.

    A method defines `step` or `serve`, and `aggregate`. `part` is the server's part of the round.
    """

    sends_its_model = False
    relays: ClassVar[bool] = False  # whether clients' layers come and go through the channel

    def __init__(self, workspace: Workspace, settings: RunSettings | None = None) -> None:
        super().__init__(workspace, settings)
        s, name = self.settings, self.settings.strategy
        if self.layout.stays:
            raise RunError(
                f'{name} needs bn-stats = "shared" or "batch" and bn-local = false: no client has '
                "statistics of the server's layers"
            )
        if s.prox_mu or self._clip() or s.presum or s.score_last:
            raise RunError(
                f"{name} knows no prox-mu, clip-percentile, max-norm, presum, score-last: "
                "clients hold a part of the model"
            )
        self.seconds: dict[int, list[float]] = {}  # of a step, by client and layer
        self.part: ServerPart | None = None
        self._session: Session | None = None
        self._work: Future[None] | None = None

    # What a method says -------------------------------------------------------------------

    def cut(self, client: int) -> int:
        """Return the number of layers on a client."""
        return checked_cut(self.options.cut, "cut", self.layout.names)

    def measures(self) -> bool:
        """Tell whether clients are to say how long their layers take, before round 1."""
        return False

    def step(self, round_: int, wave: list[Smashed]) -> Answers:
        """Train the server's layers on one batch of each client of the wave."""
        raise NotImplementedError

    def serve(self, round_: int, session: Session) -> None:
        """Answer all batches of a round, by default those of all clients at the same time."""
        for wave in session.waves(session.shapes):
            session.answer(self.step(round_, wave))

    def parts(self) -> Iterable[ServerPart]:
        """Return all parts that the server trains in this round."""
        return [self.part] if self.part else []

    @abstractmethod
    def aggregate(self, round_: int, updates: Iterator[ClientUpdate]) -> Arrays:
        """Return new values of clients' and server's layers; `served` when updates are over."""

    # Shorthands for methods ---------------------------------------------------------------

    def server_part(self, round_: int, layers: Slice) -> ServerPart:
        """Return layers with the server's values, to be trained in this round."""
        space = self.workspace.part(layers)
        put(space.model, {key: self.arrays[key] for key in space.initial})
        return ServerPart(space, layers, self.stage(round_, layers))

    def server_layers(self, cut: int) -> Slice:
        """Return the layers after a cut."""
        return self.layout.names[cut:]

    def served(self) -> None:
        """Wait for the end of the round on the channel; raises `RunError` if the server failed."""
        if self._work is None:
            return
        try:
            self._work.result()
        except RunError:
            raise
        except Exception as error:
            raise RunError(f"the server's layers: {type(error).__name__}: {error}") from error

    def batches(self, client: int) -> int:
        """Return the number of batches in a client's epoch."""
        return -(-len(self.workspace.shares[client].train) // self.settings.batch_size)

    # What the base strategy asks ----------------------------------------------------------

    def plan(self, round_: int, client: int) -> Plan:
        """A client trains and exchanges its layers, all others are the server's."""
        layers = self.layout.names[: self.cut(client)]
        slice_ = () if self.relays else layers
        stage = self.stage(round_, layers)
        if getattr(self.options, "oversample", False):
            most = max(self.batches(other) for other in self.select(round_))
            stage = msgspec.structs.replace(stage, batches=most)
        return Plan(round=round_, download=slice_, stages=(stage,), upload=slice_)

    def plans(self, round_: int) -> dict[int, Plan]:
        """Open the session of a round; the plans carry where and how to join it."""
        plans = super().plans(round_)
        space, s = self.workspace, self.settings
        shapes = {client: self._smashed_shape(plan) for client, plan in plans.items()}
        session = self._session = Session(
            shapes,
            {c: plan.stages[0].batches or self.batches(c) for c, plan in plans.items()},
            s.local_epochs,
            space.dataset.classes,
            s.batch_size,
            next(space.model.parameters()).dtype,
            space.device,
            s.join_timeout,
            s.step_timeout,
            self._relayed(plans),
        )
        self.part = self.server_part(round_, self.server_layers(self._least(plans)))
        self._channel.session = session
        self._work = self._thread.submit(self._serve, round_, session)
        channel = Channel(
            address=self._reach,
            token="",
            certificate=self._certificate,
            limit=self._channel.limit,
            wait=s.round_timeout,
            relay=self.relays,
        )
        return {
            client: msgspec.structs.replace(
                plan, channel=msgspec.structs.replace(channel, token=session.tokens[client])
            )
            for client, plan in plans.items()
        }

    def places(self, kind: str) -> list[int]:
        """In a simulation clients train on one SuperNode, unless `channel-nodes` says other."""
        if kind != "train":
            return self.nodes
        return self.nodes[: self.settings.channel_nodes or (1 if self.workers else None)]

    def evaluation_plan(self, round_: int, client: int) -> Plan:
        """A client is evaluated with the whole model."""
        stages = self.finetuning(round_)
        return Plan(round=round_, download=self.layout.names, stages=stages, upload=())

    def after_round(self, round_: int) -> Trained:
        """Count what the server computed and what went through the channel."""
        done = Trained()
        for part in self.parts():
            done.spend(part.costs())
        return done

    def hopeless(self) -> dict[int, str]:
        """Return the clients whose stream broke some time ago: their SuperNode is gone."""
        if self._session is None:
            return {}
        now, lost, gone = time.monotonic(), self._session.lost, dict(self._session.gone)
        return {c: lost.get(c, "its stream ended") for c, at in gone.items() if now - at > GRACE}

    def start(
        self, grid: Grid, initial_arrays: ArrayRecord | None = None, *args: Any, **kwargs: Any
    ) -> Result:
        """Measure clients if cuts need it, and serve the channel for as long as the run takes."""
        nodes = len(self.places("train"))
        if 0 < self.workers < nodes:
            raise RunError(
                f"channel-nodes: {nodes} SuperNodes train at the same time, but only {self.workers}"
                f" can work at once; use channel-nodes=1, or --federation-config 'num-supernodes="
                f"{nodes} client-resources-num-cpus=1 init-args-num-cpus={nodes}'"
            )
        if self.measures():
            self.seconds = self._measured(StreamingGrid(grid))
            for client in self.seconds:
                self.report.event(0, client, "cut", str(self.cut(client)))
        with self.serving():
            return super().start(grid, initial_arrays, *args, **kwargs)

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Serve the channel."""
        s = self.settings
        tls = Path(s.channel_tls).expanduser() if s.channel_tls else None
        self._certificate = read_certificate(tls) if tls else ""
        self._channel = ChannelServer(
            s.channel_address, tls, s.num_clients, self._limit(), s.join_timeout
        )
        host = s.channel_address.rpartition(":")[0]
        self._reach = s.channel_reach or f"{host}:{self._channel.port}"
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="split-server")
        try:
            yield
        finally:
            self._channel.stop()
            self._thread.shutdown(wait=False)

    # Inside -------------------------------------------------------------------------------

    def _measured(self, grid: StreamingGrid) -> dict[int, list[float]]:
        """Ask for the seconds per layer of every client; raises `RunError` if one is missing."""
        clients, nodes = range(self.settings.num_clients), self.nodes
        questions = [
            pack_question(part, node, "query.speed")
            for i, node in enumerate(nodes)
            if (part := clients[i :: len(nodes)])
        ]
        found: dict[int, list[float]] = {}
        for reply in grid.send_and_receive(questions, timeout=self.settings.round_timeout):
            if reply.has_error():
                raise RunError(f"measuring clients: {reply.error.reason}")
            found |= unpack_speeds(reply, len(self.layout.names))
        if missing := [client for client in clients if client not in found]:
            raise RunError(f"measuring clients: no answer for {missing}")
        return found

    def _serve(self, round_: int, session: Session) -> None:
        torch.set_num_threads(self.settings.threads)  # a thread's own matter
        try:
            self.serve(round_, session)
        finally:
            session.close()

    def _judge(self, round_: int) -> None:
        """Note what the channel saw before failures are judged; a server's fault comes first."""
        self.served()
        if (session := self._session) is not None:
            for client, reason in session.refusals:
                print(f"round {round_}: refused a stream for client {client}: {reason}", flush=True)
                self.report.event(round_, client, "refused", reason)
            self._tally.bytes_up += session.bytes_up
            self._tally.bytes_down += session.bytes_down
            self._session = None
        super()._judge(round_)

    def _least(self, plans: Mapping[int, Plan]) -> int:
        return min(len(plan.stages[0].layers) for plan in plans.values())

    def _relayed(self, plans: Mapping[int, Plan]) -> dict[str, tuple[int, ...]]:
        """Names and shapes of what clients hand on through the channel (one cut for all)."""
        layers = self.layout.names[: self._least(plans)] if self.relays else ()
        return {key: self.layout.shapes[key] for key in self.layout.shared(layers)}

    def _smashed_shape(self, plan: Plan) -> tuple[int, ...]:
        following = self.layout.names[len(plan.stages[0].layers)]
        return self.workspace.trainer.profile.shapes[following]

    def _limit(self) -> int:
        """Most bytes of tensors in a frame, over all layers: smashed data, or relayed layers."""
        shapes = self.workspace.trainer.profile.shapes.values()
        itemsize = next(self.workspace.model.parameters()).dtype.itemsize
        batch = self.settings.batch_size * (
            max(int(np.prod(shape)) for shape in shapes) * itemsize + LABEL_BYTES
        )
        whole = sum(value.nbytes for value in self.arrays.values()) if self.relays else 0
        return max(batch, whole)


def checked_cut(cut: int, key: str, names: Slice) -> int:
    """Return the number of layers on a client; raises `RunError` if one side would have none."""
    cut = cut or min(4, len(names) // 2)
    if not 0 < cut < len(names):
        raise RunError(f"{key} = {cut}: must be from 1 to {len(names) - 1}, the model's layers - 1")
    return cut


def read_certificate(folder: Path) -> str:
    """Return what clients check the server with; raises `RunError` if the folder is not right."""
    for name in ("server.crt", "server.key", "ca.crt"):
        if not (folder / name).is_file():
            raise RunError(f'channel-tls = "{folder}": has no {name}')
    return (folder / "ca.crt").read_text("ascii")
