"""The process in which a SuperNode's messages are answered, see `answering.py`.

It is run as a file, `python -P fedapps/device/warm.py FD`. Nothing of fedapps may be loaded in it,
because each message brings the app to run and imports the `fedapps` of that app. So this module
does not even import `fedapps.core.flower`; `answering.py` checks whether Flower is as it expects.

It loads the libraries and then answers what comes through the socket FD. What happens to a message
depends on its app. If pyproject.toml of the app says

    [tool.fedapps]
    one-process = true

then its ClientApp answers all messages of a run as it would if each came to a new process, as it
has to in Flower's simulation, too. It is loaded into this process, which from then on belongs to
this run of this app. Of any other app nothing is known, so this process ends after its message, and
the next one gets a new process.
"""

import fcntl
import gc
import os
import select
import signal
import socket
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from importlib import import_module
from io import BytesIO, StringIO
from logging import ERROR
from multiprocessing.connection import Connection
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any
from zipfile import ZipFile

import msgspec

LIBRARIES = ("flwr.clientapp", "numpy.random", "safetensors.torch", "torch")
CLIENTAPP = "flwr.supernode.runtime.run_clientapp"  # what Flower's process for a message does
LOOK = 1000  # milliseconds between looks whether the SuperNode is there


class Asked(msgspec.Struct, frozen=True):
    """A message: what the SuperNode answers to calls of its API, by call, and all objects by id."""

    answers: dict[str, bytes]
    objects: dict[str, bytes]


class Said(msgspec.Struct, frozen=True):
    """The reply: the calls (and their requests) with which Flower's process would send it.

    `stays` says that the process keeps the app and belongs to the run from now on; else it ends.
    """

    calls: list[tuple[str, bytes]] = []
    stays: bool = False


class Api:
    """Stands for Flower's client of the SuperNode's API, in a process that has all it can ask for.

    It answers calls from a message, and keeps those that say something in `calls`.
    """

    def __init__(self, flower: Any, asked: Asked) -> None:
        self.flower, self.asked = flower, asked
        self.calls: list[tuple[str, bytes]] = []

    def PullTaskInput(self, _: Any) -> Any:
        return self.flower.PullTaskInputResponse.FromString(self.asked.answers["PullTaskInput"])

    def PullMessages(self, _: Any) -> Any:
        return self.flower.PullAppMessagesResponse.FromString(self.asked.answers["PullMessages"])

    def PullObject(self, request: Any) -> Any:
        content = self.asked.objects[request.object_id]
        answer = import_module("flwr.proto.message_pb2").PullObjectResponse
        return answer(object_found=True, object_available=True, object_content=content)

    def ConfirmMessageReceived(self, _: Any) -> None:
        """Do nothing: the SuperNode knows."""

    def PushMessages(self, request: Any) -> Any:
        self.calls.append(("PushMessages", request.SerializeToString()))
        found, trees = set[str](), [*request.message_object_trees]
        while trees:
            tree = trees.pop()
            found.add(tree.object_id)
            trees += tree.children
        answer = import_module("flwr.proto.runtime_pb2").PushAppMessagesResponse
        return answer(objects_to_push=found)

    def PushObject(self, request: Any) -> Any:
        self.calls.append(("PushObject", request.SerializeToString()))
        return import_module("flwr.proto.message_pb2").PushObjectResponse(stored=True)

    def PushTaskOutput(self, request: Any) -> None:
        self.calls.append(("PushTaskOutput", request.SerializeToString()))


class Process:
    """This process: it answers the messages of a run, or a single one."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.flower = import_module(CLIENTAPP)
        self.belongs = False  # to a run
        self.app: Any = None  # the app of this run, once it is loaded

    def serve(self) -> None:
        """Answer messages until the SuperNode hangs up, or only one."""
        end_with_peer(self.connection)
        with suppress(EOFError, ConnectionError):
            while self.goes_on_after(self.connection.recv_bytes()):
                pass

    def goes_on_after(self, data: bytes) -> bool:
        """Answer a message; return whether this process can answer more of its run."""
        api = Api(self.flower, msgspec.msgpack.decode(data, type=Asked))
        self.belongs = self.belongs or self.stays(api)
        self.answer(api)
        return self.belongs

    def stays(self, api: Api) -> bool:
        """Tell whether the app of a message can answer all messages of its run in one process."""
        try:
            folder = self.install(api.PullTaskInput(None))
            project = tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))
            return project["tool"]["fedapps"]["one-process"] is True
        except Exception:  # if it is an error, it will be the same when the message is answered
            return False

    def install(self, given: Any) -> Path:
        """Install the app of a message, unless all of it is there; return its folder.

        Flower takes any folder for a whole app, so it installs beside it; others may do so at once.
        """
        run, fab = given.run, given.fab
        folder: Path = self.flower.get_project_dir(run.fab_id, run.fab_version, fab.hash_str)
        if fab.content and not is_whole(folder, fab.content):  # none: this one's forerunner had it
            folder.mkdir(parents=True, exist_ok=True)
            with beside(folder) as path, redirect_stdout(StringIO()):  # Flower prints this path
                made = self.flower.install_from_fab(fab.content, path, skip_prompt=True)
                for file in filter(Path.is_file, [*made.rglob("*")]):
                    target = folder / file.relative_to(made)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    file.replace(target)
        return folder

    def answer(self, api: Api) -> None:
        """Answer a message with its app, and say so."""
        flower = self.flower
        message, context, run, fab = flower.pull_task_input(api)
        status, details = flower.SubStatus.COMPLETED, ""
        try:
            if self.app is None:
                self.install(api.PullTaskInput(None))
                load = flower.get_load_client_app_fn("", app_path=None, multi_app=True)
                self.app = load(run.fab_id, run.fab_version, fab.hash_str)
            reply = self.app(message=message, context=context)
        except Exception as error:
            flower.log(ERROR, "ClientApp raised an exception", exc_info=error)
            code, details = flower.ErrorCode.CLIENT_APP_RAISED_EXCEPTION, repr(error)
            if isinstance(error, flower.LoadClientAppError):
                code = flower.ErrorCode.LOAD_CLIENT_APP_EXCEPTION
            status = flower.SubStatus.FAILED
            reply = flower.Message(flower.Error(code, details), reply_to=message)
        flower.push_message(api, reply, context)
        flower.push_task_output(api, context, status, details)
        said = Said(api.calls, self.belongs)
        self.connection.send_bytes(msgspec.msgpack.encode(said))


@contextmanager
def beside(folder: Path) -> Iterator[Path]:
    """Give a new folder beside this one, which is removed afterwards.

    What killed processes have left of such folders is removed first, unless somebody is using one.
    """
    lock = os.open(folder.parent, os.O_RDONLY)
    try:
        with suppress(OSError):  # another process has it, or the file system has no locks
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for left in folder.parent.glob(".install-*"):
                rmtree(left, ignore_errors=True)
        with suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_SH)
        with TemporaryDirectory(prefix=".install-", dir=folder.parent) as path:
            yield Path(path)
    finally:
        os.close(lock)


def is_whole(folder: Path, fab: bytes) -> bool:
    """Tell whether a folder has each file of an app (a zip file) as it is in it."""
    with ZipFile(BytesIO(fab)) as app, suppress(OSError):  # a file is missing
        names = [name for name in app.namelist() if not name.startswith(".info/")]  # not installed
        return all((folder / name).read_bytes() == app.read(name) for name in names)
    return False


def ended(status: int) -> str:
    """Say how a process has ended; `status` is negative for a signal."""
    if status == -signal.SIGKILL:
        return "its process was killed (SIGKILL), usually because memory ran out"
    how = signal.Signals(-status).name if status < 0 else f"exit status {status}"
    return f"its process ended ({how}) before it had answered"


def end_with_peer(connection: Connection) -> None:
    """End this process when the SuperNode hangs up or ends, also in the middle of a message."""

    def watch() -> None:
        poll = select.poll()
        with socket.socket(fileno=os.dup(connection.fileno())) as peer:
            poll.register(peer, 0)  # no event but that it has hung up; on macOS not even that
            while not poll.poll(LOOK) and not has_hung_up(peer):
                pass
        os._exit(1)

    Thread(target=watch, daemon=True).start()


def has_hung_up(peer: socket.socket) -> bool:
    """Tell whether the other end is closed; what it has sent is not taken away."""
    try:
        return not peer.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def main() -> None:
    """Load the libraries, and answer messages."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is meant for the SuperNode
    gc.disable()  # to look for garbage in libraries while they load takes a fifth of their time
    with suppress(OSError):  # if memory runs out, the SuperNode has to be left, to say so
        Path("/proc/self/oom_score_adj").write_text("1000")
    try:
        for name in LIBRARIES:
            import_module(name)
        process = Process(Connection(int(sys.argv[1])))
    except (ImportError, MemoryError, OSError) as error:  # OSError: no memory for a library
        sys.exit(f"error: the libraries cannot be loaded: {type(error).__name__}: {error}")
    process.connection.send_bytes(b"loaded")
    gc.freeze()  # otherwise the first collections would look through all of this
    gc.enable()
    process.serve()


if __name__ == "__main__":
    main()
