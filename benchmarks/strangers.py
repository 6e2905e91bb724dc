"""What somebody without a token can do to the split channel: seconds to join, memory of the server.

    python -m benchmarks.strangers

Two attacks of another process over loopback: 200 streams that send nothing, over four TCP
connections, while a client joins a round; and twelve frames of 64 MiB.
"""

import multiprocessing
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import psutil
import torch

from benchmarks.split_channel import served
from fedapps.split.channel import METHOD, SERVICE
from fedapps.split.client import Link
from fedapps.split.connection import connection
from fedapps.split.frames import Frame, encode

LIMIT = 64 * 2**20
PATIENCE = 300.0  # seconds


def attack(address: str, connections: int, streams: int, size: int, begun: Any, over: Any) -> None:
    """Open streams that send one frame of `size` bytes, if any, and then nothing."""
    data = encode(Frame("data", 0), {"x": torch.zeros(size // 4)}) if size else b""
    calls = []

    def sent() -> Iterator[bytes]:
        if data:
            yield data
        over.wait(PATIENCE)

    for _ in range(connections):
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]
        method = grpc.insecure_channel(address, options).stream_stream(f"/{SERVICE}/{METHOD}")
        calls += [method(sent()) for _ in range(streams)]
    time.sleep(2.0)  # what is refused at once has ended by then, what is not holds on
    begun.set()
    over.wait(PATIENCE)


@contextmanager
def attacked(*how: Any) -> Iterator[Any]:
    """Run an attack in a process of its own; give the event that it has begun."""
    context = multiprocessing.get_context("spawn")
    begun, over = context.Event(), context.Event()
    process = context.Process(target=attack, args=(*how, begun, over))
    process.start()
    try:
        yield begun
    finally:
        over.set()
        process.join(10)
        process.kill()


def main() -> None:
    """Measure and print."""
    with served(1, (1,), 1, 1, PATIENCE, LIMIT) as (session, (channel,)):
        rounds = threading.Thread(target=lambda: [*session.waves([0])], daemon=True)
        with attacked(channel.address, 4, 50, 0) as begun:
            begun.wait(PATIENCE)
            start = time.perf_counter()
            with connection(channel, 0) as connected:
                link = Link(0, channel, connected)
                rounds.start()
                link.begin()
                took = time.perf_counter() - start
                link.done({})
        print(f"joined in {took:.2f} s beside 200 idle streams")
        memory = psutil.Process().memory_info
        before = peak = memory().rss
        with attacked(channel.address, 12, 1, LIMIT) as begun:
            while not begun.wait(0.01):
                peak = max(peak, memory().rss)
        most = f"{peak / 2**20:.0f} MiB at most with 12 frames of 64 MiB"
        print(f"{before / 2**20:.0f} MiB, {most}")


if __name__ == "__main__":
    main()
