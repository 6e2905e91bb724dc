"""A process that has the libraries loaded and forks itself for each message: see `superexec.py`.

Run as a file, `python -P fedapps/device/warm.py FD`: nothing of fedapps may be loaded in it, as
each message brings the app that is to run and imports that one's `fedapps`. So this module imports
nothing of ours, not even `fedapps.core.flower`, and checks by itself that Flower is as it knows it.

It writes a byte to the file descriptor FD when the libraries are loaded. Then it reads a command of
`flwr-clientapp` per line, a JSON list of words, and ends with its input.
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
GRACE = 30.0  # seconds that are left to a process when the one that started it has ended


def shorten_backoff() -> None:
    """Let Flower ask again at once for what is on its way, where it waits for a second at first.

    A message is there before its arrays; whoever is fast enough to see that loses the second.
    """
    try:
        module = import_module(PULLS)
        names = ("pull_objects", "pull_and_inflate_object_from_tree")
        defaults = [getattr(module, name).__kwdefaults__ for name in names]
        if not all(default["initial_backoff"] > 0 for default in defaults):
            raise ValueError("initial_backoff is no time")
    except (ImportError, AttributeError, KeyError, TypeError, ValueError) as error:
        print(
            f"note: Flower pulls arrays in another way ({type(error).__name__}: {error}) and is "
            "left as it is; a message may take a second longer",
            flush=True,
        )
        return
    for default in defaults:
        default["initial_backoff"] = INITIAL_BACKOFF


def end_with_parent(words: list[str]) -> None:
    """End this process soon after the one that Flower's option `--parent-pid` names has ended.

    Flower asks it to stop, by a signal that a main thread which waits for other threads never
    sees. If these try to reach whom there is no more, they would do so for ever, and hold the
    directory of the run.
    """
    if "--parent-pid" not in words:
        return
    parent = int(words[words.index("--parent-pid") + 1])

    def watch() -> None:
        with suppress(ProcessLookupError):
            while True:
                with suppress(PermissionError):  # it is there
                    os.kill(parent, 0)
                time.sleep(1.0)
        time.sleep(GRACE)
        os._exit(1)

    Thread(target=watch, daemon=True).start()


def clientapp() -> Callable[[], None] | None:
    """Return what the command `flwr-clientapp` runs; None, and a line, if Flower has none."""
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
    """Fork for each line of the input; start Flower's own command where that cannot be."""
    loaded = int(sys.argv[1])
    function = clientapp()
    if function is not None:
        shorten_backoff()
        for name in LIBRARIES:
            import_module(name)
    gc.freeze()  # else the end of each fork goes through all of it, and copies it: 0.7 s
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is meant for whoever started this
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for forks
    with suppress(BrokenPipeError), open(loaded, "wb", buffering=0) as tell:
        tell.write(b"+")
    # Not sys.stdin, which reads ahead: a fork must not find the commands of others in it.
    with open(0, "rb", buffering=0, closefd=False) as lines:
        for line in lines:
            if os.fork() == 0:
                run(json.loads(line), function)
                return


def run(command: list[str], function: Callable[[], None] | None) -> None:
    """Be the `flwr-clientapp` process of a message."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    if function is None:
        os.execvp(command[0], command)
    np.random.seed()  # as in a new process; Python's `random` sees to that itself
    sys.argv = command
    end_with_parent(command)
    function()


if __name__ == "__main__":
    main()
