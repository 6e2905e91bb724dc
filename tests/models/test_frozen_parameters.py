"""Parameters that the author of a model has frozen: they stay, do not travel, and are said so."""

import copy
from pathlib import Path

import pytest
import torch
from safetensors.numpy import load_file
from torch import nn

from fedapps import cli, models
from fedapps.core import config, registry
from fedapps.core.errors import RunError
from fedapps.data.spec import Spec
from fedapps.device import personalized, run_models
from fedapps.device.adopting import adopt
from fedapps.engine.finished import FinishedRun
from fedapps.method import rehearse
from fedapps.models import own
from tests.support import kinds

NET = """
from torch import nn

takes = "tables"

def make(inputs, outputs):
    stem = nn.Sequential(nn.Linear(inputs.size, 6), nn.BatchNorm1d(6), nn.ReLU())
    stem.requires_grad_(False)
    model = nn.Sequential(stem, nn.Linear(6, 6), nn.Linear(6, outputs.shape[-1]))
    model[1].bias.requires_grad_(False)
    return model
"""
RUN = "num-rounds=2 fraction-train=1.0 local-epochs=1 finetune-epochs=1 num-clients=4"
ALONE = ["1.weight", "2.bias", "2.weight"]  # what is left to train


@pytest.fixture
def path(tmp_path):
    found = tmp_path / "mine.py"
    found.write_text(NET)
    return found


def drawn(seed, size=5, outputs=3):
    """The initial model, in torch alone."""
    torch.manual_seed(seed)
    stem = nn.Sequential(nn.Linear(size, 6), nn.BatchNorm1d(6), nn.ReLU())
    return nn.Sequential(stem, nn.Linear(6, 6), nn.Linear(6, outputs))


@pytest.mark.parametrize("method", ["fedavg", "fedper", "fedbabu", "apfl", "pfedme"])
def test_they_are_neither_trained_nor_sent(path, method, tmp_path, serial_run, read_csv, capsys):
    data = kinds.options(tmp_path, "table")
    folder = serial_run(data, RUN, f'model="{path}" strategy="{method}"')
    assert "no gradient" not in capsys.readouterr().out
    trained = load_file(folder / "model.safetensors")
    assert sorted(trained) == ALONE
    if method == "fedavg":
        size = 4 * 4 * sum(value.size for value in trained.values())
        assert [int(row["bytes_up"]) for row in read_csv(folder, "rounds.csv")] == [size] * 2
    client = run_models.of_run(FinishedRun.open(folder), 1).module
    first = drawn(0, kinds.FEATURES, kinds.CLASSES).state_dict()
    moved = {
        key for key, value in client.state_dict().items() if not torch.equal(value, first[key])
    }
    assert moved and moved <= {*ALONE}


def test_the_command_checks_such_a_model(path, capsys):
    assert cli.main(["models", "--check", str(path), "--shape", "7"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert f"{path}: fedavg learns tables [7] with 1, 2" in lines
    assert not [line for line in lines if "Error" in line]


def test_split_learning_refuses_it(path, tmp_path, serial_run):
    with pytest.raises(RunError, match=r"sflv1 trains whole layers, and 0\.0\.bias is frozen"):
        serial_run(kinds.options(tmp_path, "table"), RUN, f'model="{path}" strategy="sflv1"')


def test_a_personal_head_leaves_them_as_they_are(path, tmp_path, flat_config):
    """FedROD's is a module of its own, beside the head of the model."""
    path.write_text(NET.replace("model[1].bias", "model[2].bias"))
    keys = f'model="{path}" strategy="fedrod" finetune-epochs=1 local-epochs=1'
    settings = config.read(flat_config(kinds.options(tmp_path, "table"), keys))
    run = rehearse(registry.strategy_class("fedrod"), registry.client_class("fedrod"), settings)
    client = run.make(0)
    before = copy.deepcopy(client.personal_head)
    client.train_round(
        run.strategy.plan(1, 0), run.strategy.download(1, 0, run.strategy.plan(1, 0))
    )
    assert torch.equal(client.personal_head[0].bias, before[0].bias)
    assert not torch.equal(client.personal_head[0].weight, before[0].weight)


def test_no_later_run_of_a_federation_could_start_from_it(path, tmp_path, serial_run):
    with pytest.raises(RunError, match=r"has frozen parameters, so that its model\.safetensors"):
        serial_run(
            kinds.options(tmp_path, "table"), RUN, f'model="{path}" federation="{tmp_path / "f"}"'
        )


@pytest.mark.parametrize(("line", "layers"), [("model", r"\(none\)"), ("model[:2]", "2")])
def test_something_must_be_left_to_train(path, line, layers):
    path.write_text(NET.replace("    return", f"    {line}.requires_grad_(False)\n    return"))
    wanted = f"has the layers {layers} that are not frozen .*: must have two or more"
    with pytest.raises(RunError, match=wanted):
        models.build(str(path), Spec((5,)), 3, seed=0)


def test_given_weights_are_those_of_frozen_parameters_too(path, tmp_path, serial_run, monkeypatch):
    """A run that starts from a file, the file exported from it, and who adopts that."""
    data, given = kinds.options(tmp_path, "table"), tmp_path / "given.safetensors"
    source = drawn(7, kinds.FEATURES, kinds.CLASSES)
    given.write_bytes(personalized.save_tensors(source.state_dict()))
    folder = serial_run(data, RUN, f'model="{path}" initial-model="{given}"')
    shared = run_models.of_run(FinishedRun.open(folder), None)
    assert torch.equal(shared.module[0][0].weight, source[0][0].weight)
    file = tmp_path / "shared.safetensors"
    file.write_bytes(personalized.packed(shared.module, shared.about))
    monkeypatch.setattr(
        own, "APP", tmp_path / "app"
    )  # no path in a file is run: it is models/mine.py
    (tmp_path / "app" / "models").mkdir(parents=True)
    path.rename(tmp_path / "app" / "models" / "mine.py")
    mine = Path(data.partition('dataset="')[2].partition('"')[0])
    adopted = personalized.load(
        adopt(personalized.load(file), mine, tmp_path / "s", {}).path
    ).module
    assert torch.equal(adopted[0][0].weight, source[0][0].weight)
    assert not torch.equal(adopted[2].weight, shared.module[2].weight)
    with pytest.raises(RunError, match=r"lacks 0\.0\.weight, .*give what fedapps export writes"):
        serial_run(data, RUN, f'model="mine" initial-model="{folder / "model.safetensors"}"')
