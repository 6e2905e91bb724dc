"""Many slow devices in one process, for `benchmarks/device_costs.py`.

    python -m benchmarks.slow_devices PORT CA FOLDER DATA COUNT SECONDS

Each thread is a SuperNode in Flower's own loop, with the connection that ours has. The messages are
answered in turn by the ClientApp in this process; then the device sleeps until SECONDS have passed
since the message came, as if it had computed for so long.
"""

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supernode.nodestate import NodeStateFactory

from fedapps import client_app
from fedapps.core.flower import Overlay
from fedapps.device import answering, warm
from fedapps.device.waiting import CLIENT, PollingPause, client_with

ONE_AT_A_TIME = threading.Lock()


class Slow(warm.Process):
    """Stands for the process of a device."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.run, self.used, self.belongs = seconds, "", 0.0, True
        self.flower = __import__(warm.CLIENTAPP, fromlist=["run_clientapp"])
        self.app = client_app.app

    def ask(self, asked: warm.Asked, run: str, beat: Callable[[], object]) -> warm.Said:
        """Answer, and sleep."""
        begin = time.monotonic()
        with ONE_AT_A_TIME:
            self.answer(warm.Api(self.flower, asked))
            said = self.said
        time.sleep(max(0.0, begin + self.seconds - time.monotonic()))
        self.run, self.used = run, time.monotonic()
        return said

    def say(self, said: warm.Said) -> None:
        """Keep the reply."""
        self.said = said

    def end_idle(self) -> float:
        """Do nothing; return when the last message was answered."""
        return self.used


def main() -> None:
    """Run the devices until the process is ended."""
    port, certificate, folder, data, count, seconds = sys.argv[1:]
    loop, api, tasks = answering.LOOP.load(), answering.API.load(), answering.STATE.load()
    here = threading.local()  # what belongs to the thread of one device
    pause = SimpleNamespace(sleep=lambda seconds: here.pause.sleep(seconds))
    vars(loop)["time"] = Overlay(time, sleep=pause.sleep)
    vars(loop)["register_signal_handlers"] = lambda **_: None
    vars(loop)["subprocess"] = Overlay(
        subprocess, Popen=lambda *words: here.answering.start_superexec(*words)
    )
    client = CLIENT.load()
    maker = client.FleetHttpClient.from_server_address
    vars(client)["FleetHttpClient"] = SimpleNamespace(
        from_server_address=lambda *words, **options: client_with(
            maker, here.pause.preference
        ).from_server_address(*words, **options)
    )
    push = loop._push_messages
    vars(loop)["_push_messages"] = lambda **parts: here.answering.answer_and_push(**parts)

    def run(number: int) -> None:
        here.answering = made = answering.Answering(loop, api, tasks)
        made._push, slow = push, Slow(float(seconds))
        vars(made)["process"] = slow
        here.pause = PollingPause(slow.end_idle)
        key: Any = load_ssh_private_key(
            Path(folder, "keys", f"slow-{number}.key").read_bytes(), None
        )
        state = Path(folder, "devices", f"slow-{number}")
        loop.start_client_internal(
            state_factory=NodeStateFactory(objectstore_factory=ObjectStoreFactory()),
            server_address=f"127.0.0.1:{port}",
            node_config={"client-id": number, "data": data, "state-dir": str(state)},
            root_certificates=Path(certificate).read_bytes(),
            authentication_keys=(key, key.public_key()),
        )

    threads = [threading.Thread(target=run, args=(number,)) for number in range(int(count))]
    for thread in threads:
        thread.start()
    for thread in threads:  # when the main thread has ended, no pool of threads works any more
        thread.join()


if __name__ == "__main__":
    main()
