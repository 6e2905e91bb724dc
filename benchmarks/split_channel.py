"""Milliseconds that the split channel costs per iteration and client, beside the compute.

    python -m benchmarks.split_channel

Clients run in threads of another process and reach the server over loopback, as in a simulation:
features of 32 x 64 x 16 x 16 float32 (2 MiB up, 2 MiB down, vgg16 cut at 2) and their labels. The
server answers at once with the features themselves. Compute: vgg16's two layers of one client,
and the server's other fourteen on its batch, one thread.
"""

import multiprocessing
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from statistics import median

import torch
from torch.nn.functional import cross_entropy

from benchmarks.common import given
from fedapps import models
from fedapps.split.channel import ChannelServer
from fedapps.split.client import Link
from fedapps.split.connection import connection
from fedapps.split.rules import BatchGradient, Rules, frame_limit
from fedapps.split.session import Session
from fedapps.training.channel import Channel

SHAPE, BATCH, CUT, WAIT = (64, 16, 16), 32, 2, 60.0
REPEATS = 7  # of which the median is printed


@contextmanager
def served(clients: int, steps: int) -> Iterator[tuple[Session, list[Channel]]]:
    """Serve a round on loopback; give its session and the channel of each client."""
    rules = Rules(
        shapes=dict.fromkeys(range(clients), SHAPE),
        batches=dict.fromkeys(range(clients), steps),
        epochs=1,
        classes=10,
        batch_size=BATCH,
        dtype=torch.float32,
        torch_device=torch.device("cpu"),
        least=1,
        join_timeout=WAIT,
        step_timeout=WAIT,
        round_timeout=600.0,
    )
    session, most = Session(rules), frame_limit(rules, BATCH)
    server = ChannelServer("127.0.0.1:0", None, clients, most)
    server.begin(session)
    address = f"127.0.0.1:{server.port}"
    tokens = [session.tokens[i] for i in range(clients)]
    yield session, [Channel(address=address, token=t, limit=most, wait=WAIT) for t in tokens]
    session.close()
    server.stop()


def client(channel: Channel, number: int, steps: int) -> None:
    """Exchange `steps` batches."""
    data = torch.randn(BATCH, *SHAPE).to(memory_format=torch.channels_last)
    labels = torch.zeros(BATCH, dtype=torch.int64)
    with connection(channel, number) as connected:
        link = Link(number, channel, connected)
        link.begin()
        link.steps = ((0, step) for step in range(steps))
        for _ in range(steps):
            gradient, _loss = link.exchange(data, labels)
        assert torch.equal(gradient, data)
        link.done({})


def node(channels: list[Channel], steps: int) -> None:
    """A SuperNode: all its clients at the same time."""
    torch.set_num_threads(1)
    threads = [threading.Thread(target=client, args=(c, i, steps)) for i, c in enumerate(channels)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def exchange(clients: int, steps: int) -> float:
    """Return the median milliseconds of an iteration, from wave to wave, by client."""
    times = []
    with served(clients, steps) as (session, channels):
        process = multiprocessing.get_context("spawn").Process(target=node, args=(channels, steps))
        process.start()
        for wave in session.waves(range(clients)):
            times.append(time.perf_counter())
            session.send({s.client: BatchGradient(s.data.detach(), 0.0) for s in wave})
        process.join()
    gaps = [after - before for before, after in pairwise(times)]
    return 1e3 * median(gaps[len(gaps) // 10 :]) / clients


def compute() -> tuple[float, float]:
    """Return milliseconds of a client's layers and of the server's, forward and backward."""
    torch.set_num_threads(1)
    model = models.build("vgg16", (3, 32, 32), 10, 0).to(memory_format=torch.channels_last)
    layers = [layer for _, layer in model.named_children()]
    images = torch.randn(BATCH, 3, 32, 32).to(memory_format=torch.channels_last)
    labels = torch.zeros(BATCH, dtype=torch.int64)
    ours, theirs = [], []
    for _ in range(REPEATS):
        start = time.perf_counter()
        smashed = torch.nn.Sequential(*layers[:CUT])(images)
        middle = time.perf_counter()
        leaf = smashed.detach().requires_grad_()
        cross_entropy(torch.nn.Sequential(*layers[CUT:])(leaf), labels).backward()
        end = time.perf_counter()
        smashed.backward(leaf.grad)
        ours.append(middle - start + time.perf_counter() - end)
        theirs.append(end - middle)
    return 1e3 * median(ours), 1e3 * median(theirs)


def main() -> None:
    """Measure and print."""
    steps = given(__doc__, steps=200).steps
    for clients in (1, 4):
        cost = exchange(clients, steps)
        print(f"channel, {clients} client(s): {cost:6.2f} ms per iteration and client")
    ours, theirs = compute()
    print(f"compute, client's layers: {ours:6.1f} ms per iteration and client")
    print(f"compute, server's layers: {theirs:6.1f} ms per iteration and client")


if __name__ == "__main__":
    main()
