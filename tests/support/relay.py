"""A TCP relay before the proxy, on the loopback address: what a bad network is to an application.

TCP hides single packets that are lost: an application only sees that bytes come late, or not at
all, or that the connection is reset. So the relay does that, by draws from a seed.
"""

import asyncio
import math
import random
import socket
import struct
import threading

PIECE = 2**16  # bytes that are read at once
MIDDLE = 2**14  # bytes in one direction from which on a transfer may be cut
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: to close is to reset


class Relay:
    """Relays connections to a port of this machine; a context manager.

    Each piece of at most `PIECE` bytes takes half of `delay` seconds. One in the middle of a
    transfer is lost with the probability `cuts`, together with its connection, which is reset or
    just closed (as `resets` says, or by a draw). `cut` counts that, and `stalled` those whom the
    dead relay has not answered.
    """

    def __init__(self, target, delay=0.0, cuts=0.0, seed=0):
        self.target, self.delay, self.cuts = target, delay, cuts
        self.resets, self.cut, self.stalled = None, 0, 0
        self._draws = random.Random(seed)
        self._lost = math.inf  # bytes from which on the next answer is lost
        self._alive = threading.Event()
        self._alive.set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def __enter__(self):
        self._thread.start()
        served = asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._server = asyncio.run_coroutine_threadsafe(served, self._loop).result()
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *_):
        async def end():
            self._server.close()
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def die(self):
        """Let nothing through: who connects, or has connected, gets no byte and no reset."""
        self._alive.clear()

    def revive(self):
        """Let new connections through; those that have met the dead relay are reset."""
        self._alive.set()

    def lose_answer(self, least):
        """Lose the next answer of at least `least` bytes, and close its connection."""
        self._lost = least

    async def _serve(self, reader, writer):
        ends = [writer]
        try:
            await self._living()
            there, back = await asyncio.open_connection("127.0.0.1", self.target)
            ends.append(back)
            spoken = [None, 0]  # who spoke last, and how many bytes
            ways = [self._pump(reader, back, spoken, 0), self._pump(there, writer, spoken, 1)]
            tasks = [*map(asyncio.create_task, ways)]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        except (OSError, asyncio.CancelledError):  # nobody is there, it is to be cut, or the end
            pass
        finally:
            reset = self._draws.random() < 0.5 if self.resets is None else self.resets
            for end in ends:
                if reset and not end.is_closing():
                    plain = end.get_extra_info("socket")
                    plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                end.transport.abort()

    async def _pump(self, reader, writer, spoken, way):
        while piece := await reader.read(PIECE):
            spoken[:] = way, len(piece) + (spoken[1] if spoken[0] == way else 0)
            await self._living()
            if way == 1 and spoken[1] >= self._lost:
                self._lost = math.inf
                self._break()
            if spoken[1] > MIDDLE and self._draws.random() < self.cuts:
                self._break()
            await asyncio.sleep(self.delay / 2)
            writer.write(piece)
            await writer.drain()

    async def _living(self):
        """Wait while the relay is dead; raises ConnectionError afterwards."""
        if self._alive.is_set():
            return
        self.stalled += 1
        while not self._alive.is_set():
            await asyncio.sleep(0.05)
        raise ConnectionResetError

    def _break(self):
        self.cut += 1
        raise ConnectionResetError
