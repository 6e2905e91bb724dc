"""A SuperNode that answers sooner than Flower's, and exits when it has lost its SuperLink for good.

    python -m fedapps.device.supernode ...   # the options of flower-supernode, and --metrics-port

It hears of messages sooner (`waiting.py`). Messages are answered by a process that stays
(`answering.py`).

After an error at which Flower does not retry, such as an expired certificate or a server error,
`flower-supernode` leaves its loop. But its process stays and does nothing, because the thread that
serves its own port still runs, so a supervisor would not restart it. This SuperNode exits instead.
"""

import atexit
import os
import sys
import time
from contextlib import ExitStack
from typing import NoReturn

from fedapps.core import flower
from fedapps.core.certificates import value_of
from fedapps.core.errors import RunError, named
from fedapps.core.flower import ChangedError, Known, Overlay, leave_as_it_is
from fedapps.core.options import parse_option, quoted
from fedapps.core.prometheus import serving
from fedapps.device import exporter
from fedapps.device.answering import LOOP, answer_here
from fedapps.device.connection import keep_trying
from fedapps.device.exporter import NODE_CONFIG
from fedapps.device.node_config import NodeConfig
from fedapps.device.refused import Refusals
from fedapps.device.waiting import CLIENT, PollingPause, Preference, client_with, shorten_backoff

PAUSES = Known(
    LOOP.module,
    holds={"time": time},
    finds={r"\btime\.(\w+\([\d.]*\))": {"sleep(3)", "sleep(0.5)"}},
)


_serving = ExitStack()  # until the process ends; a server of figures that nobody stops holds it up
atexit.register(_serving.close)


def answer_sooner() -> Refusals:
    """Make Flower's loop pause less, and let one process answer all messages.

    Returns what names the SuperLink's refusals from now on. If Flower's code is not as expected, it
    is left unchanged, with a log line.
    """
    answering, preference, refusals = answer_here(), Preference(), Refusals()
    pause = PollingPause(answering.process.end_idle if answering else lambda: 0.0, preference)
    try:
        loop, client = PAUSES.load(), CLIENT.load()
    except ChangedError as error:
        leave_as_it_is("the SuperNode's wait", str(error), "a message may take 3 s longer")
        return refusals
    vars(loop)["time"] = Overlay(time, sleep=pause.sleep)
    maker = client.FleetHttpClient.from_server_address
    vars(client)["FleetHttpClient"] = client_with(maker, preference, refusals)
    return refusals


def with_quotes(words: list[str]) -> list[str]:
    """Return a command line with quotes around the texts of a node-config, as Flower needs them."""
    found = []
    for before, word in zip(["", *words], words, strict=False):
        name, _, text = word.partition("=")
        if before == NODE_CONFIG:
            found.append(quoted(word))
        else:
            found.append(f"{name}={quoted(text)}" if name == NODE_CONFIG and text else word)
    return found


def check(words: list[str]) -> None:
    """Check the node-config in a command line, before a run meets a mistake; raises `RunError`."""
    if node := NodeConfig.of(parse_option(value_of(words, NODE_CONFIG), NODE_CONFIG)):
        node.check()


def serve_figures() -> None:
    """Serve the device's figures to Prometheus if `--metrics-port` says so; raises `RunError`."""
    port, sys.argv = exporter.without_port(sys.argv)
    if port:
        _serving.enter_context(serving(port, exporter.of_device(sys.argv), exporter.PORT))


def leave(cause: str) -> NoReturn:
    """End this process with all its threads, through Flower's own exit function if possible."""
    try:
        flower.flwr_exit(flower.ExitCode.SUPERNODE_CONNECTION_ERROR, cause)
    except (ImportError, AttributeError, TypeError):
        print(f"error: {cause}", flush=True)
    os._exit(1)


def main() -> None:
    """Run a SuperNode; never returns. Raises `RunError` if its options cannot be right."""
    sys.argv = with_quotes(sys.argv)
    check(sys.argv)
    os.umask(0o077)  # files that it and its processes write are for this user only
    os.environ.update(flower.environment())
    serve_figures()
    shorten_backoff()
    run = flower.command("flower-supernode")
    refusals = answer_sooner()
    keep_trying()
    try:
        run()
    except SystemExit:
        if refusals.told:  # Flower takes one that is refused for one that was told to end
            sys.exit(1)
        raise
    except Exception as error:  # for example a bad certificate file; threads would go on
        why = named(error)
        leave("The SuperLink has refused this device." if refusals.told else why)
    leave("Lost the SuperLink.")


if __name__ == "__main__":
    try:
        main()
    except RunError as problem:
        sys.exit(f"error: {problem}")
