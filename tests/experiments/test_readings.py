"""Readings that need the model of a run, held to what PyTorch says of its stored layers."""

import pytest
import torch
from safetensors.torch import load_file

from experiments.papers import readings
from fedapps.core import config
from fedapps.core.errors import RunError
from fedapps.engine.finished import FinishedRun
from fedapps.report import directory
from fedapps.serial import run_serial

SMALL = 'strategy="fedavg" dataset="digits" partitioner="shards" num-clients=5 min-samples=2'
SMALL += " num-rounds=2 fraction-train=1.0 finetune-epochs=0 test-fraction=0.06 split=merged"
WEIGHTED = "accuracy_initial_weighted"


@pytest.mark.parametrize("model", ["mlp", "conv4"])
def test_mixed_batches_differ_from_the_clients_only_if_samples_depend_on_each_other(
    model, tmp_path
):
    """All test samples are one batch here, so any order gives what one call of the model gives."""
    own = config.parse([f'{SMALL} model="{model}" bn-stats="batch" runs-dir="{tmp_path}"'])
    folder = run_serial(own, plots=False)
    run = FinishedRun.open(folder)
    clients = [run.space.data.samples(client, "test") for client in range(5)]
    inputs, targets = (torch.cat(parts) for parts in zip(*clients, strict=True))
    assert len(targets) <= 128
    net = run.shared().eval()
    net.load_state_dict(load_file(folder / "model.safetensors"))
    with torch.no_grad():
        right = (net(inputs).argmax(1) == targets).double().mean()
    found = readings.figures(folder, own, [readings.MIXED])[readings.MIXED]
    assert found == pytest.approx(float(right), abs=1e-12)
    weighted = float(directory.summary(folder)[WEIGHTED])
    assert (found == pytest.approx(weighted, abs=1e-12)) == (model == "mlp")


@pytest.mark.parametrize("reads", ["best mixed batches", "mixed", "accuracy"])
def test_a_reading_that_does_not_exist_is_refused(reads):
    readings.check("mixed batches", {"accuracy_initial"})
    with pytest.raises(RunError, match="must be a column"):
        readings.check(reads, {"accuracy_initial"})
