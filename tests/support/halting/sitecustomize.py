"""Makes a SuperNode that has this folder on its PYTHONPATH halt in the middle of a round.

The variable HALT names what it is asked for (`train`, or a step of a secure sum), the round, and a
file that is made when the device halts there. It never answers, and the test cuts its power.
"""

import copy
import os
from pathlib import Path
from threading import Event

from flwr.app import Context, Message
from flwr.clientapp import ClientApp


def halting(app: ClientApp, message: Message, context: Context) -> Message:
    """Answer as the app does, but not to what HALT names."""
    from fedapps.wire import compact  # of the app that it was sent

    asked, round_, file = os.environ["HALT"].split()
    config = compact.unpack(copy.copy(message)).content.config_records["config"]
    this = config.get("step", message.metadata.message_type)
    if (this, message.metadata.group_id) == (asked, round_):
        Path(file).touch()
        Event().wait()
    return answer(app, message, context)


answer, ClientApp.__call__ = ClientApp.__call__, halting
