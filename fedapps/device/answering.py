"""A SuperNode answers its messages with one process that stays, instead of Flower's SuperExec.

Flower's SuperNode starts a SuperExec, which asks it for messages over HTTP and starts a process for
each. This process loads the libraries and the app, which takes seconds, and asks the SuperNode over
HTTP for each part of the message. Here the SuperNode itself hands a message over, as one record, to
a process that has the libraries loaded (`warm.py`), and that keeps the app of a run if this app
allows it. So a device has two processes in the place of three or four, no port, and the second
process ends when no message has come for a while.

What belongs to a message is asked and told through the same functions of Flower that serve the
SuperNode's API.
"""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread
from types import ModuleType, SimpleNamespace
from typing import Any

import msgspec

from fedapps.core import log
from fedapps.core.flower import ChangedError, Known, Overlay, check_source, leave_as_it_is
from fedapps.device import warm
from fedapps.device.warm import Asked, Said

WARM = (sys.executable, "-P", str(Path(warm.__file__)))
INSTALL = "--allow-runtime-dependency-installation"  # gives each message its own environment
# Otherwise each of its threads has a heap of its own, which keeps what has been freed: 18 MB.
ONE_HEAP = {"MALLOC_ARENA_MAX": "1"}
BEAT = 10.0  # seconds until Flower is told that a message is still worked on; it waits for 60
IDLE = 120.0  # seconds without a message after which the process ends, to free memory
LOOP = Known(
    "flwr.supernode.start_client_internal",
    holds={"subprocess": subprocess},
    finds={r"\bsubprocess\.(\w+)": {"Popen"}, r"\bcommand = (.*)": {'["flower-superexec"]'}},
    parameters={
        "_push_messages": ("state", "object_store", "send", "push_object"),
        "_insert_message": ("msg", "state", "store"),
        "iterate_object_tree": ("tree",),
    },
    has=(
        *("Error", "ErrorCode.CLIENT_APP_CRASHED", "Message", "SubStatus.FAILED"),
        "TaskType.CLIENT_APP",
    ),
)
COMMAND = Known(
    "flwr.supernode.cli.flower_supernode",
    finds={r"\bhttp_(?:server|thread)\.(\w+)": {"should_exit", "join", "is_alive", "force_exit"}},
    parameters={"_start_supernode_http_api": ("config", "state_factory")},
)
_CALL = ("request", "state", "task")
PULLS = {"pull_task_input", "pull_messages", "pull_object", "confirm_message_received"}
PUSHES = {
    "PushMessages": ("push_messages", "PushAppMessagesRequest"),
    "PushObject": ("push_object", "PushObjectRequest"),
    "PushTaskOutput": ("push_task_output", "PushTaskOutputRequest"),
}
API = Known(  # what serves the SuperNode's API
    "flwr.supernode.servicer.runtime.runtime_handlers",
    parameters={
        "acquire_task": ("request", "state"),
        **dict.fromkeys([*PULLS, *(name for name, _ in PUSHES.values())], _CALL),
        "message_from_proto": ("message_proto",),
    },
    has=(
        *("AcquireTaskRequest", "PullTaskInputRequest", "PullAppMessagesRequest"),
        *("PullObjectRequest", "ConfirmMessageReceivedRequest"),
        *(request for _, request in PUSHES.values()),
    ),
)
STATE = Known(  # what it keeps of tasks
    "flwr.supercore.corestate.in_memory_corestate",
    finds={
        r"\bself\.(task_store: .*)": {"task_store: dict[int, Task] = {}"},
        r"\bself\.(lock_task_store = .*)": {"lock_task_store = Lock()"},
    },
    parameters={"InMemoryCoreState.finish_task": ("self", "task_id", "sub_status", "details")},
    has=("Status.FINISHED",),
)
# What warm.py calls; here that module is only read, because to load it takes time and memory.
CLIENTAPP = {
    "pull_task_input": ("client",),
    "push_message": ("client", "message", "context"),
    "push_task_output": ("client", "context", "sub_status", "details"),
}


PATIENCE = 10.0  # seconds for a process to end by itself, below those of a task without a sign
ENDS = "-"  # in place of a run: the process answers no more, as its app needs one for each message


class Process:
    """The process that answers messages; it is there from the first message on, or again."""

    def __init__(self) -> None:
        self.run = ""  # of which it keeps the app
        self.used = 0.0  # when the last message was answered
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None

    def ask(self, asked: Asked, run: str, beat: Callable[[], object]) -> Said:
        """Have a message of a run answered, with a call of `beat` every `BEAT` seconds.

        Raises EOFError with the cause if the process has ended before it had answered.
        """
        if self.run not in ("", run) or (self._process and self._process.poll() is not None):
            self.end()  # nothing of another run may be seen
        connection, loading = self._connection, self._connection is None
        connection = connection or self._start()

        def received() -> bytes:
            while not connection.poll(BEAT):
                beat()
            return connection.recv_bytes()

        try:
            if loading:  # to send would block for as long
                received()
            connection.send_bytes(msgspec.msgpack.encode(asked))
            said = msgspec.msgpack.decode(received(), type=Said)
        except (EOFError, ConnectionError):
            raise EOFError(self.end()) from None
        finally:
            self.used = time.monotonic()
        self.run = run if said.stays else ENDS
        return said

    def end_idle(self) -> float:
        """End the process if it has been idle for long; return when it was last used."""
        if self._process and time.monotonic() - self.used > IDLE:
            self.end()
        return self.used

    def end(self) -> str:
        """End the process, which ends by itself when nobody is connected; return how it ended."""
        if self._process and self.run == ENDS:  # it may have to write what its app has kept
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(PATIENCE)
        if self._connection:
            self._connection.close()
        status = self._process.wait() if self._process else 0
        self._process, self._connection, self.run = None, None, ""
        return warm.ended(status)

    def _start(self) -> Connection:
        mine, theirs = socket.socketpair()
        with theirs:
            words, passed = (*WARM, str(theirs.fileno())), [theirs.fileno()]
            self._process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, pass_fds=passed, env=ONE_HEAP | os.environ
            )
        self._connection = Connection(mine.detach())
        return self._connection


class Answering:
    """Answers a SuperNode's messages; `loop`, `api` and `tasks` are Flower's modules for that."""

    def __init__(self, loop: ModuleType, api: ModuleType, tasks: ModuleType) -> None:
        self.loop, self.api, self.tasks = loop, api, tasks
        self.process = Process()
        self.active = False  # else Flower's SuperExec starts the processes of messages
        self._push = loop._push_messages

    def start_superexec(self, command: Sequence[str], **options: Any) -> object:
        """Stand for `Popen`: start a process, but no SuperExec if this object can do its work."""
        self.active = command[0] == "flower-superexec" and INSTALL not in command
        return None if self.active else subprocess.Popen(command, **options)

    def answer_and_push(self, state: Any, object_store: Any, send: Any, push_object: Any) -> None:
        """Stand for Flower's function that waits for the reply to a message, and sends it.

        There is a second message if a run has ended while a message of it was on its way: Flower
        then goes on, and leaves it behind. If it were answered in place of the one that has come
        since, each later one would be answered only when yet another one had come.
        """
        while self.active and self.answer(state):
            pass
        self._push(state=state, object_store=object_store, send=send, push_object=push_object)

    def answer(self, state: Any) -> bool:
        """Have a message that has come answered; keep the reply in the SuperNode's state.

        Returns False if there is none.
        """
        api, types = self.api, [*self.loop.TaskType]
        task = api.acquire_task(api.AcquireTaskRequest(supported_task_types=types), state).task
        if not task.task_id:  # or the SuperNode has replied by itself
            return False
        known = api.pull_task_input(api.PullTaskInputRequest(), state, task)
        pulled = api.pull_messages(api.PullAppMessagesRequest(), state, task)
        message, (tree,) = pulled.messages_list[0], pulled.message_object_trees
        run = f"{task.run_id} {task.fab_hash}"
        if run == self.process.run:
            known.fab.content = b""  # it has the app
        objects = {}
        for part in self.loop.iterate_object_tree(tree):
            request = api.PullObjectRequest(object_id=part.object_id)
            objects[part.object_id] = api.pull_object(request, state, task).object_content
        received = api.ConfirmMessageReceivedRequest(message_object_id=tree.object_id)
        api.confirm_message_received(received, state, task)
        given = {"PullTaskInput": known, "PullMessages": pulled}
        asked = Asked({name: it.SerializeToString() for name, it in given.items()}, objects)
        try:
            if task.type != self.loop.TaskType.CLIENT_APP:
                raise EOFError(f"{task.type} needs flower-supernode")
            if not all(objects.values()):
                raise EOFError("its run ended before all of it had come")
            beat = lambda: state.acknowledge_task_heartbeat(task.task_id)  # noqa: E731
            said = self.process.ask(asked, run, beat)
        except EOFError as error:
            self.refuse(message, str(error), state, task)
        else:
            self.tell(said, state, task)
        self.forget(state)
        return True

    def tell(self, said: Said, state: Any, task: Any) -> None:
        """Put a reply into the SuperNode's state."""
        session = ""
        for name, data in said.calls:
            function, request_class = (getattr(self.api, name) for name in PUSHES[name])
            request = request_class.FromString(data)
            if name == "PushObject":
                request.session_id = session
            answer = function(request, state, task)
            if name == "PushMessages":
                session = answer.session_id

    def refuse(self, message: Any, problem: str, state: Any, task: Any) -> None:
        """Reply that a message cannot be answered, and log it."""
        log.error("a message is not answered: %s", problem)
        loop, about = self.loop, message.metadata.message_id
        error = loop.Error(loop.ErrorCode.CLIENT_APP_CRASHED, problem)
        reply = loop.Message(error, reply_to=self.api.message_from_proto(message))
        state.record_message_processing_end(message_id=about)
        loop._insert_message(reply, state, state.object_store)
        state.finish_task(task.task_id, loop.SubStatus.FAILED, problem)

    def forget(self, state: Any) -> None:
        """Drop finished tasks: Flower keeps all, and looks through all of them for each message."""
        with state.lock_task_store:
            for task_id, task in [*state.task_store.items()]:
                if task.status.status == self.tasks.Status.FINISHED:
                    del state.task_store[task_id]


def answer_here() -> Answering | None:
    """Let this process, which is to become a SuperNode, answer messages without a SuperExec.

    If Flower's code is not as expected, it is left unchanged, with a log line.
    """
    try:
        loop, api, tasks, command = LOOP.load(), API.load(), STATE.load(), COMMAND.load()
        check_source(warm.CLIENTAPP, CLIENTAPP)
    except ChangedError as error:
        cost = "each message is a new process that loads the libraries, which takes seconds"
        leave_as_it_is("how the SuperNode answers", str(error), cost)
        return None
    answering = Answering(loop, api, tasks)
    vars(loop)["subprocess"] = Overlay(subprocess, Popen=answering.start_superexec)
    vars(loop)["_push_messages"] = answering.answer_and_push
    serve = command._start_supernode_http_api

    def serve_if_needed(config: Any, state_factory: Any) -> tuple[Any, Thread]:
        if config.isolation != "subprocess" or config.runtime_dependency_install:
            return serve(config, state_factory)
        thread = Thread()
        thread.start()
        return SimpleNamespace(should_exit=False, force_exit=False), thread

    vars(command)["_start_supernode_http_api"] = serve_if_needed
    return answering
