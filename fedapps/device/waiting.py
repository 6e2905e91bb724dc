"""How long a SuperNode waits between two looks for a message, and for what is still on its way.

Flower 1.41 sleeps 3 s whenever there is no message, even in the middle of a round, which costs
about 3 s per message. Here a pause is a tenth of the wait so far, and at most as long as Flower's,
so that an idle device polls as rarely as with Flower.

Each look asks the SuperLink to answer only when there is a message, or after 3 s (`Prefer`, RFC
7240). `fedapps superlink` does so (`wire/superlink.py`), and says so in its answer; there is next
to no pause then.
"""

import time
from collections.abc import Callable, Sequence
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from fedapps.core.flower import Known

SHORTEST = 0.05  # seconds
FOR_A_MESSAGE = 3  # seconds that Flower's loop sleeps if there is no message
PULLS = "flwr.supercore.inflatable.inflatable_utils"
INITIAL_BACKOFF = 0.02  # seconds
PREFER, APPLIED = "prefer", "preference-applied"  # headers
CLIENT = Known(
    "flwr.supernode.fleet_http_connection",
    finds={
        r"\bFleetHttpClient\.(\w+)\(": {"from_server_address"},
        r"\b(interceptors=)\[": {"interceptors="},
    },
    parameters={
        "FleetHttpClient.from_server_address": (
            *("server_address", "insecure", "root_certificates", "interceptors", "retry_invoker"),
        )
    },
)


class Preference:
    """Intercepts the requests of a SuperNode: says how long it would wait for a message."""

    def __init__(self) -> None:
        self.applied = False  # whether the SuperLink waited, when it was asked last

    def intercept(self, context: Any, call_next: Callable[[Any], Any]) -> Any:
        """Send a request; `context` has the request for httpx, and the name of Flower's call."""
        if not context.rpc_method.endswith("/PullMessages"):
            return call_next(context)
        context.request.headers[PREFER] = f"wait={FOR_A_MESSAGE}"
        self.applied = False
        response = call_next(context)
        self.applied = response.headers.get(APPLIED) == "wait"
        return response


def client_with(maker: Callable[..., Any], *more: Any) -> Any:
    """Stand for Flower's class of clients of a SuperLink, in whose place `maker` makes them.

    `more` interceptors see their requests and the answers.
    """

    def made(*words: Any, interceptors: Sequence[Any], **options: Any) -> Any:
        return maker(*words, interceptors=[*interceptors, *more], **options)

    return SimpleNamespace(from_server_address=made)


class PollingPause:
    """Replaces the `sleep` of Flower's loop: a pause is a tenth of the wait so far.

    It is also at least nine times as long as it took to ask, so that a server that is busy, or many
    devices at one server, are asked less often. The length of the loop's pause tells what it waits
    for: 3 s for a message, 0.5 s for the app's reply. Each of the two has its own wait. `rest` is
    called before each pause and returns when the last message was answered, if not by Flower, so
    that a new wait began.
    """

    def __init__(
        self, rest: Callable[[], float] = lambda: 0.0, preference: Preference | None = None
    ) -> None:
        self.pause, self.since, self.rest = 0.0, 0.0, rest
        self.preference = preference or Preference()
        self.slept = 0.0  # until when

    def sleep(self, pause: float) -> None:
        """Sleep for at most `pause` seconds, and for less at first."""
        answered, now = self.rest(), time.monotonic()
        if pause != self.pause:
            self.pause, self.since = pause, now
        self.since = max(self.since, answered)
        asking = now - self.slept if self.slept >= self.since else 0.0
        wait = max(SHORTEST, (now - self.since) / 10, 9 * asking)
        held = self.preference.applied and now - self.slept > FOR_A_MESSAGE / 2
        if pause == FOR_A_MESSAGE and held:  # not if another SuperNode asks with the same key
            wait = SHORTEST
        time.sleep(min(pause, wait))
        self.slept = time.monotonic()


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
        told = f"note: this Flower pulls arrays in another way ({type(error).__name__}: {error})"
        print(f"{told}, which is left as it is; a message may take a second longer", flush=True)
        return
    for default in defaults:
        default["initial_backoff"] = INITIAL_BACKOFF
