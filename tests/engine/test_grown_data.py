"""A run that is over, and whose data file has changed since: its model stays what it is."""

import json
import logging

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors import safe_open

import fedapps
from fedapps.__main__ import main
from fedapps.device import personalized
from fedapps.engine.finished import FinishedRun
from fedapps.training.workspace import workspace

LEVELS = {"a": 1.0, "b": 100.0}  # kWh of two households


def readings():
    """Return 60 hours of both households, with a text among the inputs and with gaps."""
    draws = np.random.default_rng(0)
    tables = []
    for name, level in LEVELS.items():
        use = level + draws.normal(scale=0.1, size=60)
        table = pd.DataFrame({"home": name, "use": use, "tariff": ["day", "night"] * 30})
        tables.append(table.assign(next=np.roll(use, -1)))
    found = pd.concat(tables, ignore_index=True)
    found.loc[5::20, "use"] = np.nan
    return found


def winter(table):
    """Return the table with more rows of b, all of them larger."""
    more = table[table.home == "b"].assign(use=lambda t: 3 * t.use, next=lambda t: 3 * t.next)
    return pd.concat([table, more])


def other_columns(table):
    """Return the table with a column more, in which nobody has the tariff of the night."""
    target = table.pop("next")
    return table[table.tariff == "day"].assign(tariff="day", heat=1.5, next=target)


@pytest.fixture
def file(tmp_path):
    """The data of the run."""
    readings().to_csv(tmp_path / "meters.csv", index=False)
    return tmp_path / "meters.csv"


@pytest.fixture
def run(serial_run, file):
    """A finished run on them; its directory has the best round, too."""
    return serial_run(
        f'dataset="{file}" client-column="home" target-column="next" task="regression"',
        'partitioner="natural" num-clients=0 split="last" missing="mean" model="mlp"',
        'strategy="fedavg" num-rounds=3 lr=0.05 validation-fraction=0.2',
        'evaluate-on="validation" keep-best=true',
    )


@pytest.mark.parametrize("change", [winter, other_columns])
def test_a_model_predicts_the_same_after_its_data_have_changed(change, run, file, caplog):
    asked = readings().head(8)
    then = [fedapps.load(path).predict(None, asked) for path in (run, run / "best")]
    change(readings()).to_csv(file, index=False)
    workspace.cache_clear()  # as in a new process
    for path, known in zip((run, run / "best"), then, strict=True):
        caplog.clear()
        assert np.array_equal(fedapps.load(path).predict(None, asked), known)
        assert [m for m in caplog.messages if m.endswith("not as in the run: the samples")]


def test_a_column_more_does_not_become_the_target(serial_run, file):
    """Without `target-column`, the target is the last column that the run has had."""
    words = f'dataset="{file}" client-column="home" task="regression" partitioner="natural"'
    keys = 'num-clients=0 split="last" missing="mean" model="mlp" strategy="fedavg" num-rounds=1'
    opened = FinishedRun.open(serial_run(words, keys))
    then = [opened.samples(client, "train") for client in range(2)]
    readings().assign(note=range(120)).to_csv(file, index=False)
    workspace.cache_clear()
    now = FinishedRun.open(opened.folder)
    for client, known in enumerate(then):
        for part, expected in zip(now.samples(client, "train"), known, strict=True):
            assert np.array_equal(part, expected, equal_nan=True)
    targets = np.concatenate([targets for _, targets in then])
    assert {*targets.ravel()} <= {*readings().next.dropna().astype(np.float32)}


@pytest.mark.parametrize("column", [
    [np.nan, 20.5] * 60,
    [f"house {row}" for row in range(120)],
])  # fmt: skip
def test_a_column_that_no_run_would_take_does_not_end_an_old_one(column, serial_run, file, caplog):
    """One that is empty in some rows, or holds notes: the run has no use for it."""
    table = readings().fillna(1)
    table.to_csv(file, index=False)
    words = f'dataset="{file}" client-column="home" target-column="next" task="regression"'
    keys = 'num-clients=0 split="last" model="mlp" strategy="fedavg" num-rounds=1'
    run = serial_run(words, 'partitioner="natural"', keys)
    asked = table.head(8)
    then = fedapps.load(run).predict(None, asked)
    table.assign(more=column).to_csv(file, index=False)
    workspace.cache_clear()
    caplog.clear()
    assert np.array_equal(fedapps.load(run).predict(None, asked), then)
    assert not [message for message in caplog.messages if "not as in the run" in message]


def test_an_exported_model_has_the_numbers_of_its_run(run, file, tmp_path):
    then = FinishedRun.open(run)
    parts = [then.samples(client, "train") for client in range(2)]
    inputs, targets = (np.concatenate(part).astype(np.float64) for part in zip(*parts, strict=True))
    winter(readings()).to_csv(file, index=False)
    workspace.cache_clear()
    assert main(["export", str(run), "--output", str(tmp_path / "m.safetensors")]) == 0
    about = personalized.load(tmp_path / "m.safetensors").about
    with safe_open(tmp_path / "m.safetensors", "np") as stored:
        assert json.loads(stored.metadata()["fedapps"])["columns"] == "use,tariff=day|night"
    assert about.mean == about.filling == pytest.approx(np.nanmean(inputs, axis=0))
    assert about.std == pytest.approx(np.nanstd(inputs, axis=0))
    assert about.scaling.mean == pytest.approx([targets.mean()])
    assert about.scaling.std == pytest.approx([targets.std()])


def test_a_run_is_scored_on_new_samples_by_the_model_that_it_has_trained(run, file, read_csv):
    shared = fedapps.load(run).model(None)
    winter(readings()).to_csv(file, index=False)
    workspace.cache_clear()
    assert main(["evaluate", str(run), "-c", "finetune-epochs=0"]) == 0
    opened = fedapps.load(run)
    for number, row in enumerate(read_csv(run, "evaluation-1.csv")):
        x, y = opened.samples(number, "validation")
        errors = np.abs(shared(torch.tensor(x)).detach().numpy().ravel() - y.ravel())
        assert float(row["mae_initial"]) == pytest.approx(errors.mean(), rel=1e-4)


@pytest.fixture
def earlier(run):
    """The run as a version wrote it that did not note what it pooled, nor any run.json of `best/`.

    With it, what it pooled.
    """
    about = json.loads((run / "run.json").read_text())
    pooled = about.pop("pooled")
    (run / "run.json").write_text(json.dumps(about))
    (run / "best" / "run.json").unlink()
    return run, pooled


@pytest.mark.parametrize("folder", [".", "best"])
def test_a_run_of_an_earlier_version_says_whose_scale_it_has(folder, earlier, file, caplog):
    run = earlier[0] / folder
    FinishedRun.open(run)
    assert not caplog.messages
    winter(readings()).to_csv(file, index=False)
    workspace.cache_clear()
    with caplog.at_level(logging.WARNING):
        FinishedRun.open(run)
    (told,) = caplog.messages
    assert "the samples, and values are scaled by their mean and deviation" in told


def test_a_run_of_an_earlier_version_that_is_resumed_keeps_its_scale_from_then_on(earlier):
    run, pooled = earlier
    assert main(["serial", f"--resume={run}", "-c", "num-rounds=4"]) == 0
    assert pooled and json.loads((run / "run.json").read_text())["pooled"] == pooled


def test_images_have_constants_and_nothing_is_pooled(serial_run, tiny_npz):
    folder = serial_run(tiny_npz, "num-rounds=1")
    assert json.loads((folder / "run.json").read_text())["pooled"] is None
