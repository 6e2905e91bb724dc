"""FedAvg with Flower as its quickstart has it: a SuperNode for each client, on Ray; a DataLoader.

A client makes model, data set and loader for each message, and converts image by image.
"""

import sys

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch.utils.data import DataLoader

from benchmarks.peers.task import BATCH, CLIENTS, COHORT, LR, build, did, shares, stamp, tensor


def apps(path: str, rounds: int) -> tuple[ServerApp, ClientApp]:
    """Return both apps."""
    client, server, steps = ClientApp(), ServerApp(), []

    @client.train()
    def train(message: Message, context: Context) -> Message:
        model, done = build(), 0
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        x, y = shares(path)[int(context.node_config["partition-id"])]
        samples = [*zip(map(tensor, x), y.tolist(), strict=True)]
        optimizer = torch.optim.SGD(model.parameters(), lr=LR)
        model.train()
        for images, labels in DataLoader(samples, batch_size=BATCH, shuffle=True):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            done += 1
        counts = MetricRecord({"num-examples": len(y), "steps": done})
        content = {"arrays": ArrayRecord(model.state_dict()), "metrics": counts}
        return Message(content=RecordDict(content), reply_to=message)

    def count(records: list[RecordDict], weighted_by: str) -> MetricRecord:
        steps.append(sum(record["metrics"]["steps"] for record in records))
        return MetricRecord({})

    def over(round_: int, arrays: ArrayRecord) -> None:
        if round_:
            stamp(round_)

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = FedAvg(COHORT / CLIENTS, 0.0, train_metrics_aggr_fn=count)
        model = build()
        strategy.start(grid, ArrayRecord(model.state_dict()), rounds, evaluate_fn=over)
        did(model, sum(steps) / rounds)

    return server, client


if __name__ == "__main__":
    one = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(*apps(sys.argv[1], int(sys.argv[2])), CLIENTS, backend_config=one)
