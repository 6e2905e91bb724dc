"""A run on devices that are killed at random, for an hour: is a round lost, does memory grow?

    python -m benchmarks.soak [--minutes 60] [--devices 6] [--life 360] [--pause 10] [--seed 0]

Each device lives for `--life` seconds on average; then it is killed with all that it has started
(SIGKILL), like in a power cut. Half a minute later it is started again, and again if it has ended,
as a service manager does. A device takes `--pause` seconds more for each message, so that it is
often killed in the middle of a round, and the machine has little to do. Printed are the rounds,
those without any answer, the failures, and the memory (PSS) of the processes in the first and in
the last quarter of the time, with the slope of a line through all of it.
"""

import os
import random
import sys
import time
from collections import Counter, defaultdict
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil

from benchmarks.common import given, in_folder, write_images
from benchmarks.device_costs import RUN, check_system, pss
from deploy.deployment import Deployment
from fedapps.core.errors import RunError
from fedapps.launcher.outcome import LaunchResult
from fedapps.report.directory import lines

RESTART = 30.0  # seconds until a device is started again, as in deploy/systemd
SERVERS = ("superlink", "proxy")
LOOK = 10.0  # seconds between two looks at the memory
SLEEPY = """
import os, time
from flwr.clientapp import ClientApp

def slow(app, message, context):
    time.sleep(float(os.environ["PAUSE"]))
    return answer(app, message, context)

answer, ClientApp.__call__ = ClientApp.__call__, slow
"""
Memory = dict[str, list[tuple[float, float]]]  # by who: seconds since the start, and MB


class Fleet:
    """The devices, and who starts them again."""

    def __init__(self, deployment: Deployment, count: int, life: float, pause: int, seed: int):
        self.deployment, self.life, self.draws = deployment, life, random.Random(seed)
        self.names = [f"device-{number}" for number in range(count)]
        self.kills = 0
        self._start = dict.fromkeys(self.names, 0.0)  # when to start those that do not run
        self._end = {name: time.monotonic() + self._lifetime() for name in self.names}
        folder = deployment.folder / "sleepy"
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(SLEEPY)
        path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
        self._env = {"PYTHONPATH": path, "PAUSE": str(pause)}
        for name in self.names:
            write_images(deployment.folder / f"{name}.npz", np.arange(40) % 2, 16)
        deployment.register(*self.names)

    def tend(self) -> None:
        """Kill whose time has come; start who has ended for a while."""
        now = time.monotonic()
        for number, name in enumerate(self.names):
            process = self.deployment.processes.get(name)
            if process and process.poll() is None:
                if now > self._end[name]:
                    self.deployment.kill(name)
                    self.kills += 1
                    self._end[name] = now + RESTART + self._lifetime()
                    self._start[name] = now + RESTART
            elif process:  # it has ended by itself
                del self.deployment.processes[name]
                self._start[name] = now + RESTART
            elif now > self._start[name]:
                data = self.deployment.folder / f"{name}.npz"
                node_config = f'client-id={number} data="{data}"'
                self.deployment.supernode(name, node_config, 0, **self._env)

    def _lifetime(self) -> float:
        return self.draws.expovariate(1 / self.life)


def main() -> int:
    """Measure and print; return the exit status."""
    o = given(__doc__, minutes=60.0, devices=6, life=360.0, pause=10, seed=0)

    def measure(folder: Path) -> int:
        check_system()
        with Deployment(folder) as deployment:
            fleet = Fleet(deployment, o.devices, o.life, o.pause, o.seed)
            memory = soak(deployment, fleet, 60 * o.minutes)
        return int(show(folder / "soak", fleet.kills, memory) > 0)

    return in_folder(measure)


def soak(deployment: Deployment, fleet: Fleet, seconds: float) -> Memory:
    """Let a run go on for so many seconds from its first round on; return what memory it took."""
    memory: Memory = defaultdict(list)
    place = f'runs-dir="{deployment.folder}" run-name="soak" round-timeout=120.0 evaluate-every=5'
    number = f"num-clients={len(fleet.names)} min-available=1 num-rounds={int(seconds) + 10}"
    table, start = deployment.folder / "soak" / "rounds.csv", 0.0
    with ThreadPoolExecutor(1) as background:
        run = background.submit(deployment.run, RUN, f"{number} {place}", echo=lambda line: None)
        while not run.done() and (not start or time.monotonic() < start + seconds):
            fleet.tend()
            if not start and table.exists() and table.read_text().count("\n") > 1:
                start = next_look = time.monotonic()
            if start and time.monotonic() >= next_look:
                next_look += LOOK
                for name, megabytes in used(deployment).items():
                    memory[name].append((time.monotonic() - start, megabytes))
            time.sleep(1.0)
        stop(deployment, run)
    return memory


def used(deployment: Deployment) -> dict[str, float]:
    """Return the PSS of the server's processes, and the mean of the devices that run, in MB."""
    memory, devices = defaultdict[str, float](float), list[float]()
    for name, process in deployment.processes.items():
        with suppress(psutil.NoSuchProcess):  # it has ended just now
            first = psutil.Process(process.pid)
            for one in [first, *first.children(recursive=True)]:
                app = any("flwr-serverapp" in word for word in one.cmdline())
                memory["ServerApp" if app else name] += pss(one.pid)
        if name not in SERVERS and (found := memory.pop(name, 0.0)):
            devices.append(found)
    return memory | ({"a device": sum(devices) / len(devices)} if devices else {})


def stop(deployment: Deployment, run: "Future[LaunchResult]") -> None:
    """Stop the run; raises `RunError` if it has ended by itself."""
    if run.done():
        raise RunError(f"the run has ended: {run.result().error}")
    deployment.stop_run()


def show(folder: Path, kills: int, memory: Memory) -> int:
    """Print what has happened; return the number of rounds without any answer."""
    rounds, events = lines(folder / "rounds.csv"), lines(folder / "events.csv")
    causes = Counter(row["detail"] for row in events if row["kind"] == "failure")
    lost = sum(int(row["failures"]) >= int(row["clients"]) for row in rounds)
    longest = max(float(row["seconds"]) for row in rounds)
    print(f"{len(rounds)} rounds, {lost} without any answer; the longest took {longest:.0f} s")
    print(f"{kills} kills, {sum(causes.values())} failures")
    for cause, times in causes.most_common():
        print(f"  {times:4} x {cause}")
    for name, looks in memory.items():
        times, values = np.array(looks).T
        first, last = (np.median(part) for part in (np.array_split(values, 4)[i] for i in (0, -1)))
        slope = np.polyfit(times / 3600, values, 1)[0]
        print(f"  {name:10} {first:7.1f} MB, at the end {last:7.1f} MB: {slope:+7.1f} MB an hour")
    return lost


if __name__ == "__main__":
    sys.exit(main())
