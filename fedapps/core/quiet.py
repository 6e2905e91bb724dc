"""Removes lines from Flower's log that tell the user nothing, or that a line of ours replaces.

Importing this module is enough, and affects the whole process. The modules that Flower starts
import it before anything else of ours, because Ray's warning comes early. With FEDAPPS_LOG=debug
every line is shown.
"""

import logging
import os
import warnings

from fedapps.core.errors import RunError
from fedapps.core.log import LEVEL

# A worker process died: the round reports which clients were affected and what to do.
_DEAD_WORKER = (
    "ActorDiedError",
    "The actor died unexpectedly",
    "processing a message by RayBackend",
)
_OF_RAY = "Tip: In future versions of Ray"  # advice for authors of Ray programs


class _Telling(logging.Filter):
    """Lets a line of Flower's log pass only if it is worth showing."""

    failed = False  # whether a line of ours has reported the error

    def filter(self, record: logging.LogRecord) -> bool:
        """Tell whether to show a line."""
        text = record.getMessage()
        if record.exc_info and isinstance(record.exc_info[1], RunError):
            self.failed = True  # a traceback would say no more than our line
            return False
        if not text.strip() or text.startswith("Manually terminating"):
            return False
        if self.failed and text.startswith("Exit Code:"):  # "an unhandled exception occurred"
            return False
        return not any(words in text for words in _DEAD_WORKER)


if os.environ.get(LEVEL, "").lower() != "debug":
    warnings.filterwarnings("ignore", _OF_RAY, FutureWarning)
    logging.getLogger("flwr").addFilter(_Telling())
