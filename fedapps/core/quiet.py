"""Keeps lines out of Flower's log that tell the user nothing, or what one line of ours tells.

Importing it does so for the whole process; those of Flower's import it before all else of ours,
because Ray's warning comes soon. With FEDAPPS_LOG=debug every line is shown.
"""

import logging
import os
import warnings

from fedapps.core.errors import RunError
from fedapps.core.log import LEVEL

# A worker process that died: the round says which clients it concerns and what to do.
_DEAD_WORKER = (
    "ActorDiedError",
    "The actor died unexpectedly",
    "processing a message by RayBackend",
)
_OF_RAY = "Tip: In future versions of Ray"  # for who writes programs with Ray


class _Telling(logging.Filter):
    """Lets the lines of Flower's log pass that are worth showing."""

    failed = False  # with a line of ours

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
