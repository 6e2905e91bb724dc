"""Split learning with models of one's own, and with samples that are no images."""

import numpy as np
import pytest

from tests.support import kinds

ONE_ROUND = "num-rounds=1 fraction-train=1.0 evaluate-every=0 lr=0.1 momentum=0.9"
BEGINS_WITH_RELU = """
from torch import nn

takes = "tables"

def make(inputs, outputs):
    behind = nn.Sequential(nn.ReLU(inplace={inplace}), nn.Linear(8, outputs.shape[-1]))
    return nn.Sequential(nn.Linear(inputs.size, 8), behind)
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
