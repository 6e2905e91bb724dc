"""Split learning with models of one's own, and with samples that are no images."""

import runpy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from tests.support import kinds

ONE_ROUND = "num-rounds=1 fraction-train=1.0 evaluate-every=0 lr=0.1 momentum=0.9"
BEGINS_WITH_RELU = """
from torch import nn

takes = "tables"

def make(inputs, outputs):
    behind = nn.Sequential(nn.ReLU(inplace={inplace}), nn.Linear(8, outputs.shape[-1]))
    return nn.Sequential(nn.Linear(inputs.size, 8), behind)
"""
OF_VOLUMES = """
from torch import nn

takes = "values"

def make(inputs, outputs):
    first = nn.Sequential(nn.Conv3d(inputs.shape[0], 4, 3, padding=1), nn.ReLU())
    pooled = nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten()
    second = nn.Sequential(nn.Conv3d(4, 4, 3, padding=1), nn.BatchNorm3d(4), *pooled)
    return nn.Sequential(first, second, nn.Linear(4, outputs.shape[-1]))
"""


@pytest.mark.parametrize(
    "method",
    [
        'strategy="fedfc"',
        'strategy="fedfc" fedfc.cuts="auto" fedfc.statistics="client"',  # one cut is possible
        'strategy="sflv1"',
        'strategy="sflv1" sflv1.sync="round"',
        'strategy="sflv2"',
        'strategy="splitlearning"',
    ],
)
def test_a_module_behind_the_cut_may_change_its_input(
    method, serial_run, tmp_path, read_model, untimed_rounds
):
    """Whether it does makes no difference, neither to the weights nor to what they cost."""
    models, rounds = [], []
    for inplace in (True, False):
        path = tmp_path / f"inplace_{inplace}.py"
        path.write_text(BEGINS_WITH_RELU.format(inplace=inplace))
        options = kinds.options(tmp_path, "table"), method, ONE_ROUND, f'model="{path}"'
        folder = serial_run(*options)
        models.append(read_model(folder))
        rounds.append(untimed_rounds(folder))
    assert rounds[0] == rounds[1]
    for key, value in models[1].items():
        np.testing.assert_array_equal(models[0][key], value, err_msg=key)


def test_cuts_by_speed_of_a_model_of_tokens(serial_run, tmp_path, read_csv):
    """Tokens are whole numbers, which have no gradients; each client still tells its times."""
    texts, _ = kinds.arrays("tokens")
    path = tmp_path / "texts.npz"
    np.savez(path, inputs=texts, targets=texts[:, 0] % 2)
    folder = serial_run(
        f'dataset="{path}" model="lstm-char" partitioner="iid" num-clients=3 min-samples=4',
        f'strategy="fedfc" fedfc.cuts="auto" {ONE_ROUND}',
    )
    events = read_csv(folder, "events.csv")
    assert [event["client"] for event in events if event["kind"] == "cut"] == ["0", "1", "2"]
    assert {event["kind"] for event in events} == {"cut"}


@pytest.mark.parametrize("method", ['strategy="fedavg"', 'strategy="sflv1" sflv1.sync="round"'])
def test_volumes_are_learned(method, serial_run, tmp_path, read_model, workspace_of):
    """Weights of a Conv3d have five sides, as their inputs; against one step of each client."""
    labels, (data, model) = np.arange(60) % 3, (tmp_path / "volumes.npz", tmp_path / "voxels.py")
    voxels = np.random.default_rng(0).normal(labels[:, None, None, None, None], 1, (60, 1, 4, 4, 4))
    np.savez(data, inputs=voxels.astype(np.float32), targets=labels)
    model.write_text(OF_VOLUMES)
    folder = serial_run(
        f'dataset="{data}" model="{model}" partitioner="iid" num-clients=3 min-samples=4',
        f"{method} {ONE_ROUND} batch-size=60",
    )
    space, make, trained = workspace_of(folder), runpy.run_path(str(model))["make"], []
    for client in range(3):
        net = make(SimpleNamespace(shape=(1, 4, 4, 4)), SimpleNamespace(shape=(3,)))
        net.load_state_dict({k: torch.tensor(v) for k, v in space.initial.items()}, strict=False)
        inputs, targets = space.samples(client, "train")
        assert inputs.shape[1:] == (1, 4, 4, 4)
        cross_entropy(net(inputs), targets).backward()
        torch.optim.SGD(net.parameters(), lr=0.1).step()
        trained.append(net.state_dict())
    sizes = [len(space.samples(client, "train")[1]) for client in range(3)]
    for key, value in read_model(folder).items():
        mean = np.average([state[key].numpy() for state in trained], axis=0, weights=sizes)
        np.testing.assert_allclose(value, mean, rtol=0, atol=1e-5, err_msg=key)
