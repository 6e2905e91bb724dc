"""Every method with `group`: the same results up to rounding, or the very same, as it says."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from fedapps.core import registry
from fedapps.method import Objective
from fedapps.training.stacked.group import Group
from tests.support.methods import each_method, needed

# Methods whose step is more than a loss, or whose clients train over a channel.
ALONE = {
    "apfl": "the objective has gradients of its own",
    "feddbe": "the objective has forward of its own",
    "feddyn": "the objective has gradients of its own",
    "fedem": "the objective has weights of its own",
    "fedpac": "the objective has forward of its own",
    "fedproto": "the objective has forward of its own",
    "moon": "the objective has forward of its own",
    "fedrod": "the objective has forward of its own",
    "perfedavg": "the objective has gradients of its own",
    "pfedme": "the objective has gradients of its own",
    "scaffold": "the objective has gradients of its own",
    **dict.fromkeys(("fedfc", "sflv1", "sflv2", "splitlearning"), ""),
    "centralized": "",
}
COSTS = ("train_macs", "cost_paper", "bytes_up", "bytes_down", "failures")
OPTIONS = "fraction-train=0.84 evaluate-every=0 local-epochs=2 momentum=0.5 lr=0.01"


def states(folder: Path) -> dict[str, np.ndarray]:
    """The server's model, and all that clients keep."""
    files = [folder / "model.safetensors", *sorted(folder.glob("clients/*/*.safetensors"))]
    return {f"{p.relative_to(folder)} {k}": v for p in files for k, v in load_file(p).items()}


@pytest.mark.parametrize("method", each_method())
def test_together_as_alone(serial_run, read_rounds, read_csv, monkeypatch, capsys, method):
    """Two rounds of groups of four and one, with BatchNorm and clients of different size."""
    trained = []
    train = Group.train

    def record(group, stages, lessons):
        train(group, stages, lessons)
        trained.append(len(lessons))

    monkeypatch.setattr(Group, "train", record)
    options = needed(method), f'strategy="{method}" model="lenet5" {OPTIONS}'
    alone = serial_run(*options)
    assert not trained and "clients are" not in capsys.readouterr().out
    together = serial_run(*options, "group=4")
    told = capsys.readouterr().out
    assert "some clients" not in told  # no error has made a group fall apart
    before, after = states(alone), states(together)
    assert before.keys() == after.keys()
    if method in ALONE:
        reason = f"group = 4: clients are trained one after the other: {ALONE[method]}\n"
        assert reason in told if ALONE[method] else "clients are trained" not in told
        assert all(np.array_equal(value, after[key]) for key, value in before.items())
    else:
        assert "group = 4: clients are trained together\n" in told
        assert "trained one after" not in told
        assert 4 in trained
        for key, value in before.items():
            np.testing.assert_allclose(after[key], value, rtol=1e-4, atol=1e-5, err_msg=key)
    for one, other in zip(read_rounds(alone), read_rounds(together), strict=True):
        assert [one[column] for column in COSTS] == [other[column] for column in COSTS]
    losses = ([float(row["loss"]) for row in read_csv(f, "clients.csv")] for f in (alone, together))
    np.testing.assert_allclose(*losses, rtol=1e-3)


def test_an_anchor_of_live_parameters_is_that_of_its_own_client(serial_run, monkeypatch):
    """While a client waits for others, the parameters of the process have the others' values."""

    def objective(client, phase):
        with torch.no_grad():  # each client's own model, near which it stays
            for parameter in client.trainable:
                parameter.add_(0.01 * client.client)
        return Objective(client.loss, anchor=dict(client.model.named_parameters()))

    monkeypatch.setattr(registry.client_class("fedavg"), "objective", objective, raising=False)
    options = f'strategy="fedavg" model="lenet5" {OPTIONS} prox-mu=1.0'
    alone, together = states(serial_run(options)), states(serial_run(options, "group=4"))
    for key, value in alone.items():
        np.testing.assert_allclose(together[key], value, rtol=1e-4, atol=1e-5, err_msg=key)
