"""What devices cost: time until they have joined, processor time and memory for a message.

For `benchmarks/supernodes.py`. Each process of a deployment is the leader of a session, so what it
starts can be found by the session. Processor time is looked up ten times a second, so a process
that has ended since counts with what it had used by then. Memory is the proportional share (PSS)
of all processes of a device.
"""

import os
import re
import statistics
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
import psutil

from benchmarks.common import ROOT, completed, write_images
from deploy.deployment import Deployment
from fedapps.core.errors import RunError
from fedapps.report.directory import lines

ROUND = re.compile(r"\bround +(\d+)/")
RUN = (
    'strategy="fedper" dataset="device" model="lenet5-1" input-shape="1,8,8" num-classes=2 '
    "fraction-train=1.0 local-epochs=1 batch-size=8 finetune-epochs=0 threads=1 "
    'device="cpu" round-timeout=600.0 join-timeout=600.0 '
)


class Meter(threading.Thread):
    """Looks up what processes use; `used` is the processor time in seconds by session and pid."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.used: dict[tuple[int, int], float] = {}
        self.watched = 0  # the session whose memory is looked up, too
        self.memory: list[float] = []  # of that session, in MB
        self.ended = threading.Event()

    def run(self) -> None:
        """Look ten times a second, and every tenth time at the memory."""
        number = 0
        while not self.ended.wait(0.1):
            self.look()
            number += 1
            if self.watched and number % 10 == 0:
                self.memory.append(self.megabytes(self.watched))

    def look(self) -> None:
        """Update `used`."""
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):  # it has ended just now
                times = process.cpu_times()
                self.used[os.getsid(process.pid), process.pid] = times.user + times.system

    def seconds(self, sessions: Iterable[int]) -> float:
        """Return the processor time of sessions so far."""
        self.look()
        wanted = {*sessions}
        return sum(used for (session, _), used in [*self.used.items()] if session in wanted)

    def megabytes(self, session: int) -> float:
        """Return the PSS of the processes of a session."""
        return sum(pss(pid) for key, pid in [*self.used] if key == session)


def check_system() -> None:
    """Raise `RunError`, before anything is started, where no system tells the PSS."""
    if sys.platform != "linux":
        raise RunError("this needs Linux, which alone tells the memory (PSS) of a device")


def pss(pid: int) -> float:
    """Return the proportional share of memory of a process in MB; 0 if it is gone."""
    with suppress(psutil.Error):
        return float(psutil.Process(pid).memory_full_info().pss) / 1e6
    return 0.0


@dataclass
class Costs:
    """What was measured; seconds, and MB."""

    joined: float = 0.0  # until the SuperLink has let in all devices
    greeted: float = 0.0  # from the start of the run to the end of its first round
    rounds: list[float] = field(default_factory=list)
    evaluated: list[float] = field(default_factory=list)  # rounds with an evaluation after them
    message: float = 0.0  # processor time of a device
    server: float = 0.0  # processor time of SuperLink, ServerApp and proxy in a round
    idle: float = 0.0
    between: float = 0.0
    most: float = 0.0

    def show(self, name: str) -> None:
        """Print all, in one line each."""
        print(f"{name}: load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
        print(f"  all have joined after          {self.joined:7.1f} s")
        print(f"  start of the run to round 1    {self.greeted:7.1f} s")
        for name, seconds in (("a round", self.rounds), ("with an evaluation", self.evaluated)):
            if seconds:
                first, median, third = statistics.quantiles(seconds, n=4)
                print(f"  {name:30} {median:7.2f} s ({first:.2f} to {third:.2f})")
        print(f"  processor time of a message    {self.message:7.3f} s")
        print(f"  of the server in a round       {self.server:7.2f} s")
        if self.most:
            print(f"  memory idle, in a run, at most {self.idle:.0f}, {self.between:.0f}, "
                  f"{self.most:.0f} MB")  # fmt: skip


def measure(deployment: Deployment, count: int, rounds: int) -> Costs:
    """Start devices with next to no work, and let them train and be scored for some rounds."""
    costs, meter, folder = Costs(), Meter(), deployment.folder
    names = [f"device-{number}" for number in range(count)]
    for name in names:
        write_images(folder / f"{name}.npz", np.arange(40) % 2, 16)
    deployment.register(*names)
    begin = time.monotonic()
    for number, name in enumerate(names):
        deployment.supernode(name, f'client-id={number} data="{folder}/{name}.npz"')
    for name in names:
        deployment.joined(name)
    costs.joined = time.monotonic() - begin
    meter.start()
    time.sleep(5.0)  # until they only wait
    meter.look()
    meter.watched = deployment.processes[names[0]].pid
    costs.idle = meter.megabytes(meter.watched)
    follow(deployment, costs, meter, count, rounds, evaluate_every=2)
    costs.between, costs.most = min(meter.memory), max(meter.memory)
    meter.ended.set()
    return costs


def measure_slow(deployment: Deployment, count: int, rounds: int, seconds: float) -> Costs:
    """Do the same with devices that take so many seconds for each message, and no processor."""
    costs, meter, folder = Costs(), Meter(), deployment.folder
    data = write_images(folder / "slow.npz", np.arange(40) % 2, 16)
    deployment.register(*(f"slow-{number}" for number in range(count)))
    begin = time.monotonic()
    words = (
        deployment.proxy_port,
        deployment.certificates / "ca.crt",
        folder,
        data,
        count,
        seconds,
    )
    command = [sys.executable, "-m", "benchmarks.slow_devices", *map(str, words)]
    deployment.start("slow", command, PYTHONPATH=str(ROOT))
    while deployment.log("slow").read_text().count("SuperNode ID") < count:
        if deployment.processes["slow"].poll() is not None:
            raise RunError(f"the slow devices did not start: {deployment.log('slow')}")
        time.sleep(0.1)
    costs.joined = time.monotonic() - begin
    meter.start()
    follow(deployment, costs, meter, count, rounds, evaluate_every=0)
    meter.ended.set()
    return costs


def follow(
    deployment: Deployment, costs: Costs, meter: Meter, count: int, rounds: int, evaluate_every: int
) -> None:
    """Make a run; measure from the end of its first round to that of the last but one.

    With `evaluate_every` = 2, the number of rounds has to be even.
    """
    servers = [deployment.processes[name].pid for name in ("superlink", "proxy")]
    devices = {process.pid for process in deployment.processes.values()} - {*servers}
    marks: list[tuple[float, float, float]] = []

    def echo(line: str) -> None:
        if ROUND.search(line):
            marks.append((time.monotonic(), meter.seconds(devices), meter.seconds(servers)))

    place = f'runs-dir="{deployment.folder}" run-name="measured" evaluate-every={evaluate_every}'
    number = f"num-clients={count} min-available={count} num-rounds={rounds + 2}"
    begin = time.monotonic()
    completed(deployment.run(f"{RUN} {number} {place}", echo=echo))
    rows = lines(deployment.folder / "measured" / "rounds.csv")[1:-1]
    seconds = [float(row["seconds"]) for row in rows]
    costs.rounds = seconds
    if evaluate_every:  # the first of these is the second round
        costs.evaluated, costs.rounds = seconds[::2], seconds[1::2]
    costs.greeted = marks[0][0] - begin
    messages = count * (len(costs.rounds) + 2 * len(costs.evaluated))
    costs.message = (marks[-2][1] - marks[0][1]) / messages
    costs.server = (marks[-2][2] - marks[0][2]) / rounds
