"""Forks of this process that answer what they are asked, with data that they share with it.

What is asked and answered is pickled into memory that both processes can read (`Memory`); only its
place goes through a socket. Linux only.
"""

import gc
import io
import os
import pickle
import signal
import socket
import struct
import sys
import traceback
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from ctypes import CDLL, get_errno
from typing import Any, NoReturn

from fedapps.core.errors import RunError

PATIENCE = 10.0  # seconds that a fork has to leave its work in good order
LARGE = 2**12  # bytes; fewer are copied into the pickle
MOST = 2**30  # bytes; Linux does not read or write more than twice as many at once
_PR_SET_PDEATHSIG = 1  # as in Linux' prctl.h
_MFD_CLOEXEC = 1  # as in Linux' memfd.h
_SIGNALS = {signal.SIGINT, signal.SIGTERM}
_PLACE = struct.Struct("QQ")
Place = tuple[int, int]  # offset and size in bytes


class Memory:
    """Objects in memory that forks made later share; writing replaces all that was there.

    The pages are kept, because to get new ones takes ten times as long as to write them.
    """

    def __init__(self) -> None:
        libc = CDLL(None, use_errno=True)  # Pythons built for older Linux have no os.memfd_create
        self.fd = libc.memfd_create(b"fedapps", _MFD_CLOEXEC)
        if self.fd < 0:
            raise OSError(get_errno(), os.strerror(get_errno()))
        weakref.finalize(self, os.close, self.fd)

    def write(self, items: Iterable[object]) -> list[Place]:
        """Write objects; return their places. Large `bytes` that several have are there once."""
        size, known = 0, dict[int, tuple[bytes, Place]]()  # by id, which the bytes must keep

        def append(data: bytes) -> Place:
            nonlocal size
            start, size = size, size + len(data)
            for at in range(0, len(data), MOST):
                os.pwrite(self.fd, memoryview(data)[at : at + MOST], start + at)
            return start, len(data)

        def place(item: object) -> Place | None:
            if type(item) is not bytes or len(item) < LARGE:
                return None
            if id(item) not in known:
                known[id(item)] = item, append(item)
            return known[id(item)][1]

        def pickled(item: object) -> bytes:
            pickler = pickle.Pickler(text := io.BytesIO(), pickle.HIGHEST_PROTOCOL)
            pickler.persistent_id = place  # type: ignore[method-assign]
            pickler.dump(item)
            return text.getvalue()

        return [append(pickled(item)) for item in items]

    def read(self, place: Place) -> Any:
        """Return the object at a place; nothing of it is shared."""
        unpickler = pickle.Unpickler(io.BytesIO(self._bytes(place)))
        unpickler.persistent_load = self._bytes  # type: ignore[method-assign]
        return unpickler.load()

    def _bytes(self, place: Place) -> bytes:
        start, size = place
        parts = [os.pread(self.fd, min(MOST, size - at), start + at) for at in range(0, size, MOST)]
        return parts[0] if len(parts) == 1 else b"".join(parts)


class Fork:
    """A fork that calls `answer` with each object that it is asked, one after the other.

    It has all that this process had when it was made, and reads questions in `asked`. It ends when
    it is told to, or with this process, whatever ends that. Ctrl-C is left to this process.
    `others` are the forks that are there already.
    """

    def __init__(
        self, asked: Memory, answer: Callable[[Any], object], others: Iterable["Fork"]
    ) -> None:
        self.said = Memory()
        self.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sys.stdout.flush()  # otherwise both processes would print what is left
        sys.stderr.flush()
        parent = os.getpid()
        not_mine = [self.channel, *(fork.channel for fork in others)]
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # until the fork has handlers
        try:
            self.pid = os.fork()
            if not self.pid:
                _be_fork(parent, not_mine, _serve(theirs, asked, answer, self.said))
        except OSError as error:
            raise RunError(f"cannot start a worker process: {error.strerror}") from error
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()

    def ask(self, place: Place) -> None:
        """Ask what is at a place, once the last question has been answered."""
        with suppress(OSError):  # it has died, as `answer` will tell
            self.channel.send(_PLACE.pack(*place))

    def answer(self) -> Any:
        """Wait for the next answer. Raises EOFError with the cause if the fork has died.

        Raises what the call in the fork has raised, with its traceback as a note.
        """
        packed = b""
        with suppress(OSError):
            packed = self.channel.recv(_PLACE.size)
        if not packed:
            raise EOFError(self._cause())
        said = self.said.read(_PLACE.unpack(packed))
        if isinstance(said, BaseException):
            raise said
        return said

    def _cause(self) -> str:
        """Say why the fork, which has ended, did so."""
        status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self.channel.close()
        self.pid = 0
        if status == -signal.SIGKILL:
            return "SIGKILL, usually for lack of memory"
        return signal.Signals(-status).name if status < 0 else f"exit status {status}"


def end(forks: Iterable[Fork]) -> None:
    """End forks; one that does not leave its work within `PATIENCE` seconds is killed."""
    left = [fork for fork in forks if fork.pid]
    for fork in left:
        os.kill(fork.pid, signal.SIGTERM)
    for fork in left:
        fork.channel.settimeout(PATIENCE)
        with suppress(OSError):
            while fork.channel.recv(_PLACE.size):  # until the fork's end is closed
                pass
        os.kill(fork.pid, signal.SIGKILL)
        fork._cause()


def _serve(
    channel: socket.socket,
    asked: Memory,
    answer: Callable[[Any], object],
    said: Memory,
) -> Iterator[None]:
    """Answer a question at each step, until there will be no more."""
    while packed := channel.recv(_PLACE.size):
        try:
            result = answer(asked.read(_PLACE.unpack(packed)))
        except Exception as error:
            error.add_note("in a worker:\n" + "".join(traceback.format_exception(error)))
            result = error
        (place,) = said.write([result])
        channel.send(_PLACE.pack(*place))
        yield


def _be_fork(parent: int, not_mine: Iterable[socket.socket], steps: Iterator[None]) -> NoReturn:
    """Do what a fork does; never return into the code that forked."""
    status = 1
    try:
        CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # files are left whole
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        for channel in not_mine:
            channel.close()  # so that each fork sees it when the parent's end is closed
        gc.freeze()  # a collection would write to, and so copy, all pages that are shared
        while os.getppid() == parent:  # it can have ended before prctl
            next(steps)
    except (StopIteration, ConnectionError, SystemExit):
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)
