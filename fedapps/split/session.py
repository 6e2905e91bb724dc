"""One round of split learning on the server: which clients have joined, wait, are done or lost.

The channel's threads hand in the frames that arrive; one other thread serves the round. It takes
the clients' batches in waves; a wave has all batches of the same (epoch, batch).
"""

import queue
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from threading import Lock

import torch
from torch import Tensor

from fedapps.core.errors import one_line
from fedapps.models.layers import Arrays
from fedapps.split.frames import Frame, Stream
from fedapps.split.rules import BatchGradients, Rules, Smashed

STRANGER = "no client of this round was named"
MAX_QUEUED = 2  # unread frames of a client; already the second one is out of turn
aborted: set[str] = set()  # tokens of this process's sessions that ended with their run


class Session:
    """A round on the channel.

    The channel's threads call the methods from `token` to `refused`; the thread that serves the
    round calls those after it. Other threads may read `lost` (reasons), `lost_at` (times), `gone`
    (all clients of a stream that broke) and `refusals()`, and at the end the byte counts.
    """

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.tokens = {client: secrets.token_hex(16) for client in rules.shapes}
        self.bytes_up: Counter[int] = Counter()  # by client
        self.bytes_down: Counter[int] = Counter()
        self.lost: dict[int, str] = {}
        self.lost_at: dict[int, float] = {}
        self.gone: dict[int, str] = {}
        self.relayed: dict[int, Arrays] = {}
        self._deadline = time.monotonic() + rules.round_timeout
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._lock = Lock()  # protects the next six, and what channels put into the inbox
        self._unused = dict(self.tokens)
        self._missed: dict[int, str] = {}  # clients that were lost before they joined: why
        self._queued: Counter[int] = Counter()
        self._opened: list[Stream] = []
        self._closed = False
        self._refused: Counter[tuple[int | str, str]] = Counter()
        self._streams: dict[int, Stream] = {}
        self._begun: set[int] = set()
        self._waiting: dict[int, Smashed] = {}
        self._last: dict[int, tuple[int, int]] = {}
        self._done: set[int] = set()
        self._gathered = False

    # Called by the channel's threads ------------------------------------------------------

    def token(self, client: int) -> str | None:
        """Return a client's token, or None if it has been used or there is none."""
        return self._unused.get(client)

    def joined(self, client: int, stream: Stream) -> bool:
        """Let a client join and use up its token; return False if that was used up before."""

        def note() -> None:
            self._streams[client] = stream

        with self._lock:
            if self._closed or self._unused.pop(client, None) is None:
                return False
            self._opened.append(stream)
            self._inbox.put(note)
        return True

    def token_of_missed(self, client: int) -> str | None:
        """Return the token of a client that was lost before it joined and is not told yet."""
        return self.tokens[client] if client in self._missed else None

    def take_reason(self, client: int) -> str:
        """Return why a client was lost before it joined; only once, then ""."""
        with self._lock:
            return self._missed.pop(client, "")

    def arrived(self, frame: Frame, tensors: dict[str, Tensor]) -> bool:
        """Queue a frame of a client that has joined; return False if it sends too many."""
        client = frame.client

        def note() -> None:
            if client not in self.lost:  # a lost client may not send further frames
                with self._lock:
                    self._queued[client] -= 1
            self._take(frame, tensors)

        with self._lock:
            if self._closed or self._queued[client] >= MAX_QUEUED:
                return False
            self._queued[client] += 1
            self._inbox.put(note)
        return True

    def broken(self, client: int, reason: str) -> None:
        """Handle the end of a client's stream; the client is lost unless it was done."""

        def note() -> None:
            together = [c for c, s in self._streams.items() if s is self._streams.get(client)]
            working = [c for c in together if c not in self._done and c not in self.lost]
            for other in working:
                self._lose(other, reason)
            if working:  # the SuperNode is gone, and so are the replies of its other clients
                self.gone |= dict.fromkeys(together, reason)

        with self._lock:
            if not self._closed:
                self._inbox.put(note)

    def refused(self, client: int, reason: str) -> None:
        """Count the refusal of a stream or frame that claimed to be of `client`."""
        known = client in self.rules.shapes  # unknown ids share one entry: there may be many
        with self._lock:
            self._refused[(client, one_line(reason)) if known else ("server", STRANGER)] += 1

    def refusals(self) -> list[tuple[int | str, str]]:
        """Return pairs of client and reason, each once, with the number of times in the reason."""
        with self._lock:
            counts = self._refused.most_common()
        return [(who, why + (f" ({n} times)" if n > 1 else "")) for (who, why), n in counts]

    # Called by the thread that serves ------------------------------------------------------

    def waves(self, clients: Iterable[int], relay: Arrays | None = None) -> Iterator[list[Smashed]]:
        """Let `clients` begin; yield their batches of each (epoch, batch), in client order.

        A client with fewer batches is not in the later waves of an epoch. A client that fails or
        is too late is left out from then on. Each client first gets `relay`, values for its layers.
        """
        clients = [*clients]
        self._gather()
        for client in clients:
            self._begin(client, relay or {})
        while True:
            self._await(lambda: self._silent(clients), self.rules.step_timeout)
            for client in self._silent(clients):
                self.drop(client, self._timed_out("sent nothing", "step", self.rules.step_timeout))
            ready = [self._waiting[client] for client in clients if client in self._waiting]
            if not ready:
                return
            first = min(smashed.step for smashed in ready)
            wave = [smashed for smashed in ready if smashed.step == first]
            for smashed in wave:
                del self._waiting[smashed.client]
            yield sorted(wave, key=lambda smashed: smashed.client)

    def send(self, gradients: BatchGradients) -> None:
        """Send gradients back; drop the clients whose batch was rejected."""
        for client, result in gradients.items():
            if result.rejection:
                self.drop(client, result.rejection)
                continue
            self.bytes_down[client] += result.gradient.nbytes
            frame = Frame("gradient", client, loss=result.loss)
            self._streams[client].send(frame, {"gradient": result.gradient})

    def drop(self, client: int, reason: str) -> None:
        """Tell a client that it is out of this round, and go on without that client."""
        self._lose(client, reason if self._deadline else "the run has ended")
        if client in self._streams:
            self._streams[client].send(Frame("drop", client, text=self.lost[client]))

    def close(self) -> None:
        """End all streams, and refuse clients that come later."""
        with self._lock:
            self._closed = True
            self._unused.clear()
            self._inbox = queue.SimpleQueue()  # unread notes hold the session, and it holds them
        for stream in dict.fromkeys(self._opened):  # several clients can share one
            stream.close()

    def abort(self) -> None:
        """Make the thread that serves stop waiting, as the run ends; called by other threads."""
        aborted.update(self.tokens.values())
        self._deadline = 0.0
        self._inbox.put(lambda: None)

    # Inside -------------------------------------------------------------------------------

    def _gather(self) -> None:
        """Wait once for all clients to join."""
        if self._gathered:
            return

        def missing() -> list[int]:
            known = {*self._streams, *self.lost}
            return [client for client in self.rules.shapes if client not in known]

        self._await(missing, self.rules.join_timeout)
        for client in missing():
            why = "its SuperNode is down or busy, or cannot reach channel-reach"
            what = self._timed_out("did not join the channel", "join", self.rules.join_timeout)
            self.drop(client, f"{what}: {why}")
        self._gathered = True

    def _begin(self, client: int, relay: Arrays) -> None:
        if client in self.lost:
            return
        tensors = {key: torch.from_numpy(value) for key, value in relay.items()}
        self.bytes_down[client] += sum(tensor.nbytes for tensor in tensors.values())
        self._begun.add(client)
        self._streams[client].send(Frame("begin", client), tensors)

    def _timed_out(self, what: str, limit: str, seconds: float) -> str:
        if time.monotonic() >= self._deadline:
            return f"{what} before the round's end (round-timeout)"
        return f"{what} in {seconds:g} s ({limit}-timeout)"

    def _lose(self, client: int, reason: str) -> None:
        """Record why a client is out; it can no longer join, and its waiting batch is dropped."""
        with self._lock:
            if self._unused.pop(client, None):
                self._missed[client] = one_line(reason)
        self._waiting.pop(client, None)
        self.lost_at.setdefault(client, time.monotonic())
        self.lost.setdefault(client, one_line(reason))

    def _silent(self, clients: Iterable[int]) -> list[int]:
        heard = {*self._waiting, *self._done, *self.lost}
        return [client for client in clients if client not in heard]

    def _await(self, missing: Callable[[], list[int]], seconds: float) -> None:
        """Handle what arrives until no client is missing, for at most `seconds` seconds."""
        end = time.monotonic() + seconds
        while missing() and (left := min(end, self._deadline) - time.monotonic()) > 0:
            try:
                self._inbox.get(timeout=left)()
            except queue.Empty:
                return

    def _take(self, frame: Frame, tensors: dict[str, Tensor]) -> None:
        client, rules = frame.client, self.rules
        if client in self.lost or client in self._done:
            return
        if frame.kind == "failed":
            self._lose(client, frame.text)
        elif client not in self._begun or client in self._waiting:
            self.drop(client, f"sent {frame.kind} out of turn")
        elif frame.kind == "done" and (reason := rules.invalid_layers(tensors)):
            self.drop(client, reason)
        elif frame.kind == "done":
            self._done.add(client)
            self.relayed[client] = {key: value.numpy() for key, value in tensors.items()}
            self.bytes_up[client] += sum(tensor.nbytes for tensor in tensors.values())
        elif frame.kind != "data":
            self.drop(client, f"sent {frame.kind} out of turn")
        elif reason := rules.invalid_batch(frame, tensors, self._last.get(client)):
            self.drop(client, reason)
        else:
            self._last[client] = frame.step
            place = rules.torch_device
            data, labels = tensors["data"].to(place), tensors["labels"].to(place)
            self.bytes_up[client] += data.nbytes + labels.nbytes
            self._waiting[client] = Smashed(client, frame.step, data.requires_grad_(), labels)
