"""The key `metric`: which metric leads in tables, by which rounds are chosen and runs compared."""

import numpy as np
import pandas as pd
import pytest
import torch

import fedapps
from fedapps import cli
from fedapps.core import changes
from fedapps.core.errors import RunError
from fedapps.report import directory
from fedapps.report.columns import SPREAD, columns_of
from fedapps.report.directory import UNSEEN
from fedapps.report.page import run_charts
from fedapps.report.page.reading import RunFiles
from fedapps.report.rows import ClientEval, means
from fedapps.tasks import TASKS
from tests.support import kinds
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


@pytest.mark.parametrize("name", TASKS)
def test_each_metric_is_told_before_and_after_personalization(name):
    """Also one that does not lead, whose columns in rounds.csv have another order."""
    found = columns_of(TASKS[name])
    for metric in TASKS[name].metrics:
        told = metric.means(found.rounds)
        first, last = f"{metric.name}_initial", f"{metric.name}_personalized"
        assert told[0] == first and last in told and {*told} <= {*found.rounds}
    lead = TASKS[name].lead
    assert lead.means(found.rounds) == [c for c in found.rounds if c in lead.means(found.rounds)]


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
    of_accuracy, of_another = (
        {*fedapps.compare(runs, metric=metric).runs} & {*SPREAD} for metric in LEADS
    )
    assert of_accuracy == {*SPREAD} and not of_another, "they are of the metric that led"
    words = ["--output", str(tmp_path / "comparison"), "--latex"]
    assert cli.main(["compare", *map(str, runs), "--metric", "macro_f1", *words]) == 0
    told = capsys.readouterr().out
    assert "macro F1" in told and "accuracy" not in told
    with pytest.raises(RunError, match=r'metric = "mae": a classification has auto, accuracy'):
        fedapps.compare(runs, metric="mae")


def test_runs_with_different_metrics_need_to_be_told_which_one_counts(serial_run):
    run = serial_run(KEYS, "num-rounds=1")
    other = serial_run(KEYS, 'num-rounds=1 metric="balanced"')
    with pytest.raises(RunError) as caught:
        fedapps.compare([run, other])
    told = f"accuracy leads in {run.name}, balanced leads in {other.name}"
    assert str(caught.value) == f"by which metric? {told}; choose one: --metric accuracy"
    assert fedapps.compare([run, other], metric="accuracy").notes


def test_runs_of_different_tasks_are_not_compared(serial_run, tmp_path):
    other, keys = kinds.options(tmp_path, "regression"), 'strategy="fedavg" num-rounds=1'
    runs = serial_run(KEYS, "num-rounds=1"), serial_run(other, keys)
    told = f"{runs[0].name} is a classification, {runs[1].name} is a regression"
    with pytest.raises(RunError) as caught:
        fedapps.compare(runs)
    assert str(caught.value) == f"nothing to compare: {told}; compare runs of the same task"


def test_a_run_goes_on_with_its_own_metric(serial_run):
    folder = serial_run(KEYS, 'num-rounds=1 metric="balanced"')
    resumed = serial_run(KEYS, f'resume="{folder}" num-rounds=2 metric="balanced"')
    assert pd.read_csv(resumed / "rounds.csv").columns[5] == "balanced_initial"
    with pytest.raises(RunError, match="metric"):
        serial_run(KEYS, f'resume="{folder}" num-rounds=3 metric="macro_f1"')


def test_newcomers_are_compared_by_the_metric_that_is_asked_for(serial_run):
    """Their means by others than the leading metric are only in unseen.csv."""
    come = """unseen-clients="3" fraction-train=1.0 """
    runs = [serial_run(KEYS, come, "num-rounds=1", f"seed={seed}") for seed in (0, 1)]
    rounds, unseen = ([pd.read_csv(run / name) for run in runs] for name in ("rounds.csv", UNSEEN))
    for metric in NAMES["classification"]:
        column = f"{metric}_personalized"
        found = fedapps.compare(runs, metric=metric).runs
        those = [table[column].mean() for table in unseen]
        seen = [table[column].iloc[-1] for table in rounds]
        assert list(found[f"{column}_unseen"]) == pytest.approx(those)
        apart = np.subtract(those, seen)
        assert list(found[f"{metric}_difference_unseen"]) == pytest.approx(apart)


def test_a_client_without_the_metric_that_leads_counts_in_no_mean():
    """A client whose targets are all equal has no R2, whether it leads or not."""
    task, draw = TASKS["regression"], torch.Generator().manual_seed(0)
    results = []
    for client, spread in enumerate((1.0, 0.0, 3.0)):
        target = 5 + spread * torch.randn(6, 1, generator=draw)
        before, after = (
            task.count(target + size * torch.randn(6, 1, generator=draw), target)
            for size in (0.5, 0.1)
        )
        results.append(ClientEval(client, 6, 6, 0.1, task, before, after))
    first, led = (
        means(results, columns_of(task.leading(metric))).columns for metric in ("mae", "r2")
    )
    for name in ("r2_initial", "r2_personalized"):
        assert led[name] == pytest.approx(first[name]) and 0 < led[name] < 1
    scores = [r2_of(results[client].after) for client in (0, 2)]
    spread = [led[name] for name in ("r2_personalized_std", "least_personalized")]
    assert spread == pytest.approx([np.std(scores), min(scores)])
    assert led["share_hurt"] == 0
    none = means(results[1:2], columns_of(task.leading("r2"))).columns
    assert none["r2_personalized"] is None and none["mae_personalized"] is not None


@pytest.mark.parametrize("method", ["fedavg", "apfl"])
def test_a_client_without_the_metric_that_leads_is_scored_by_the_others(
    method, serial_run, tmp_path
):
    """It has no figure of this metric either, such as APFL's of the shared model."""
    draws = np.random.default_rng(0)
    inputs = draws.normal(size=(60, 3)).astype(np.float32)
    targets = (inputs @ [1.0, -2.0, 0.5] + draws.normal(size=60)).astype(np.float32)
    of, test = np.repeat(np.arange(4), 15), np.tile(np.arange(15) < 5, 4)
    targets[of == 1] = 3.0
    file = tmp_path / "own.npz"
    arrays = {"inputs": inputs, "targets": targets[:, None], "groups": of}
    np.savez(file, **{
        f"{part}_{name}": array[where]
        for part, where in (("train", ~test), ("test", test))
        for name, array in arrays.items()
    })  # fmt: skip
    keys = f"""dataset="{file}" strategy="{method}" score-last=true model="mlp" num-rounds=2
        partitioner="natural" num-clients=0 min-samples=2 split="official" lr=0.01 """
    first, led = (serial_run(keys, f'metric="{metric}"') for metric in ("auto", "r2"))
    table, same = (pd.read_csv(folder / "rounds.csv") for folder in (led, first))
    assert list(table["evaluated"]) == [4, 4] and table["failures"].sum() == 0
    assert list(table["mae_personalized"]) == list(same["mae_personalized"])
    clients = pd.read_csv(led / "clients.csv")
    last = clients[clients["round"] == 2]["r2_last_local"]
    assert last.isna().sum() == 1 and table["r2_last_local"].iloc[-1] == pytest.approx(last.mean())


def r2_of(counts):
    return 1 - counts["squared"][0] / counts["spread"][0]


def test_the_table_of_classes_has_what_is_right_of_each_whatever_leads(serial_run):
    """That share is the accuracy of a class, not its F1."""
    whole, led = (
        serial_run(KEYS, "num-rounds=2", f'metric="{metric}"') for metric in ("auto", "macro_f1")
    )
    assert (led / "classes.csv").read_bytes() == (whole / "classes.csv").read_bytes()
    charts = run_charts.classes(RunFiles.read(led))
    assert [chart.title for chart in charts] == ["Accuracy of every class"]


def test_runs_that_their_metric_has_ended_are_different_settings(flat_config):
    by = {
        (keys, metric): changes.counting(flat_config(KEYS, keys, f'metric="{metric}"'))
        for keys in ("patience=0", "patience=3")
        for metric in LEADS
    }
    assert by["patience=0", LEADS[0]] == by["patience=0", LEADS[1]]
    assert by["patience=3", LEADS[0]] != by["patience=3", LEADS[1]]
