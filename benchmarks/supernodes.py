"""What devices cost, with our SuperNode and SuperLink and with Flower's, with next to no work.

    python -m benchmarks.supernodes [--devices 12] [--slow 30] [--rounds 20]

So many devices run with both of ours, with our SuperNode alone, and with both of Flower's; and so
many simulated ones that take two seconds for each message (`slow_devices.py`), with our SuperLink
and with Flower's. `device_costs.py` says what is measured.
"""

import sys
from pathlib import Path

from benchmarks.common import given, in_folder
from benchmarks.device_costs import check_system, measure, measure_slow
from deploy.deployment import SUPERLINK, SUPERNODE, Deployment

FLOWERS = ("flower-superlink",)
SLOW = 2.0  # seconds for a message


def main() -> int:
    """Measure and print; return the exit status."""
    options = given(__doc__, rounds=20, devices=12, slow=30)
    if options.rounds < 4 or options.rounds % 2:
        print(f"error: --rounds {options.rounds}: must be even, and at least 4")
        return 2
    return in_folder(lambda folder: show(folder, options.rounds, options.devices, options.slow))


def show(folder: Path, rounds: int, devices: int, slow: int) -> None:
    """Measure what devices cost; of a kind of which there are 0, nothing."""
    check_system()
    if devices:
        for name, program, server in (
            ("ours", SUPERNODE, SUPERLINK),
            ("ours-flower-superlink", SUPERNODE, FLOWERS),
            ("flower-supernode-flower-superlink", ("flower-supernode",), FLOWERS),
        ):
            with Deployment(folder / name, program=program, server=server) as deployment:
                costs = measure(deployment, devices, rounds)
            costs.show(f"{devices} devices, {name}")
    if slow:
        for name, server in (("ours", SUPERLINK), ("flower-superlink", FLOWERS)):
            with Deployment(folder / f"slow-{name}", server=server) as deployment:
                costs = measure_slow(deployment, slow, rounds, SLOW)
            costs.show(f"{slow} devices that take {SLOW:g} s for a message, simulated, {name}")


if __name__ == "__main__":
    sys.exit(main())
