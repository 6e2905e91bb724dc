"""FedAvg with pfl-research, in its environment: one process, or several under torchrun.

Samples are tensors in memory from the start, and each client's batches are cached by pfl, which
does not shuffle them.
"""

import sys

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.internal.ops.selector import get_framework_module
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel

from benchmarks.peers.task import BATCH, CLIENTS, COHORT, LR, build, did, shares, stamp, tensor


class Net(torch.nn.Module):
    """The model with the methods that pfl calls; it counts its steps."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.steps = build(), 0

    def loss(self, x, y, eval=False):  # type: ignore[no-untyped-def]
        """Return the loss of a batch."""
        self.train()
        self.steps += 1
        return torch.nn.functional.cross_entropy(self.net(x), y)

    def metrics(self, x, y, eval=False):  # type: ignore[no-untyped-def]
        """Return no metrics, which would take time."""
        return {}


class Stamp(TrainingProcessCallback):
    """Tells in the first process when a round is over."""

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):  # type: ignore[no-untyped-def]
        """Print it."""
        if not get_framework_module().distributed.global_rank:
            stamp(central_iteration + 1)
        return False, Metrics()


def main() -> None:
    """Run FedAvg on the file, for so many rounds."""
    path, rounds = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(1)
    net = Net()
    model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), 1.0))
    users = [
        Dataset((tensor(x).contiguous(), torch.from_numpy(y)), user_id=str(number))
        for number, (x, y) in enumerate(shares(path))
    ]
    data = FederatedDataset(users.__getitem__, get_user_sampler("random", range(CLIENTS)))
    train = NNTrainHyperParams(
        local_num_epochs=1, local_learning_rate=LR, local_batch_size=BATCH, local_num_steps=None
    )
    sizes = NNAlgorithmParams(
        central_num_iterations=rounds,
        evaluation_frequency=rounds,
        train_cohort_size=COHORT,
        val_cohort_size=0,
    )
    backend = SimulatedBackend(data, data, [WeightByDatapoints()])
    evaluation = NNEvalHyperParams(local_batch_size=BATCH)
    FederatedAveraging().run(
        sizes, backend, model, train, evaluation, [Stamp()], send_metrics_to_platform=False
    )
    steps = torch.tensor(float(net.steps))
    distributed = get_framework_module().distributed
    if distributed.world_size > 1:
        torch.distributed.all_reduce(steps)
    if not distributed.global_rank:
        did(net, steps.item() / rounds)


if __name__ == "__main__":
    main()
