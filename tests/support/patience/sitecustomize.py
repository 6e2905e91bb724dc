"""Gives Flower's processes the patience that a busy machine needs.

`flwr` asks for 0.4 s whether a local SuperLink is there, and starts another one if it has heard
nothing; a SuperLink has 15 s to start. Ray's node dies if its agents have not told their ports
after 15 s (ray issue 65983), and whoever started it waits 30 s. A process with this folder on its
PYTHONPATH waits ten minutes. Python imports a module of this name when it starts.
"""

import socket
import sys
import time
from pathlib import Path

PATIENCE = 600.0
AGENT = "runtime_env_agent_port"
DASHBOARD = ("dashboard_agent_listen_port", "metrics_agent_port", "metrics_export_port")


def wait_for_superlinks():
    """Let `flwr` wait for its SuperLink."""
    from flwr.cli import constant

    constant.CONTROL_API_PROBE_TIMEOUT = constant.LOCAL_SUPERLINK_STARTUP_TIMEOUT = PATIENCE


def wait_for_nodes():
    """Let a simulation wait for Ray's node; its agents' ports are told before these start.

    Without the packages of Ray's dashboard, which are no part of this project's, three have none:
    -1. What does not stand in the source of Ray are the variables of `RAY_ALONE` in conftest.py.
    """
    from ray._private import services
    from ray._private.node import Node
    from ray._private.utils import get_dashboard_dependency_error
    from ray._raylet import persist_port

    ask, start = services.get_node, Node.start_raylet

    def get_node(*arguments, **options):
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                return ask(*arguments, **options)
            except RuntimeError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.5)

    def start_raylet(node, *arguments, **options):
        node._ray_params.runtime_env_agent_port = free_port()
        ports = {AGENT: node._ray_params.runtime_env_agent_port}
        if get_dashboard_dependency_error():
            ports |= dict.fromkeys(DASHBOARD, -1)
        for name, port in ports.items():
            persist_port(node._session_dir, node._node_id, name, port)
        start(node, *arguments, **options)

    services.get_node, Node.start_raylet = get_node, start_raylet


def free_port():
    """Return a port that nobody has at the moment."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


ACTIONS = {"flwr": wait_for_superlinks, "flwr-simulation": wait_for_nodes}
for word in sys.orig_argv[:2]:
    ACTIONS.get(Path(word).name, lambda: None)()
