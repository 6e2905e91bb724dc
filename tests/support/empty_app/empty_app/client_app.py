"""Answers each message at once."""

import time

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Reply with nothing, after `sleep` seconds."""
    time.sleep(float(context.run_config["sleep"]))
    return Message(RecordDict(), reply_to=message)
