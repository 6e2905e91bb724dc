"""Devices with tables and series: what their clients learn, and predicting from a table."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors import safe_open

import fedapps
from fedapps.__main__ import main
from fedapps.core.errors import RunError
from fedapps.device import personalized
from fedapps.serial import run_serial
from tests.support.devices import node_configs

ROWS, DEVICES = 40, 3
RUN = (
    f'dataset="device" num-clients={DEVICES} strategy="fedper" model="mlp" num-rounds=2 '
    'fraction-train=1.0 batch-size=8 input-shape="3" class-names="no,yes" num-classes=2'
)
RULE = 'columns="age,sex=f|m" target-column="ill"'


def frame(client):
    rng = np.random.default_rng(client)
    table = pd.DataFrame({"age": rng.normal(50, 10, ROWS), "sex": rng.choice(["f", "m"], ROWS)})
    return table.assign(ill=np.where(table.age > 50, "yes", "no"))


@pytest.fixture
def nodes(tmp_path):
    def write(form):
        data = [tmp_path / f"{client}.{form}" for client in range(DEVICES)]
        for client, path in enumerate(data):
            table = frame(client)
            if form == "csv":
                table[["sex", "ill", "age"]].to_csv(path, index=False)
            else:
                values = np.stack([table.age, table.sex == "f", table.sex == "m"], axis=1)
                np.savez(path, inputs=values, targets=(table.ill == "yes").astype(int))
        (tmp_path / form).mkdir()
        return node_configs(data, tmp_path / form)

    return write


def test_a_csv_on_a_device_is_the_same_as_an_npz(nodes, flat_config, no_plots, read_csv):
    """Texts are numbered by the key `columns`, whatever the order of the columns in the file."""
    told = []
    for form in ("csv", "npz"):
        folder = run_serial(flat_config(RUN, RULE), node_configs=nodes(form))
        told.append(read_csv(folder, "clients.csv"))
    assert told[0] == told[1]
    assert len(told[0]) == DEVICES * 2


def test_devices_need_the_same_columns(nodes, flat_config, no_plots, capsys):
    """The values of a column are proposed on the device alone."""
    with pytest.raises(RunError, match=r"columns: its SuperNode's output proposes some") as caught:
        run_serial(flat_config(RUN, 'target-column="ill"'), node_configs=nodes("csv"))
    assert "sex" not in str(caught.value)
    assert 'set columns="sex=f|m,age"' in capsys.readouterr().out


@pytest.mark.parametrize(("told", "rule", "said"), [
    ("line 7: class perhaps; the run has no, yes (class-names)", "", "its data cannot be used;"),
    (
        'line 2: column ill holds "yes", not a number; if it stands for a missing value, leave the'
        " cell empty, or write NA, NaN or ?",
        'task="regression" num-classes=1 class-names=""',
        "targets are texts; the run needs numbers (task)",
    ),
])  # fmt: skip
def test_what_is_in_a_row_stays_on_the_device(
    told, rule, said, nodes, flat_config, no_plots, capsys, read_csv
):
    """Its server, page and events only hear that something does not fit."""
    made = nodes("csv")
    path = made[1]["data"]
    frame(1).assign(ill=lambda t: t.ill.mask(t.index == 5, "perhaps")).to_csv(path, index=False)
    if rule:
        for node in (made[0], made[2]):
            table = pd.read_csv(node["data"])
            table.assign(ill=table.age / 10).to_csv(node["data"], index=False)
    run = flat_config(RUN, rule, RULE, 'client-state="reset"')
    folder = run_serial(run, node_configs=made)
    lines = capsys.readouterr().out.splitlines()
    assert any(line.endswith(told) for line in lines), lines
    (event,) = [row for row in read_csv(folder, "events.csv") if row["kind"] == "left-out"]
    assert event["client"] == "1" and said in event["detail"]
    for file in folder.rglob("*"):
        own_log = file.name == "log.txt"  # in this process, device and server have one log
        assert own_log or not file.is_file() or b"perhaps" not in file.read_bytes(), file


@pytest.mark.parametrize("row", [0, ROWS - 1])
def test_where_a_value_is_not_finite_stays_on_the_device(
    row, nodes, flat_config, no_plots, capsys, read_csv
):
    """A training sample or a test sample: all are read before the device takes part."""
    made = nodes("npz")
    arrays = dict(np.load(made[1]["data"]))
    arrays["inputs"][row, 0] = np.nan
    np.savez(made[1]["data"], **arrays)
    folder = run_serial(flat_config(RUN, RULE), node_configs=made)
    events = read_csv(folder, "events.csv")
    assert {(event["client"], event["kind"]) for event in events} == {("1", "left-out")}
    assert all("its data cannot be used; why is in the output" in row["detail"] for row in events)
    assert not any(made[1]["data"] in row["detail"] for row in events)
    assert f"{made[1]['data']}: inputs[{row}] holds NaN or infinity" in capsys.readouterr().out


def test_series_and_recordings_on_devices(tmp_path, flat_config, no_plots, read_csv):
    """One device has an .npz of windows, the other the recording that they were cut from."""
    rng, data = np.random.default_rng(0), (tmp_path / "own.npz", tmp_path / "recorded")
    one, other = (
        {name: rng.normal(size=(60, 2)) + shift for name, shift in (("lift", 0), ("row", 3))}
        for _ in data
    )
    windows = np.concatenate([values.reshape(6, 10, 2) for values in one.values()])
    np.savez(data[0], inputs=windows, targets=np.repeat([0, 1], 6))
    for name, values in other.items():
        (data[1] / name).mkdir(parents=True)
        pd.DataFrame(values, columns=["x", "y"]).to_csv(data[1] / name / "1.csv", index=False)
    run = (
        'dataset="device" num-clients=2 strategy="fedper" model="gru" num-rounds=2 window=10 '
        'fraction-train=1.0 input-shape="10,2" class-names="lift,row" num-classes=2 columns="x,y"'
    )
    folder = run_serial(flat_config(run), node_configs=node_configs(data, tmp_path))
    rows = read_csv(folder, "clients.csv")
    assert [(row["client"], row["num_train"], row["num_test"]) for row in rows[-2:]] == [
        ("0", "9", "3"), ("1", "9", "3"),
    ]  # fmt: skip


def test_another_hospital_adopts_the_model_of_a_table(tmp_path, serial_run, capsys):
    """Its table names no hospital, and the names of the classes stay."""
    whole = pd.concat([frame(client).assign(hospital=f"h{client}") for client in range(3)])
    whole.to_csv(tmp_path / "all.csv", index=False)
    run = serial_run(
        f'dataset="{tmp_path}/all.csv" target-column="ill" client-column="hospital" model="mlp" '
        'partitioner="natural" num-clients=0 strategy="fedavg" num-rounds=2 lr=0.1'
    )
    shared, state = tmp_path / "shared.safetensors", str(tmp_path / "adopted")
    assert main(["export", str(run), "--output", str(shared)]) == 0
    frame(7).to_csv(tmp_path / "own.csv", index=False)
    own = ["--data", str(tmp_path / "own.csv"), "--state-dir", state]
    assert main(["adopt", "--model", str(shared), *own, "-c", 'missing="drop"']) == 0
    capsys.readouterr()
    assert main(["predict", "--state-dir", state, "--input", str(tmp_path / "own.csv")]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert {line[1] for line in lines if line[0].isdigit()} <= {"no", "yes"}
    adopt = ["adopt", "--model", str(shared), "--state-dir", state, "--data"]
    assert main([*adopt, str(tmp_path / "all.csv")]) == 0
    told = capsys.readouterr().err
    assert "all.csv: holds 3 values of hospital (client-column), and all rows are taken as" in told
    assert "personalized.safetensors: replaces the model that was there" in told
    assert main([*adopt, str(tmp_path / "own.csv"), "-c", 'missing="mean"']) == 1
    assert 'missing = "mean": the run filled no values' in capsys.readouterr().err
    frame(7)[:1].to_csv(tmp_path / "one.csv", index=False)
    assert main([*adopt, str(tmp_path / "one.csv")]) == 1
    assert "one.csv: holds 1 sample; must be at least 2" in capsys.readouterr().err


def test_the_shared_model_of_devices_predicts_nothing_from_values_that_each_scales_itself(
    nodes, flat_config, no_plots, tmp_path, capsys, caplog
):
    """The server knows no mean of ages, so 50 years would be 50 deviations: chance, and no word."""
    options = RUN.replace("fedper", "fedavg"), RULE, "local-epochs=5 lr=0.1"
    run = run_serial(flat_config(*options), node_configs=nodes("csv"))
    own, shared = tmp_path / "0.csv", tmp_path / "shared.safetensors"
    capsys.readouterr()
    lost = "warning: each device scaled its values by its own mean and deviation"
    assert main(["export", str(run), "--output", str(shared)]) == 0
    assert lost in capsys.readouterr().err
    refused = "does not know how its values are scaled"
    for source in (run, shared):
        assert main(["predict", str(source), "--input", str(own)]) == 1
        said = capsys.readouterr()
        assert not said.out and lost in said.err and refused in said.err
    caplog.clear()
    with pytest.raises(RunError, match=refused):
        fedapps.load(run).predict(None, frame(0)[["age", "sex"]])
    assert "by its own mean and deviation" in caplog.text
    adopted = tmp_path / "adopted"
    told = ["--data", str(tmp_path / "1.csv"), "--state-dir", str(adopted)]
    assert main(["adopt", "--model", str(shared), *told]) == 0
    assert lost not in capsys.readouterr().err
    for client, state in ((0, tmp_path / "csv" / "state-0"), (1, adopted)):
        table = frame(client)
        found, _ = personalized.predict(personalized.load(state), tmp_path / f"{client}.csv")
        assert (found == (table.ill == "yes")).mean() > 0.8


def test_a_model_of_a_table_with_gaps_fills_them_wherever_it_is_used(tmp_path, serial_run):
    """With the means of the run's training samples."""
    table = frame(0)
    table.loc[[3, 8], "age"] = np.nan
    table.to_csv(tmp_path / "gaps.csv", index=False)
    run = serial_run(
        f'dataset="{tmp_path}/gaps.csv" target-column="ill" model="mlp" num-clients=2 '
        'strategy="fedavg" num-rounds=1 missing="mean" batch-size=4'
    )
    shared, program = tmp_path / "shared.safetensors", tmp_path / "shared.pt2"
    for output in (shared, program):
        assert main(["export", str(run), "--output", str(output)]) == 0
    model = personalized.load(shared)
    with safe_open(shared, "pt") as file:
        about = json.loads(file.metadata()["fedapps"])
    asked = torch.tensor([[torch.nan, 1.0, 0.0], [44.0, torch.nan, 1.0], [51.0, 0.0, 1.0]])
    filled = torch.where(asked.isnan(), torch.tensor(about["mean"]), asked)
    exported = torch.export.load(program).module()
    with torch.no_grad():
        expected = model(filled)
        assert not expected.isnan().any()
        for found in (model, exported):
            torch.testing.assert_close(found(asked), expected)
    predicted = personalized.predict(model, tmp_path / "gaps.csv")[1]
    for row in (3, 8):
        values = [about["mean"][0], table.sex[row] == "f", table.sex[row] == "m"]
        with torch.no_grad():
            (chances,) = model(torch.tensor([values])).softmax(1).numpy()
        np.testing.assert_allclose(predicted[row], chances, rtol=1e-5)


def test_texts_on_devices_have_the_same_tokens(tmp_path, flat_config, no_plots, read_csv, capsys):
    """Those of UTF-8, of which no device has all; each predicts texts with the model it keeps."""
    nodes = []
    for client, words in enumerate((("gut", "schlecht"), ("好", "坏"), ("good", "bad"))):
        folder = tmp_path / str(client)
        folder.mkdir()
        table = pd.DataFrame({"text": [*words] * 20, "mood": ["up", "down"] * 20})
        table.to_csv(folder / "own.csv", index=False)
        paths = {"data": f"{folder}/own.csv", "state-dir": f"{folder}/state"}
        nodes.append({"client-id": client, **paths})
    keys = f"""dataset="device" num-clients={DEVICES} strategy="fedper" model="transformer-tiny"
        num-rounds=3 fraction-train=1.0 batch-size=8 optimizer="adam" lr=0.003 columns="text"
        text-length=8 target-column="mood" class-names="down,up" num-classes=2"""
    folder = run_serial(flat_config(keys.replace("\n", " ")), node_configs=nodes)
    scores = [float(row["accuracy_personalized"]) for row in read_csv(folder, "clients.csv")]
    assert len(scores) == 3 * DEVICES and scores[-DEVICES:] == [1.0] * DEVICES
    pd.DataFrame({"text": ["坏", "好"]}).to_csv(tmp_path / "asked.csv", index=False)
    capsys.readouterr()
    assert main(["predict", nodes[1]["state-dir"], "--input", str(tmp_path / "asked.csv")]) == 0
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()] == ["down", "up"]
