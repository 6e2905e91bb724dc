"""Sends an empty message to every node each round and prints when the round ended.

Lines to read by machine: `empty-app round=<n> nodes=<n> since-start=<s> seconds=<s>`, where
`since-start` counts from the start of this process.
"""

import os
import time

from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

app = ServerApp()


def process_age() -> float:
    """Seconds since this process started; from the import of this module where /proc is missing."""
    try:
        with open("/proc/self/stat") as stat, open("/proc/uptime") as uptime:
            started = int(stat.read().rsplit(")", 1)[1].split()[19]) / os.sysconf("SC_CLK_TCK")
            return float(uptime.read().split()[0]) - started
    except OSError:
        return time.monotonic() - _IMPORTED


_IMPORTED = time.monotonic()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Do `num-rounds` rounds of empty messages."""
    print(f"empty-app main since-start={process_age():.2f}", flush=True)
    while not (nodes := list(grid.get_node_ids())):
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
        print(
            f"empty-app round={number} nodes={len(nodes)} "
            f"since-start={process_age():.2f} seconds={seconds:.3f}",
            flush=True,
        )
