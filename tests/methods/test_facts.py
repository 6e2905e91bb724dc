"""Facts that the papers make certain, one test each."""

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from fedapps.core import config
from fedapps.core.errors import RunError
from fedapps.models.layers import put
from fedapps.serial import run_serial
from fedapps.training.evaluation import nearest_template
from fedapps.training.workspace import Workspace


def test_fedbabu_tunes_the_head_not_the_accuracy_without_it(serial_run, untimed_rounds):
    parts = [serial_run(f'strategy="fedbabu" finetune-part="{p}"') for p in ("head", "body")]
    one, two = (untimed_rounds(folder)[-1] for folder in parts)
    for column in ("accuracy_initial", "accuracy_without_head", "train_loss"):
        assert one[column] == two[column]


def f1(label, predicted, true):
    both = ((predicted == label) & (true == label)).sum()
    return 2 * both / ((predicted == label).sum() + (true == label).sum())


@pytest.mark.parametrize("metric, of", [
    ("accuracy", lambda p, y: (p == y).mean()),
    ("balanced", lambda p, y: np.mean([(p[y == k] == k).mean() for k in np.unique(y)])),
    ("macro_f1", lambda p, y: np.mean([f1(k, p, y) for k in np.union1d(p, y)])),
], ids=["accuracy", "balanced", "macro_f1"])  # fmt: skip
def test_fedbabu_without_head_is_by_templates(
    metric, of, serial_run, read_model, workspace_of, untimed_rounds
):
    folder = serial_run(f'strategy="fedbabu" metric="{metric}"')
    space, values = workspace_of(folder), []
    put(space.model, read_model(folder))
    for client in range(6):
        train, (inputs, labels) = (space.samples(client, part) for part in ("train", "test"))
        outputs = nearest_template(space.model, space.layout.body, train, inputs, 10)
        values.append(of(outputs.argmax(1).numpy(), labels.numpy()))
    shown = float(untimed_rounds(folder)[-1][f"{metric}_without_head"])
    assert shown == pytest.approx(np.mean(values), abs=1e-12)


def test_personalization_in_an_evaluation_is_no_cost_of_training(serial_run, untimed_rounds):
    runs = [serial_run(f'strategy="fedavg" finetune-epochs={epochs}') for epochs in (0, 2)]
    plain, tuned = map(untimed_rounds, runs)
    for mine, theirs in zip(plain, tuned, strict=True):
        for column in ("train_loss", "train_macs", "cost_paper", "bytes_up", "bytes_eval"):
            assert mine[column] == theirs[column], column
        assert theirs["accuracy_personalized"] != theirs["accuracy_initial"]


def test_local_trains_all_clients_each_round_or_only_the_selected(serial_run, untimed_rounds):
    everyone = untimed_rounds(serial_run('strategy="local" local.match-compute=false'))
    matched = untimed_rounds(serial_run('strategy="local" local.match-compute=true'))
    assert [row["clients"] for row in everyone] == ["6", "6"]
    assert [row["clients"] for row in matched] == ["3", "3"]


@pytest.mark.parametrize(("option", "more"), [
    ('bn-stats="shared"', 44), ('bn-stats="local"', 0), ('bn-stats="batch"', 0),
    ("bn-local=true", -44),  # scales and shifts stay, too
])  # fmt: skip
def test_only_shared_batchnorm_travels(serial_run, option, more, workspace_of, untimed_rounds):
    """lenet5 on 8x8 digits has two BatchNorms with 6 + 16 channels: 44 statistics."""
    folder = serial_run(f'strategy="fedavg" model="lenet5" {option}')
    layout = workspace_of(folder).layout
    floats = layout.count(layout.names) + more
    assert [int(row["bytes_up"]) for row in untimed_rounds(folder)] == [4 * floats * 3] * 2
    kept = list((folder / "clients").glob("*/*.safetensors"))
    assert bool(kept) == (option in ('bn-stats="local"', "bn-local=true"))
    if "stats" in option and kept:
        assert all("running" in key for key in load_file(kept[0]))


def test_evaluation_happens_only_when_asked_and_always_last(serial_run, read_csv, untimed_rounds):
    folder = serial_run('strategy="fedavg" num-rounds=5 evaluate-every=2 evaluate-clients=2')
    evaluated = [row["round"] for row in untimed_rounds(folder) if row["accuracy_initial"]]
    assert evaluated == ["2", "4", "5"]
    clients = [(row["round"], row["client"]) for row in read_csv(folder, "clients.csv")]
    assert len(clients) == 6
    assert {c for r, c in clients if r == "2"} == {c for r, c in clients if r == "5"}


def test_nobody_is_personalized_in_a_further_round(serial_run, read_csv, untimed_rounds):
    options = 'strategy="fedbabu" num-rounds=4 evaluate-every=2 finetune-epochs=2'
    folder = serial_run(options, 'evaluate-rounds="1,3"')
    names = untimed_rounds(folder)[0]
    personalized = [name for name in names if "personalized" in name or name == "share_hurt"]
    assert len(personalized) == 8
    for row in untimed_rounds(folder):
        assert row["accuracy_initial"] and row["evaluated"]
        assert {bool(row[name]) for name in personalized} == {row["round"] in ("2", "4")}
    for row in read_csv(folder, "clients.csv"):
        assert row["accuracy_initial"]
        assert bool(row["accuracy_personalized"]) == (row["round"] in ("2", "4"))
    plain = [row for row in untimed_rounds(serial_run(options)) if row["round"] in ("2", "4")]
    for mine, theirs in zip(untimed_rounds(folder)[1::2], plain, strict=True):
        assert mine | {"bytes_eval": ""} == theirs | {"bytes_eval": ""}


def test_the_clients_that_are_scored_are_those_of_every_method(serial_run, read_csv):
    """FedSeq's last phase personalizes all clients, and is scored on those that others are."""
    options = "num-rounds=2 evaluate-clients=2 finetune-epochs=1"
    scored = {}
    for method in ("fedbabu", "fedseq"):
        folder = serial_run(f'strategy="{method}" {options}')
        scored[method] = {row["client"] for row in read_csv(folder, "clients.csv")}
        last = read_csv(folder, "rounds.csv")[-1]
        assert last["evaluated"] == "2"
    assert last["clients"] == "6" and last["phase"] != "train"  # FedSeq's last phase is one of all
    assert scored["fedseq"] == scored["fedbabu"] and len(scored["fedseq"]) == 2


def test_validation_samples_are_neither_trained_on_nor_test_samples(serial_run, read_csv):
    sizes = {}
    for part in ("test", "validation"):
        folder = serial_run(f'validation-fraction=0.4 evaluate-on="{part}" num-rounds=1')
        rows = read_csv(folder, "clients.csv")
        sizes[part] = {row["client"]: (int(row["num_train"]), int(row["num_test"])) for row in rows}
    whole = {row["client"]: row for row in read_csv(serial_run("num-rounds=1"), "clients.csv")}
    for client, row in whole.items():
        train, tested = sizes["test"][client]
        assert tested == int(row["num_test"])
        assert sizes["validation"][client] == (train, int(row["num_train"]) - train)


def test_centralized_refuses_statistics_that_nobody_has(flat_config):
    for option in ('bn-stats="local"', "bn-local=true"):
        with pytest.raises(RunError, match=r"centralized needs bn-stats"):
            run_serial(flat_config(f'strategy="centralized" model="lenet5" {option}'))


def test_skipped_batches_are_told(serial_run, read_csv):
    """conv4 on 8x8 digits ends in 1x1 maps: BatchNorm cannot normalise a batch of one."""
    folder = serial_run('strategy="fedavg" model="conv4" batch-size=1 num-rounds=1')
    events = read_csv(folder, "events.csv")
    assert [row["kind"] for row in events] == ["skipped"] * 3
    for row in events:
        skipped, _, rest = row["detail"].partition(" of ")
        assert f"{skipped} batches" == rest


def test_a_client_whose_own_model_diverges_fails(serial_run):
    with pytest.raises(RunError, match=r"all failed.*not finite"):
        serial_run('strategy="local" lr=1e30')


def test_what_a_methods_table_overrides_is_told(serial_run, capsys):
    serial_run('strategy="fedprox" prox-mu=0.5 fedprox.prox-mu=0.01')
    assert "note: fedprox.prox-mu = 0.01 overrides prox-mu = 0.5" in capsys.readouterr().out
    serial_run('strategy="fedprox" prox-mu=0.5')
    assert "overrides" not in capsys.readouterr().out


def test_channels_last_is_a_matter_of_speed_alone(flat_config):
    """Weights are stored as NumPy has them, whatever the memory format of the model."""
    space = Workspace(config.read(flat_config()))
    weight = space.model.get_parameter("conv2.conv.weight")
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert space.initial["conv2.conv.weight"].flags.c_contiguous
    np.testing.assert_array_equal(space.initial["conv2.conv.weight"], weight.detach().numpy())


def test_any_method_is_scored_without_head_if_asked(serial_run, read_summary):
    """With a tiny learning rate all keep the initial body, so FedAvg must score as FedBABU does."""
    still = "lr=1e-12 finetune-epochs=0"
    runs = ('"fedavg" score-without-head=true', '"fedbabu"', '"fedavg"')
    folders = [serial_run(f"strategy={run}", still) for run in runs]
    asked, fedbabu, plain = (read_summary(each)["accuracy_without_head"] for each in folders)
    assert asked == fedbabu > 0 and plain is None
