"""Round time over real SuperNodes with next to no work, beside an app that does nothing at all.

    python -m benchmarks.supernodes [--rounds 20] [--nodes 2]
    python -m benchmarks.supernodes --devices 12 --slow 30 [--rounds 20]

With `--devices` or `--slow`, it measures what devices cost (`device_costs.py`), with our SuperLink
and with Flower's: so many devices with our SuperNode, and with Flower's, and so many simulated ones
that take two seconds for each message (`slow_devices.py`).

Otherwise, it prints the median seconds of a round (and the first and third quartile) of the empty
app on Flower's own SuperNodes and SuperLink and on ours, where only its ServerApp still waits as
Flower does; then, on ours, of fedapps with training alone, one message a round as
the empty app, and with an evaluation each round, two messages. The first round, in which SuperNodes
install the app, does not count, nor does the last one with training alone, which always evaluates.
"""

import re
import statistics
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from benchmarks import device_costs
from benchmarks.common import EMPTY, completed, given, in_folder, seconds_of, write_images
from deploy.deployment import SUPERLINK, SUPERNODE, Deployment

FLOWERS = ("flower-superlink",)
SLOW = 2.0  # seconds for a message
SECONDS = re.compile(r"empty-app round=\d+ .*seconds=([\d.]+)")
RUN = (
    'strategy="fedper" fraction-train=1.0 local-epochs=1 batch-size=8 finetune-epochs=0 threads=1 '
    'device="cpu" partitioner="iid" min-samples=2 '
)


def main() -> int:
    """Measure and print; return the exit status."""
    options = given(__doc__, rounds=20, nodes=2, devices=0, slow=0)
    if options.rounds < 3:
        print(f"error: --rounds {options.rounds}: must be at least 3, for quartiles")
        return 2
    if options.devices or options.slow:
        costly = options.rounds, options.devices, options.slow
        return in_folder(lambda folder: show_costs(folder, *costly))
    return in_folder(lambda folder: measure(folder, options.rounds + 1, options.nodes))


def measure(folder: Path, rounds: int, nodes: int) -> None:
    """Run the apps one after the other."""
    plain = Deployment(folder / "flower", program=("flower-supernode",), server=FLOWERS)
    with deployed(plain, nodes, FLWR_SUPEREXEC_TASK_POLL_INTERVAL="1.0"):
        show("empty app on Flower's SuperNodes", empty(plain, rounds))
    own = Deployment(folder / "own")
    with deployed(own, nodes):
        show("empty app on our SuperNodes", empty(own, rounds))
        for name, every in (("training alone", 0), ("training and evaluation", 1)):
            show(f"fedapps, {name}", ours(own, folder, rounds, nodes, every))


def show_costs(folder: Path, rounds: int, devices: int, slow: int) -> None:
    """Measure what devices cost."""
    if devices:
        for name, program, server in (
            ("ours", SUPERNODE, SUPERLINK),
            ("ours-flower-superlink", SUPERNODE, FLOWERS),
            ("flower-supernode-flower-superlink", ("flower-supernode",), FLOWERS),
        ):
            with Deployment(folder / name, program=program, server=server) as deployment:
                costs = device_costs.measure(deployment, devices, rounds)
            costs.show(f"{devices} devices, {name}")
    if slow:
        for name, server in (("ours", SUPERLINK), ("flower-superlink", FLOWERS)):
            with Deployment(folder / f"slow-{name}", server=server) as deployment:
                costs = device_costs.measure_slow(deployment, slow, rounds, SLOW)
            costs.show(f"{slow} devices that take {SLOW:g} s for a message, simulated, {name}")


@contextmanager
def deployed(deployment: Deployment, nodes: int, **env: str) -> Iterator[None]:
    """Start a deployment with so many SuperNodes without data."""
    with deployment:
        names = [f"node-{number}" for number in range(nodes)]
        deployment.register(*names)
        for name in names:
            deployment.supernode(name, **env)
        yield


def empty(deployment: Deployment, rounds: int) -> list[float]:
    """Return the seconds of each round of the empty app."""
    result = deployment.run(f"num-rounds={rounds}", app=EMPTY, echo=lambda line: None)
    return [float(match[1]) for line in completed(result).lines if (match := SECONDS.search(line))]


def ours(deployment: Deployment, folder: Path, rounds: int, nodes: int, every: int) -> list[float]:
    """Return the seconds of each round of ours: a batch for each of as many clients as nodes.

    The last round always evaluates: with `every` = 0 there is one more, which is left out.
    """
    data = write_images(folder / "data.npz", np.arange(16 * nodes) % 2, 16 * nodes)
    name, played = f"every-{every}", rounds if every else rounds + 1
    run = f"num-rounds={played} num-clients={nodes} min-available={nodes} evaluate-every={every} "
    place = f'dataset="{data}" runs-dir="{folder}" run-name="{name}" split="official"'
    result = deployment.run(RUN + run + place, echo=lambda line: None)
    return seconds_of(result, folder / name)[:rounds]


def show(name: str, seconds: list[float]) -> None:
    """Print the quartiles of all rounds but the first."""
    first, median, third = statistics.quantiles(seconds[1:], n=4)
    print(
        f"{name:36} {median:6.2f} s ({first:.2f} to {third:.2f}), {len(seconds) - 1} rounds",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
