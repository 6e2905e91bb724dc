"""Whether virtual time agrees with slow devices: the round times of throttled SuperNodes.

    python -m benchmarks.throttled [--rounds 25] [--samples 2400]

Starts a SuperLink and six SuperNodes with data of their own, as `deploy.local` does, but without a
proxy. Each SuperNode, with all that it starts, may run only for a share of every two seconds: for
the rest it is stopped with SIGSTOP. (With a tenth of a second, a device with 20 % was faster than
that on a busy machine.) The devices also hold different numbers of
samples. Each round asks one client, so the seconds of the round are those of that device. The run
itself knows the shares by its file of devices only, as `macs`. Prints, for each device, the median
of the seconds that passed and of the virtual ones, and Spearman's rank correlation of the two over
the devices. Bandwidth is not throttled: the model is small, and the file says that the network is
fast. The first round, before which nothing is throttled, does not count, nor does the last one,
which also evaluates.
"""

import statistics
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import psutil
from scipy import stats

from benchmarks.common import completed, given, in_folder, write_images
from deploy.deployment import Deployment
from fedapps.core.draws import sample_clients
from fedapps.report.directory import lines

SHARES = (1.0, 0.3, 0.6, 0.2, 0.8, 0.45)  # of the time in which a device may run
SAMPLES = (1.0, 0.5, 2.0, 1.0, 0.25, 3.0)  # of a device, times --samples
PERIOD = 2.0  # seconds
SPEED = 1e9  # MAC/s of a device that is never stopped; only ratios matter here
RUN = (
    'strategy="fedavg" dataset="device" model="cnn" input-shape="1,8,8" num-classes=2 seed=0 '
    "fraction-train=0.01 batch-size=10 evaluate-every=0 finetune-epochs=0 checkpoint-every=0 "
    'threads=1 device="cpu" round-timeout=900.0 join-timeout=900.0 '
)


class Direct(Deployment):
    """A deployment whose devices reach the SuperLink itself."""

    def start_proxy(self, name: str, certificates: Path) -> int:
        """Return the SuperLink's own port."""
        return self.port


def main() -> int:
    """Measure and print; return the exit status."""
    options = given(__doc__, rounds=25, samples=2400, epochs=5)
    sizes = options.rounds, options.samples, options.epochs
    return in_folder(lambda folder: measure(folder, *sizes))


def measure(folder: Path, rounds: int, samples: int, epochs: int) -> None:
    """Run once on throttled devices; print what the two clocks say."""
    count = len(SHARES)
    speeds = folder / "devices.toml"
    speeds.write_text(
        "".join(
            f'[[device]]\nname = "d{client}"\nclients = "{client}"\nmacs = {SPEED * share}\n'
            "down = 1e8\nup = 1e8\n"
            for client, share in enumerate(SHARES)
        )
    )
    with Direct(folder / "deployment") as deployment:
        deployment.register(*(f"device-{client}" for client in range(count)))
        for client in range(count):
            size = int(samples * SAMPLES[client])
            data = write_images(folder / f"{client}.npz", np.arange(size) % 2, 20)
            deployment.supernode(f"device-{client}", f'client-id={client} data="{data}"')
        for client in range(count):
            deployment.joined(f"device-{client}")
        pids = {deployment.processes[f"device-{c}"].pid: share for c, share in enumerate(SHARES)}
        config = (
            f"{RUN} num-clients={count} min-available={count} num-rounds={rounds} "
            f'local-epochs={epochs} devices="{speeds}" runs-dir="{folder}" run-name="run"'
        )
        table = folder / "run" / "rounds.csv"
        with throttled(pids, table):
            completed(deployment.run(config))
    show(lines(table), count)


@contextmanager
def throttled(shares: Mapping[int, float], table: Path) -> Iterator[None]:
    """Let processes, and what they start, run only for a share of the time after the first round.

    `table` is the run's rounds.csv.
    """
    done = threading.Event()
    threads = [
        threading.Thread(target=_throttle, args=(*pair, table, done)) for pair in shares.items()
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        done.set()
        for thread in threads:
            thread.join()


def _throttle(pid: int, share: float, table: Path, done: threading.Event) -> None:
    own = psutil.Process(pid)
    while not (done.is_set() or (table.exists() and table.read_text().count("\n") > 1)):
        time.sleep(0.2)
    while share < 1 and not done.is_set():
        found: list[psutil.Process] = []
        with suppress(psutil.Error):
            found = [own, *own.children(recursive=True)]
            for process in found:
                with suppress(psutil.Error):
                    process.suspend()
        time.sleep(PERIOD * (1 - share))
        for process in found:
            with suppress(psutil.Error):
                process.resume()
        time.sleep(PERIOD * share)


def show(rows: list[dict[str, str]], count: int) -> None:
    """Print the medians of each device and their rank correlation."""
    real, virtual, before = defaultdict(list), defaultdict(list), 0.0
    for row in rows[:-1]:
        (client,) = sample_clients(0, int(row["round"]), count, 0.01)
        now = float(row["virtual_seconds"])
        if row is rows[0]:
            before = now
            continue
        real[client].append(float(row["seconds"]))
        virtual[client].append(now - before)
        before = now
    pairs = []
    for client in sorted(real):
        pairs.append((statistics.median(real[client]), statistics.median(virtual[client])))
        print(
            f"device {client}: runs {SHARES[client]:4.0%} of the time, {len(real[client])} rounds, "
            f"{pairs[-1][0]:7.2f} s, virtual {pairs[-1][1]:7.2f} s"
        )
    correlation = stats.spearmanr(pairs).statistic
    print(f"rank correlation over {len(pairs)} devices: {correlation:.3f}")


if __name__ == "__main__":
    sys.exit(main())
