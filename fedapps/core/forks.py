"""Forks of this process that answer what they are asked, with data that they share with it.

What is asked and answered is pickled into memory that both processes can read (`Sheet`); only its
place goes through a socket. Linux only.
"""

import gc
import io
import mmap
import os
import pickle
import signal
import socket
import struct
import sys
import traceback
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from ctypes import CDLL
from multiprocessing.pool import ExceptionWithTraceback
from typing import Any, NoReturn

from fedapps.core.errors import RunError

PATIENCE = 10.0  # seconds that a fork has to leave its work in good order
LARGE = 2**12  # bytes; fewer are copied into the pickle
ALIGNED = 64  # bytes
_PLACE = struct.Struct("QQ")  # offset and size
_PR_SET_PDEATHSIG = 1  # as in Linux' prctl.h


class Sheet:
    """Objects in memory that other processes can map; `places` says where each of them is.

    A large `bytes` object that several of them have is there once.
    """

    def __init__(self, items: Iterable[object]) -> None:
        self.fd = os.memfd_create("fedapps")
        weakref.finalize(self, os.close, self.fd)
        with open(self.fd, "wb", closefd=False) as file:
            writer = _Writer(file)
            self.places = [writer.write(item) for item in items]


class _Writer:
    def __init__(self, file: io.BufferedWriter) -> None:
        self.file, self.size = file, 0
        self.known: dict[int, tuple[bytes, tuple[int, int]]] = {}  # by id, which the object keeps

    def write(self, item: object) -> tuple[int, int]:
        text = io.BytesIO()
        pickler = pickle.Pickler(text, pickle.HIGHEST_PROTOCOL)
        pickler.persistent_id = self._place  # type: ignore[method-assign]
        pickler.dump(item)
        return self._append(text.getbuffer())

    def _place(self, item: object) -> tuple[int, int] | None:
        if type(item) is not bytes or len(item) < LARGE:
            return None
        if id(item) not in self.known:
            self.known[id(item)] = item, self._append(item)
        return self.known[id(item)][1]

    def _append(self, data: bytes | memoryview) -> tuple[int, int]:
        start = -(-self.size // ALIGNED) * ALIGNED
        self.file.seek(start)
        self.file.write(data)
        self.size = start + len(data)
        return start, len(data)


def _send(channel: socket.socket, sheet: Sheet, place: tuple[int, int]) -> None:
    socket.send_fds(channel, [_PLACE.pack(*place)], [sheet.fd])


def _receive(channel: socket.socket, own: bool) -> Any:
    """Return what the other side has sent; raises EOFError or OSError if it has ended.

    Large bytes are copies that this process owns, or views of the sheet. A view keeps a file open.
    """
    packed, fds, _, _ = socket.recv_fds(channel, _PLACE.size, 1)
    if not fds:
        raise EOFError
    whole = memoryview(mmap.mmap(fds[0], 0, prot=mmap.PROT_READ))
    os.close(fds[0])

    def load(place: tuple[int, int]) -> bytes | memoryview:
        view = whole[place[0] : sum(place)]
        return bytes(view) if own else view

    unpickler = pickle.Unpickler(io.BytesIO(load(_PLACE.unpack(packed))))
    unpickler.persistent_load = load  # type: ignore[method-assign]
    return unpickler.load()


class Fork:
    """A fork that calls `answer` with each object that it is asked, in order.

    It has all that this process had when it was made. It ends when it is told to, or with this
    process, whatever ends that. Ctrl-C is left to this process. `others` are the forks that are
    there already.
    """

    def __init__(self, answer: Callable[[Any], object], others: Iterable["Fork"] = ()) -> None:
        self.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sys.stdout.flush()  # otherwise both processes would print what is left
        sys.stderr.flush()
        parent = os.getpid()
        try:
            self.pid = os.fork()
        except OSError as error:
            raise RunError(f"cannot start a worker process: {error.strerror}") from error
        if not self.pid:
            _be_fork(parent, answer, theirs, [self.channel, *(fork.channel for fork in others)])
        theirs.close()

    def ask(self, sheet: Sheet, place: tuple[int, int]) -> None:
        """Ask the object at a place of a sheet; nothing happens if the fork has died."""
        with suppress(OSError):  # `answer` will tell
            _send(self.channel, sheet, place)

    def answer(self) -> Any:
        """Wait for the next answer. Raises EOFError if the fork has died, with the cause.

        Raises what the call in the fork raised, with the traceback there as a text.
        """
        try:
            answer = _receive(self.channel, own=True)
        except (EOFError, OSError):
            raise EOFError(self._cause()) from None
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def _cause(self) -> str:
        """Say why the fork, which has ended, did so."""
        status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self.channel.close()
        self.pid = 0
        if status == -signal.SIGKILL:
            return "SIGKILL, usually for lack of memory"
        return signal.Signals(-status).name if status < 0 else f"exit status {status}"


def end(forks: Sequence[Fork]) -> None:
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
        os.waitpid(fork.pid, 0)
        fork.channel.close()


def _be_fork(
    parent: int,
    answer: Callable[[Any], object],
    channel: socket.socket,
    not_mine: Iterable[socket.socket],
) -> NoReturn:
    """Do what a fork does; never return into the code that forked."""
    status = 1
    try:
        CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # files are left whole
        for other in not_mine:
            other.close()
        gc.freeze()  # a collection would write to, and so copy, all pages that are shared
        while os.getppid() == parent:  # it can have ended before prctl
            _answer_one(answer, channel)
    except (EOFError, ConnectionError, SystemExit):
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _answer_one(answer: Callable[[Any], object], channel: socket.socket) -> None:
    asked = _receive(channel, own=False)
    try:
        said = answer(asked)
    except Exception as error:
        said = ExceptionWithTraceback(error, error.__traceback__)
    sheet = Sheet([said])
    _send(channel, sheet, sheet.places[0])
