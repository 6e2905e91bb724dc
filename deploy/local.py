"""Try a deployment on one machine, with a real SuperLink, proxy and SuperNodes, TLS and keys.

This starts all processes, makes one run, and ends the processes:

    python -m deploy.local ~/trial --node-config 'client-id=0 data="/data/a.npz"' \\
        --node-config 'client-id=1 data="/data/b.npz"' --run-config 'strategy="fedper"
        dataset="device" num-clients=2 min-available=2 input-shape="1,8,8" num-classes=3'

The folder keeps certificates, keys, logs and the state of devices. Its path must not contain
spaces. Without a folder, a temporary folder is used, and deleted afterwards.
"""

import argparse
import contextlib
import signal
import sys
import tempfile
from pathlib import Path

from deploy.deployment import Deployment
from fedapps.core.errors import RunError
from fedapps.core.options import parse_option


def main() -> int:
    """Start a deployment, run the app once, end the deployment; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m deploy.local",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", nargs="?", type=Path, help="folder for keys, logs and state")
    parser.add_argument(
        "-c",
        "--run-config",
        action="append",
        default=["round-timeout=120.0"],
        metavar="KEYS|FILE",
        help="settings, as for flwr run; the default of round-timeout is 120 s here",
    )
    parser.add_argument(
        "--node-config",
        action="append",
        default=[],
        metavar="KEYS",
        help="add a device with its own data; give this option once for each device; without this "
        "option, there are two SuperNodes without data",
    )
    options = parser.parse_args()
    try:
        for text in options.node_config:
            parse_option(text, "--node-config")
        named = options.folder and contextlib.nullcontext(options.folder.expanduser())
        place = named or tempfile.TemporaryDirectory(prefix="fedapps-")
        with place as folder, Deployment(Path(folder)) as deployment:
            devices = {
                f"device-{number}": node_config
                for number, node_config in enumerate(options.node_config or ["", ""])
            }
            deployment.register(*devices)
            for name, node_config in devices.items():
                deployment.supernode(name, node_config)
            for name in devices:
                deployment.joined(name)
            result = deployment.run(*options.run_config)
    except (RunError, OSError) as error:
        print(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        print("stopped: the run ended with its SuperLink")
        return 128 + signal.SIGINT
    print(f"error: {result.error}" if result.error else "completed")
    return 0 if result.completed else 1


if __name__ == "__main__":
    sys.exit(main())
