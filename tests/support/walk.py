"""Everything that a device does in a round, in a process that then says what it has loaded.

    python tests/support/walk.py RUN_CONFIG NODE_CONFIG  # JSON

The messages are those of the server, which is not there. Nothing of the tests is imported, so that
the process loads what a device loads: the ClientApp first.
"""

import json
import sys

import torch
from torch import nn

from fedapps import client_app
from fedapps.cli import adopt, export, predict  # noqa: F401
from fedapps.core import config, flower, registry
from fedapps.device import answering, supernode, warm  # noqa: F401
from fedapps.device.device import Device, device_workspace
from fedapps.training.optimizers import OPTIMIZERS, optimizer
from fedapps.training.plan import Stage
from fedapps.wire.grid import StreamingGrid
from fedapps.wire.hello import pack_greeting, unpack_hello
from fedapps.wire.replies import unpack_reply
from fedapps.wire.requests import Request, RoundInfo, pack_requests
from fedapps.wire.serial_grid import DeviceGrid


def main(run_config, node_config):
    """Greet, train and evaluate, and step with each optimizer.

    Return the failures and what the client has told.
    """
    for name in ("flower-supernode", "flower-superexec", "flwr-clientapp"):
        flower.command(name)
    for name in registry.names():
        registry.client_class(name)
    run_config = config.defaults() | run_config
    settings = config.read(run_config)
    grid = StreamingGrid(DeviceGrid(client_app.app, run_config, [node_config]))
    hello = unpack_hello(next(grid.send_and_receive([pack_greeting(1)])))
    if hello.problem:
        return [hello.problem], {}
    space = device_workspace(settings, Device.of(node_config))
    sizes = {"train": hello.train, "test": hello.test, "validation": hello.validation}
    strategy = registry.strategy_class(settings.strategy)(space, None, {hello.client: sizes})
    info = RoundInfo("run", space.resident.fingerprint, run_id="1")
    failures, told = [], {}
    plans = {"train": strategy.plan, "evaluate": strategy.evaluation_plan}
    for kind, make in plans.items():
        plan = make(1, hello.client)
        request = Request(hello.client, plan, strategy.download(1, hello.client, plan))
        message = pack_requests([request], info, 1, kind, "1")
        (reply,) = grid.send_and_receive([message])
        updates, failed = unpack_reply([request], reply, space.layout, False, 1e6)
        failures += [failure.cause for failure in failed]
        told[kind] = updates[0].metrics if updates else {}
    for name in OPTIMIZERS:
        parameter = nn.Parameter(torch.ones(3))
        own = optimizer([parameter], Stage(layers=(), epochs=1, lr=0.1, optimizer=name))
        parameter.grad = torch.ones(3)
        own.step()
    return failures, told


if __name__ == "__main__":
    failures, told = main(*map(json.loads, sys.argv[1:]))
    print(json.dumps({"failures": failures, "told": told, "loaded": [*sys.modules]}))
