"""The key `metric`: which metric leads in tables, by which rounds are chosen and runs compared."""

import numpy as np
import pandas as pd
import pytest

import fedapps
from fedapps import cli
from fedapps.core.errors import RunError
from fedapps.report import directory
from fedapps.tasks import TASKS
from tests.support.made_runs import shown

LEADS = ("accuracy", "balanced")
# Clients whose classes are not equally frequent, so that these two do not rise together.
KEYS = """strategy="fedavg" num-clients=4 min-samples=5 alpha=0.5 model="mlp" lr=0.1 batch-size=16
    num-rounds=8 finetune-epochs=0 fraction-train=0.5 local-epochs=2 validation-fraction=0.3
    evaluate-on="validation" seed=3 """
NAMES = {name: [metric.name for metric in task.metrics] for name, task in TASKS.items()}


@pytest.mark.parametrize("name", TASKS)
def test_any_metric_of_a_task_can_lead_and_the_others_follow_in_their_order(name):
    task, names = TASKS[name], NAMES[name]
    for metric in names:
        led = task.leading(metric)
        assert led.lead.name == metric and type(led) is type(task)
        assert [m.name for m in led.metrics[1:]] == [m for m in names if m != metric]
    assert task.leading("auto") is task and [m.name for m in task.metrics] == names
    with pytest.raises(RunError) as caught:
        task.leading("acuracy")
    assert str(caught.value) == f'metric = "acuracy": a {name} has {", ".join(["auto", *names])}'


def test_tables_and_choices_of_rounds_follow_the_metric_that_leads(serial_run, capsys):
    """The training is the same, and each run ends and keeps a round by its own metric."""
    whole = pd.read_csv(serial_run(KEYS) / "rounds.csv")
    ended = set()
    for name in LEADS:
        scores = [*whole[f"{name}_personalized"]]
        falls = (n for n in range(1, 8) if scores[n] <= max(scores[:n]))
        rounds = next(falls) + 1
        ended.add(rounds)
        folder = serial_run(KEYS, f'patience=1 keep-best=true metric="{name}"')
        table = pd.read_csv(folder / "rounds.csv")
        assert table.columns[5] == f"{name}_initial" and len(table) == rounds
        for other in LEADS:
            column = f"{other}_personalized"
            assert list(table[column]) == list(whole[column][:rounds])
        clients = pd.read_csv(folder / "clients.csv")
        last = clients[clients["round"] == rounds][f"{name}_personalized"]
        assert table[f"{name}_personalized_std"].iloc[-1] == pytest.approx(np.std(last))
        assert directory.summary(folder)[f"best_{name}_personalized_round"] == rounds - 1
        told = f"{TASKS['classification'].leading(name).lead.label} {scores[rounds - 1]:.1%}"
        assert told.replace("%", " %") in " ".join(shown(capsys, folder))
    assert len(ended) == 2


def test_runs_are_compared_by_the_metric_that_is_asked_for(serial_run, tmp_path, capsys):
    runs = [serial_run(KEYS, "num-rounds=1", f'seed={seed} metric="accuracy"') for seed in (0, 1)]
    runs += [serial_run(KEYS, "num-rounds=1 lr=0.01", f"seed={seed}") for seed in (0, 1)]
    tables = [pd.read_csv(run / "rounds.csv").iloc[-1] for run in runs]
    for metric in NAMES["classification"]:
        found = fedapps.compare(runs, metric=metric).table
        for group, pair in zip("AB", (tables[:2], tables[2:]), strict=True):
            scores = [table[f"{metric}_personalized"] for table in pair]
            mean, std = (found.loc[group, f"{metric}_personalized_{of}"] for of in ("mean", "std"))
            assert (mean, std) == pytest.approx((np.mean(scores), np.std(scores, ddof=1)))
    words = ["--output", str(tmp_path / "comparison"), "--latex"]
    assert cli.main(["compare", *map(str, runs), "--metric", "macro_f1", *words]) == 0
    told = capsys.readouterr().out
    assert "macro F1" in told and "accuracy" not in told
    with pytest.raises(RunError, match=r'metric = "mae": a classification has auto, accuracy'):
        fedapps.compare(runs, metric="mae")


def test_runs_with_different_metrics_need_to_be_told_which_one_counts(serial_run):
    run, other = (
        serial_run(KEYS, "num-rounds=1"),
        serial_run(KEYS, 'num-rounds=1 metric="balanced"'),
    )
    with pytest.raises(RunError) as caught:
        fedapps.compare([run, other])
    told = f"accuracy leads in {run.name}, balanced leads in {other.name}"
    assert str(caught.value) == f"by which metric? {told}; choose one: --metric accuracy"
    assert fedapps.compare([run, other], metric="accuracy").notes


def test_a_run_goes_on_with_its_own_metric(serial_run):
    folder = serial_run(KEYS, 'num-rounds=1 metric="balanced"')
    resumed = serial_run(KEYS, f'resume="{folder}" num-rounds=2 metric="balanced"')
    assert pd.read_csv(resumed / "rounds.csv").columns[5] == "balanced_initial"
    with pytest.raises(RunError, match="metric"):
        serial_run(KEYS, f'resume="{folder}" num-rounds=3 metric="macro_f1"')
