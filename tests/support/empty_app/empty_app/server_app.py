"""Sends an empty message to every node each round and prints when the round ended.

Lines to read by machine: `empty-app round=<n> nodes=<n> seconds=<s>`.
"""

import time

from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Do `num-rounds` rounds of empty messages."""
    while len(nodes := list(grid.get_node_ids())) < int(context.run_config["nodes"]):
        time.sleep(0.1)
    for number in range(1, int(context.run_config["num-rounds"]) + 1):
        if number == context.run_config["fail-round"]:
            raise RuntimeError(f"round {number} fails as asked")
        started = time.monotonic()
        messages = [Message(RecordDict(), dst_node_id=node, message_type="train") for node in nodes]
        replies = list(grid.send_and_receive(messages))
        if any(reply.has_error() for reply in replies) or len(replies) != len(nodes):
            raise RuntimeError(f"round {number}: {len(replies)} replies of {len(nodes)} nodes")
        seconds = time.monotonic() - started
        print(f"empty-app round={number} nodes={len(nodes)} seconds={seconds:.3f}", flush=True)
