"""The warm process: it loads the libraries and forks itself for each message, see `superexec.py`.

It is run as a file, `python -P fedapps/device/warm.py FD`. Nothing of fedapps may be loaded in it,
because each message brings the app to run and imports the `fedapps` of that app. So this module
does not even import `fedapps.core.flower`, and checks itself whether Flower is as it expects.

It writes a byte to the file descriptor FD when the libraries are loaded. Then each line of its
input is a `flwr-clientapp` command, as a JSON list of words. It ends when its input ends.
"""

import gc
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module, metadata
from threading import Thread

import numpy as np

LIBRARIES = ("flwr.clientapp", "msgspec", "numpy.random", "safetensors.torch", "torch")
PULLS = "flwr.supercore.inflatable.inflatable_utils"
INITIAL_BACKOFF = 0.02  # seconds
GRACE = 30.0  # seconds that a process has left after the one that started it has ended


def shorten_backoff() -> None:
    """Make Flower retry sooner for arrays that are still on their way; it first waits a second.

    A message arrives before its arrays, so a SuperNode that polls often would lose that second.
    """
    try:
        module = import_module(PULLS)
        names = ("pull_objects", "pull_and_inflate_object_from_tree")
        defaults = [getattr(module, name).__kwdefaults__ for name in names]
        if not all(default["initial_backoff"] > 0 for default in defaults):
            raise ValueError("initial_backoff is no time")
    except (ImportError, AttributeError, KeyError, TypeError, ValueError) as error:
        print(
            f"note: this Flower pulls arrays in another way ({type(error).__name__}: {error}), "
            "which is left as it is; a message may take a second longer",
            flush=True,
        )
        return
    for default in defaults:
        default["initial_backoff"] = INITIAL_BACKOFF


def end_with_parent(words: list[str]) -> None:
    """End this process soon after its parent (Flower's option `--parent-pid`) has ended.

    Flower asks the process to stop with a signal, but a main thread that waits for other threads
    does not handle it. Threads that try to reach a peer which has ended would then go on for ever
    and keep the run directory locked.
    """
    if "--parent-pid" not in words:
        return
    parent = int(words[words.index("--parent-pid") + 1])

    def watch() -> None:
        with suppress(ProcessLookupError):
            while True:
                with suppress(PermissionError):  # the parent exists
                    os.kill(parent, 0)
                time.sleep(1.0)
        time.sleep(GRACE)
        os._exit(1)

    Thread(target=watch, daemon=True).start()


def clientapp() -> Callable[[], None] | None:
    """Return the function of the command `flwr-clientapp`; print a note if there is none."""
    try:
        (entry,) = metadata.entry_points(group="console_scripts", name="flwr-clientapp")
        function: Callable[[], None] = entry.load()
    except (ImportError, AttributeError, ValueError) as error:
        print(
            f"note: Flower's flwr-clientapp cannot be loaded ({type(error).__name__}: {error}); "
            "each message is a new process that loads the libraries, which takes seconds",
            flush=True,
        )
        return None
    return function


def main() -> None:
    """Fork for each line of the input, or start Flower's own command if there is no function."""
    loaded = int(sys.argv[1])
    function = clientapp()
    if function is not None:
        shorten_backoff()
        for name in LIBRARIES:
            import_module(name)
    gc.freeze()  # otherwise each fork would collect, and so copy, all of this when it ends: 0.7 s
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is meant for the process that started it
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for forks
    with suppress(BrokenPipeError), open(loaded, "wb", buffering=0) as tell:
        tell.write(b"+")
    # Not sys.stdin, which reads ahead: a fork would find the commands of others in its buffer.
    with open(0, "rb", buffering=0, closefd=False) as lines:
        for line in lines:
            if os.fork() == 0:
                run(json.loads(line), function)
                return


def run(command: list[str], function: Callable[[], None] | None) -> None:
    """Run `flwr-clientapp` for a message in this process, which is a fork."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    if function is None:
        os.execvp(command[0], command)
    np.random.seed()  # as in a new process; Python's `random` reseeds itself in a fork
    sys.argv = command
    end_with_parent(command)
    function()


if __name__ == "__main__":
    main()
