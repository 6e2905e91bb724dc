"""Train in one process, which starts within seconds and is easy to debug.

The same seed gives the same numbers as `fedapps run`, which is faster on a machine with several
cores. The last line that is printed is the run directory. Ctrl-C ends the run; the results of the
finished rounds stay in the run directory.

    fedapps serial                                       # FedBABU on handwritten digits
    fedapps serial -c 'strategy=fedper num-rounds=10'
    fedapps serial -c experiments/configs/fedrep.toml -c seed=1
"""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

from fedapps.core import log
from fedapps.core.commands import execute
from fedapps.core.errors import RunError
from fedapps.core.options import Flat, add_resume, add_run_config, chosen, parse_option
from fedapps.core.paths import expanded
from fedapps.device.node_config import EXAMPLE, KEYS, NodeConfig

# The engine is imported only when a run begins, because its libraries take seconds to load.

DEVICE = """'client-id=0 data="/path/0.npz" state-dir="/path/0"'"""


def run_serial(
    run_config: Flat,
    num_supernodes: int = 1,
    node_configs: Sequence[Mapping[str, bool | int | float | str]] = (),
    keep_going: bool = True,
    plots: bool = True,
    workers: int = 1,
) -> Path:
    """Run a full run-config in this process; return the run directory. Raises `RunError`.

    Each of `node_configs` makes a SuperNode that is a device. With `keep_going`, the run goes on
    without clients that fail, as on other engines; otherwise a client's error is raised as
    `ClientError`. `plots` take a second or two, so many short runs may leave them out. More than
    one of the `workers` are forks of this process, which train the clients at the same time.
    """
    from fedapps.core import config

    if num_supernodes < 1:
        raise RunError(f"--num-supernodes {num_supernodes}: must be at least 1")
    settings = config.read(run_config)
    check_workers(workers, settings.threads, settings.device, bool(node_configs))
    if node_configs and not settings.on_devices:
        raise RunError('--node-config adds a device: it needs dataset = "device"')
    if node_configs and num_supernodes not in (1, len(node_configs)):
        raise RunError(f"--num-supernodes {num_supernodes}: --node-config adds each; leave it out")
    num_supernodes = len(node_configs) or max(num_supernodes, workers)  # one message for each
    wanted = settings.min_available
    if wanted > num_supernodes:  # the run would wait forever
        text = f"must be at most --num-supernodes {num_supernodes}"
        raise RunError(f"min-available = {wanted}: {text}")

    # imported after the checks, because loading the engine takes seconds
    from flwr.app import Context, RecordDict

    from fedapps import client_app, server_app
    from fedapps.engine.failed_clients import raising
    from fedapps.wire.serial_grid import DeviceGrid, SerialGrid
    from fedapps.wire.worker_grid import WorkerGrid

    if node_configs:
        grid: SerialGrid = DeviceGrid(client_app.app, run_config, node_configs)
    elif workers > 1:
        grid = WorkerGrid(client_app.app, run_config, num_supernodes, workers, keep_going)
    else:
        grid = SerialGrid(client_app.app, run_config, num_supernodes)
    context = Context(
        run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config=run_config
    )
    with raising(not keep_going), closing(grid):
        return server_app.run(grid, context, plots)


def idle_workers(run_config: Flat, runs: int) -> int:
    """Return how many workers a run can have, if `runs` run at once, so that no core is idle.

    It is 1 where more are impossible or would change the last digits of the results.
    """
    from fedapps.core import cgroups, config

    if sys.platform != "linux":
        return 1
    settings, workers = config.read(run_config), max(1, cgroups.cores() // runs)
    if settings.presum or settings.group:  # the clients of a worker are summed, or work, together
        return 1
    try:
        check_workers(workers, settings.threads, settings.device, False)
    except RunError:
        return 1
    return workers


def check_workers(workers: int, threads: int, device: str, devices: bool) -> None:
    """Raise `RunError` if a run cannot have this number of worker processes."""
    what = f"--workers {workers}: "
    if workers < 1:
        raise RunError(f"{what}must be at least 1")
    if workers == 1:
        return
    if sys.platform != "linux":
        raise RunError(f"{what}more than 1 need Linux; use fedapps run")
    if devices:
        raise RunError(f"{what}devices (--node-config) run in one process; use 1")
    if threads > 1:
        raise RunError(f"{what}threads = {threads}: a worker has one thread; use 1")
    from fedapps.training.torch_device import GPU_HINT, pick_torch_device  # loads torch

    if pick_torch_device(device).type != "cpu":
        raise RunError(f'{what}they cannot share a GPU; use device="cpu", or {GPU_HINT}')


def prepare_forks(run_config: Flat, workers: int) -> None:
    """Hide the GPUs from this process if its workers train on the CPU; call it before imports.

    Where PyTorch sees one, no process that is forked after a first backward pass can do another.
    gRPC would tell of each fork, none of which uses it.
    """
    if workers > 1:
        os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
        if run_config["device"] == "cpu":
            os.environ["CUDA_VISIBLE_DEVICES"] = ""


def absolute(run_config: Flat) -> Flat:
    """Make relative folders absolute, from the directory in which the user typed them."""
    folders = {
        key: os.path.abspath(expanded(str(run_config[key]), key))
        for key in ("runs-dir", "data-root")
    }
    return run_config | folders


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `fedapps serial`."""
    add_run_config(parser)
    add_resume(parser)
    parser.add_argument(
        "--num-supernodes",
        type=int,
        default=1,
        metavar="N",
        help="number of SuperNodes that share the clients; they work one after the other [1]",
    )
    parser.add_argument(
        "--workers",
        type=int,
        default=1,
        metavar="N",
        help="number of processes that train the clients, at best one for each core of the CPU [1]",
    )
    parser.add_argument(
        "--node-config",
        action="append",
        default=[],
        metavar="KEYS",
        help=f"add a device with its own data: {DEVICE}; give this option once for each device",
    )
    parser.add_argument(
        "--keep-going",
        action="store_true",
        help="go on without a client that fails, as the other engines do; without this option, a "
        "failing client ends the run with its traceback",
    )


def run(options: argparse.Namespace) -> int:
    """Run as the options say and print the run directory; return the exit status.

    Raises `RunError`.
    """
    try:
        from fedapps.core import config

        nodes = devices(options.node_config)
        run_config = absolute(config.parse(chosen(options)))
        prepare_forks(run_config, options.workers)
        nodes_and_more = (options.num_supernodes, nodes, options.keep_going)
        folder = run_serial(run_config, *nodes_and_more, workers=options.workers)
        with log.expendable():
            print(folder)
    except KeyboardInterrupt as stop:  # its text says what has been written
        raise KeyboardInterrupt(str(stop) or "interrupted, nothing was written") from None
    return 0


def devices(node_configs: Sequence[str]) -> list[Flat]:
    """Return what the options --node-config say.

    Raises `RunError` for one without keys of a device: the run would silently be a simulation.
    """
    nodes = [parse_option(text, "--node-config") for text in node_configs]
    for node in nodes:
        if NodeConfig.of(node) is None:
            keys = ", ".join(node) or '""'
            raise RunError(f"--node-config {keys}: has none of {', '.join(KEYS)}; give {EXAMPLE}")
    return nodes


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line, run, and return the exit status."""
    return execute("python -m fedapps.serial", __doc__, add_arguments, run, arguments)


if __name__ == "__main__":
    sys.exit(main())
