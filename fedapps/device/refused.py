"""Why a SuperLink refuses a device, or is not reached: Flower's SuperNode says half of it at most.

Flower answers 401 if a request is signed at a time that it does not accept, or by a device that is
not registered any more, and its SuperNode then ends as if it had been told to. A device that is not
let in ends with one text for several causes. And one that reaches nobody says when it will try
again, but not what it tries.
"""

import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from typing import Any

from fedapps.core import log
from fedapps.core.flower import CLOCK_AHEAD, CLOCK_BEHIND

UNAUTHORIZED = 401
CLIENT_ERRORS = range(400, 500)  # HTTP statuses: the fault is the device's
NOT_LET_IN = (
    "the SuperLink does not let this device in: its key is not registered (flwr supernode register)"
    ", another SuperNode uses it, or one has ended less than a minute ago; then start it again"
)

UNKNOWN = (
    "the SuperLink does not know this device any more: it was removed (flwr supernode unregister),"
    " or the SuperLink has lost its list (no --database); register it and start it again"
)


class Refusals:
    """Intercepts the answers to a SuperNode's requests; names the cause of a refusal, once.

    If there is no answer, it names the address and the cause, once until there is one.
    """

    def __init__(self) -> None:
        self.told = False  # of a refusal
        self._unreached = False

    def intercept(self, context: Any, call_next: Callable[[Any], Any]) -> Any:
        """Send a request; `context` has the request for httpx, and the name of Flower's call."""
        try:
            response = call_next(context)
        except Exception as error:
            if not self._unreached:
                log.info("%s is not reached: %s", context.request.url.netloc.decode(), error)
            self._unreached = True
            raise
        self._unreached = False
        if cause := reason(context.rpc_method, response.status_code, response.headers.get("date")):
            if not self.told:
                log.error(cause)
            self.told = True
        return response


def reason(call: str, status: int, date: str | None) -> str:
    """Return why an answer of the SuperLink is a refusal; empty if it is none that we know.

    `date` is the answer's header: the server's time, in whole seconds.
    """
    if status == UNAUTHORIZED and date:
        ahead = time.time() - parsedate_to_datetime(date).timestamp()
        off = f"{abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the server's"
        # a second less, because the server has cut off its fractions
        if ahead > CLOCK_AHEAD - 1 or ahead < 1 - CLOCK_BEHIND:
            return (
                f"the SuperLink refuses this device, because its clock is {off}; "
                f"set it (Flower accepts {CLOCK_AHEAD} s ahead, {CLOCK_BEHIND} s behind)"
            )
    if call.endswith("/ActivateNode") and status in CLIENT_ERRORS:
        return NOT_LET_IN
    return UNKNOWN if status == UNAUTHORIZED else ""
