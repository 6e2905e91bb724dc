import json
import math
import os
import re
from copy import copy
from dataclasses import fields, replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
import torch
from flwr.common.config import parse_config_args
from safetensors.numpy import load_file
from sklearn.metrics import f1_score

from fedapps.core import config, registry
from fedapps.core.errors import RunError
from fedapps.core.files import held
from fedapps.core.privacy_settings import SEEDED
from fedapps.engine.metrics import MetricChecks
from fedapps.method.figures import EventPlot, Figure, given
from fedapps.report import columns, directory, event_plots, page, plots
from fedapps.report.caption import Caption
from fedapps.report.columns import MEASURED
from fedapps.report.progress import TimeLeft, progress_line
from fedapps.report.rows import ClientEval, Means, class_sums, means
from fedapps.report.summary import print_summary, summarize, unseen
from fedapps.report.units import byte_unit, clock, human_bytes
from fedapps.tasks import CLASSIFICATION, TASKS
from fedapps.training.workspace import Workspace
from tests.support.reports import (
    ARRAYS,
    FLAT,
    axes_of,
    drawn,
    make_report,
    make_results,
    make_row,
    make_settings,
    of_classes,
    run_to_end,
)

LEAD = CLASSIFICATION.lead
FURTHER = [metric.name for metric in CLASSIFICATION.metrics if metric is not LEAD]

ROUND_COLUMNS = (
    "round,phase,clients,failures,train_loss,accuracy_initial,accuracy_without_head,"
    "accuracy_personalized,accuracy_personalized_std,accuracy_initial_weighted,"
    "accuracy_personalized_weighted,bytes_down,bytes_up,bytes_eval,train_macs,cost_paper,seconds,"
    "accuracy_last_local,accuracy_last_local_weighted,epsilon,evaluated,accuracy_global,leak,"
    "decile_personalized,least_personalized,share_hurt,"
) + ",".join(f"{name}_personalized,{name}_initial" for name in FURTHER)


def read_exactly(path):
    """Read numbers as Python does; some releases of pandas lose the last digit."""
    table = pd.read_csv(path, dtype=str)
    return table.apply(lambda column: column if column.name == "phase" else column.astype(float))


def read_summary(report):
    def refuse(word):
        raise AssertionError(f"{word} is no JSON")

    return json.loads((report.folder / "summary.json").read_text(), parse_constant=refuse)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return run_to_end(tmp_path_factory.mktemp("runs"), note=np.float32(0.5), bad=float("nan"))


# Creation


def test_config_reads_back_as_flower_reads_it(tmp_path):
    path = make_report(tmp_path).folder / "config.toml"
    assert parse_config_args([str(path)]) == {**FLAT, "run-name": ""}
    kinds = {key: type(value) for key, value in parse_config_args([str(path)]).items()}
    assert kinds == {key: type(value) for key, value in FLAT.items()}


def test_tables_have_their_headers_from_the_start(tmp_path):
    folder = make_report(tmp_path).folder
    heads = {path.name: path.read_text() for path in folder.glob("*.csv")}
    assert heads == {
        "rounds.csv": ROUND_COLUMNS + "\n",
        "clients.csv": ",".join(
            ["round", *(column.name for column in MEASURED)]
            + ["accuracy_initial", "accuracy_personalized", "accuracy_last_local"]
            + [f"{name}_{when}" for name in FURTHER for when in ("initial", "personalized")]
        )
        + "\n",
        "events.csv": "round,client,kind,detail\n",
    }


def test_create_prints_the_absolute_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(tmp_path))
    report = make_report("~/runs", "a")
    assert report.folder == tmp_path / "runs/a"
    assert capsys.readouterr().out == f"run directory: {tmp_path}/runs/a\n"


def test_unnamed_runs_get_names_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setattr(directory.time, "strftime", lambda _: "20260102-030405")
    names = [make_report(tmp_path, "", dataset="/d/my data.npz").folder.name for _ in range(3)]
    changed = "lr=0.30000000000000004-momentum=1e+16-num-rounds=3-finetune-lr="
    base = f"fedrep-my-data-{changed}-s7-20260102-030405"
    assert names == [base, f"{base}-2", f"{base}-3"]
    monkeypatch.undo()
    assert re.fullmatch(r"fedrep-digits-.*-s7-\d{8}-\d{6}", make_report(tmp_path, "").folder.name)


def test_the_two_files_of_settings_say_what_they_are_for(tmp_path):
    folder = make_report(tmp_path).folder
    files = ("config.toml", "resume.toml")
    first = [(folder / name).read_text().partition("\n")[0] for name in files]
    use = "this run: fedapps serial -c <this file> (or flwr run . --run-config <this file>)"
    assert first == [f"# To repeat {use}", f"# To go on with {use}"]


def test_an_existing_name_is_refused_and_only_a_broken_run_may_be_deleted_for_it(tmp_path):
    """Not one that has finished without a checkpoint, nor one that another process is in.

    Also a name that another process has taken since the run was checked.
    """
    told = r"exists; use another name or \"\""
    broken, finished = make_report(tmp_path).folder, run_to_end(tmp_path, "finished").folder
    before = (broken / "config.toml").read_bytes()
    which = rf'run-name = "run": .*/run {told}, or delete it, as it has no checkpoint'
    with pytest.raises(RunError, match=which):
        make_report(tmp_path)
    assert (broken / "config.toml").read_bytes() == before
    with held(broken), pytest.raises(RunError, match=f"{told}$"):
        make_report(tmp_path)
    with pytest.raises(RunError, match=f"{told}$"):
        make_report(tmp_path, "finished")
    (finished / directory.CHECKPOINTS).mkdir()
    (finished / directory.CHECKPOINTS / "round-000001.fedapps").touch()
    with pytest.raises(RunError, match=f'{told}, or go on with that run: resume="{finished}"$'):
        make_report(tmp_path, "finished")


@pytest.mark.parametrize("of", [Path.is_file, os.listdir], ids=["run", "checkpoints"])
def test_a_name_that_another_users_private_run_has_is_taken(of, tmp_path, monkeypatch):
    """The folder of a run can be open to all, but that of its checkpoints is not."""
    folder = make_report(tmp_path).folder

    def private(path, *_):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os if of is os.listdir else Path, of.__name__, private)
    with pytest.raises(RunError, match=r"exists; use another name or \"\"$"):
        make_report(tmp_path)
    with pytest.raises(RunError, match=r"exists; use another name or \"\"$"):
        directory.check_new(folder.parent, folder.name)


# Rounds, evaluations, events


def test_a_field_of_an_evaluation_is_a_column():
    """A new one would else be measured, sent and checked, and be in no table."""
    of_task = {"task", "before", "after", "figures"}
    assert {f.name for f in fields(ClientEval)} - of_task == {column.name for column in MEASURED}


def test_rows_appear_at_once_and_exactly(tmp_path):
    report = make_report(tmp_path)
    report.round(make_row(1))
    report.round(make_row(2, accuracy_initial=1 / 3, phase="finetune"))
    table = read_exactly(report.folder / "rounds.csv")
    assert table["train_loss"].tolist() == [0.1 + 0.2] * 2
    assert table["accuracy_initial"].isna().tolist() == [True, False]
    assert table["accuracy_initial"][1] == 1 / 3
    assert table["phase"].tolist() == ["train", "finetune"]
    assert "0.30000000000000004,,,,,,,1234567" in (report.folder / "rounds.csv").read_text()


def test_evaluation_figures_against_pandas(tmp_path):
    report, results = make_report(tmp_path), make_results()
    found = report.evaluation(4, results)
    assert found.evaluated == len(results)
    figures = dict(found.columns)
    assert figures.pop("accuracy_global") is figures.pop("leak") is None  # that nobody gave
    table = pd.DataFrame([result.flat() for result in results])
    weights = table["num_test"] / table["num_test"].sum()
    after = table["accuracy_personalized"]
    plain = ["accuracy_initial", "accuracy_without_head", "accuracy_last_local",
             "accuracy_personalized"]  # fmt: skip
    plain += [f"{name}_{when}" for name in FURTHER for when in ("initial", "personalized")]
    weighted = ("accuracy_last_local", "accuracy_initial", "accuracy_personalized")
    expected = {name: table[name].mean() for name in plain}  # tests/tasks has the clients' values
    expected |= {f"{name}_weighted": (table[name] * weights).sum() for name in weighted}
    expected |= {
        f"balanced_{when}": balanced(results, when) for when in ("initial", "personalized")
    }
    assert figures == pytest.approx(expected | {
        "accuracy_personalized_std": after.std(ddof=0), "decile_personalized": after.quantile(0.1),
        "least_personalized": after.sort_values().iloc[0],
        "share_hurt": (after < table["accuracy_initial"]).mean(),
    })  # fmt: skip
    assert len({round(value, 9) for value in figures.values()}) == len(figures)
    assert set(figures) < set(ROUND_COLUMNS.split(","))


def balanced(results, when):
    """The mean over clients of a client's mean accuracy over its classes."""
    counts = [result.before if when == "initial" else result.after for result in results]
    return np.mean(
        [np.mean([r / n for r, n in zip(c["right"], c["total"], strict=True) if n]) for c in counts]
    )


def test_a_client_whose_accuracy_stays_as_it_is_was_not_hurt(tmp_path):
    before, *_ = make_results()
    counts = [of_classes([4, 4], [2, 2 + change]) for change in (-1, 0, 0, 1)]
    results = [replace(before, before=counts[1], after=after) for after in counts]
    assert make_report(tmp_path).evaluation(1, results).columns["share_hurt"] == 0.25


def test_clients_are_written_exactly_and_in_order(tmp_path):
    report, results = make_report(tmp_path), make_results()
    report.evaluation(4, results)
    written = read_exactly(report.folder / "clients.csv")
    table = pd.DataFrame([result.flat() for result in results]).sort_values("client")
    expected = table[list(written.columns[1:])].reset_index(drop=True)
    pd.testing.assert_frame_equal(
        written.drop(columns="round"), expected, check_dtype=False, check_exact=True
    )
    assert set(written["round"]) == {4}


def test_order_of_results_changes_nothing(tmp_path):
    results = make_results(clients=50)
    one, two = make_report(tmp_path, "one"), make_report(tmp_path, "two")
    assert one.evaluation(1, results) == two.evaluation(1, results[::-1])


def test_evaluation_without_head_or_clients(tmp_path):
    report = make_report(tmp_path)
    results = [replace(result, figures={}) for result in make_results()]
    assert report.evaluation(1, results).columns["accuracy_without_head"] is None
    nobody = report.evaluation(2, [])
    assert {nobody.evaluated, *nobody.columns.values()} == {None}


def test_events_are_one_line_each(tmp_path):
    report = make_report(tmp_path)
    report.event(3, 12, "failure", 'ValueError: "a",\n  b\r\n')
    report.event(3, "server", "vote", "head \udcff")
    table = pd.read_csv(report.folder / "events.csv", dtype=str)
    assert table.to_numpy().tolist() == [
        ["3", "12", "failure", 'ValueError: "a", b'],
        ["3", "server", "vote", "head \\udcff"],
    ]
    assert len((report.folder / "events.csv").read_text().splitlines()) == 3


# Progress


def test_progress_line_says_what_happened():
    row = make_row(12, train_loss=0.4121, accuracy_initial=0.871, accuracy_personalized=0.934)
    assert progress_line(row, 30, 7.2, LEAD) == (
        "round 12/30  loss 0.412  acc 0.871 -> 0.934  up  1.2 MB  down 1.23 MB    0.4 s  left 0:07"
    )


def test_progress_lines_align():
    known = {"accuracy_initial": 0.5, "accuracy_personalized": 0.6}
    rows = [
        make_row(1, bytes_up=999_499, bytes_down=12),
        make_row(20, train_loss=12.3456, **known),
        make_row(300, train_loss=None, bytes_up=10**12, seconds=123.4, **known),
    ]
    lines = [progress_line(row, 300, 60, LEAD) for row in rows]
    for word in ("up ", "down ", " s"):
        assert len({line.index(word) for line in lines}) == 1


@pytest.mark.parametrize("phase", ["train", "train-warmup", "a-very-long-phase-of-some-method"])
@pytest.mark.parametrize("loss", [None, 0.5, 123456.0, -1e30, float("nan"), float("inf")])
@pytest.mark.parametrize("failures", [0, 1234])
def test_progress_line_fits(phase, loss, failures):
    row = make_row(
        10000, phase=phase, train_loss=loss, failures=failures, bytes_up=999_000_000_000,
        bytes_down=10**30, seconds=98765.4, accuracy_initial=0.5, accuracy_personalized=1.0,
    )  # fmt: skip
    line = progress_line(row, 99999, 1e6, LEAD)
    assert len(line) <= 100
    assert line.isprintable()


def test_failures_are_shown():
    assert progress_line(make_row(failures=2), 9, 1, LEAD).endswith("left 0:01  2 failed")
    assert "left" not in progress_line(make_row(9), 9, 0, LEAD)


def test_rounds_print_as_they_end(tmp_path, capsys):
    report = make_report(tmp_path)
    capsys.readouterr()
    report.round(make_row(1))
    out = capsys.readouterr().out
    assert out.startswith("round 1/3") and out.endswith("left 0:01\n") and out.count("\n") == 1


@pytest.mark.parametrize(("of", "value", "text"), [
    (clock, 0, "0:00"), (clock, 59.6, "1:00"), (clock, 3599, "59:59"), (clock, 3723, "1:02:03"),
    (human_bytes, 0, "0 B"), (human_bytes, 999, "999 B"), (human_bytes, 999.6, "1 kB"),
    (human_bytes, 999_499, "999 kB"), (human_bytes, 999_500, "1 MB"),
    (human_bytes, 1_234_567, "1.23 MB"), (human_bytes, 45e9, "45 GB"),
    (human_bytes, 10**30, "1e+12 EB"), (byte_unit, 0, (1, "B")), (byte_unit, 999, (1, "B")),
    (byte_unit, 1e3, (1000, "kB")), (byte_unit, 5e6, (10**6, "MB")),
])  # fmt: skip
def test_units(of, value, text):
    assert of(value) == text


@pytest.mark.parametrize("every", [0, 1, 4, 7, 40])
def test_time_left_knows_the_evaluation_rounds(every):
    rounds, left = 30, TimeLeft(make_settings(num_rounds=30, evaluate_every=every))
    evaluated = {r for r in range(1, rounds + 1) if (every and r % every == 0) or r == rounds}
    cost = {r: 5.0 if r in evaluated else 1.0 for r in range(1, rounds + 1)}
    for round_ in range(1, rounds + 1):
        known = {"accuracy_personalized": 0.5} if round_ in evaluated else {}
        left.add(make_row(round_, seconds=cost[round_], **known))
        if evaluated & set(range(1, round_ + 1)):  # it has seen one
            assert left.after(round_) == sum(cost[r] for r in range(round_ + 1, rounds + 1))


def test_time_left_knows_the_further_rounds_that_are_scored():
    """Without personalization, they take less time than others that are scored."""
    further = {2, 3, 4, 15, 16, 17}
    settings = make_settings(num_rounds=20, evaluate_every=10, further_rounds=further | {20})
    left, due = TimeLeft(settings), {10, 20}
    cost = {r: 3.0 if r in further else 5.0 if r in due else 1.0 for r in range(1, 21)}
    for round_ in range(1, 21):
        known = {"accuracy_initial": 0.4} if cost[round_] > 1 else {}
        known |= {"accuracy_personalized": 0.5} if round_ in due else {}
        left.add(make_row(round_, seconds=cost[round_], **known))
        ahead = range(round_ + 1, 21)
        missing = 2.0 * len(due & {*ahead})  # the nearest known time is that of further ones
        if round_ > 1:
            assert left.after(round_) == sum(cost[r] for r in ahead) - missing * (round_ < 10)


def test_time_left_withstands_slow_rounds():
    left = TimeLeft(make_settings(num_rounds=100, evaluate_every=0))
    for round_ in range(1, 11):
        left.add(make_row(round_, seconds=500 if round_ in (1, 6) else 1.0))
    assert left.after(10) == 90
    assert left.after(101) == 0


# The end


def test_classes_pool_all_clients(finished):
    table = read_exactly(finished.folder / "classes.csv")
    results = make_results(seed=3)
    total = sum(result.after["total"] for result in results)
    right = sum(result.after["right"] for result in results)
    assert list(table) == ["class", "num_test", "accuracy_initial", "accuracy_personalized"]
    assert table["num_test"].tolist() == total.tolist()
    assert table["accuracy_personalized"][1:].tolist() == (right[1:] / total[1:]).tolist()
    assert table.iloc[0, 2:].isna().all()  # no test sample, no accuracy


def test_summary_holds_last_row_totals_and_best(finished):
    summary = read_summary(finished)
    table = read_exactly(finished.folder / "rounds.csv")
    last = table.iloc[-1].drop("seconds").to_dict()
    last = {name: None if pd.isna(value) else value for name, value in last.items()}
    assert {name: summary[name] for name in last} == last
    for name in ("bytes_down", "bytes_up", "bytes_eval", "train_macs", "cost_paper", "failures"):
        assert summary[f"total_{name}"] == table[name].sum()
    best = table["accuracy_personalized"].idxmax()
    assert summary["best_accuracy_personalized"] == table["accuracy_personalized"][best]
    assert summary["best_accuracy_personalized_round"] == table["round"][best]
    assert (summary["strategy"], summary["dataset"], summary["seed"]) == ("fedrep", "digits", 7)
    assert set(summary["versions"]) == {"python", "torch", "flwr", "numpy", "fedapps"}
    assert re.match(r"\d", summary["versions"]["fedapps"])
    model, _, instructions = summary["cpu"].rpartition(", ")
    assert model and instructions == torch.backends.cpu.get_cpu_capability()
    assert summary["note"] == 0.5 and summary["bad"] is None
    assert summary["seconds"] > 0


def test_model_reads_back_and_its_bytes_depend_on_nothing_but_the_arrays(finished):
    loaded = load_file(finished.folder / "model.safetensors")
    assert loaded.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert loaded[name].dtype == array.dtype
        np.testing.assert_array_equal(loaded[name], array)
    turned = dict(reversed(ARRAYS.items()))
    assert directory.model_bytes(ARRAYS) == directory.model_bytes(turned)
    assert b"__metadata__" not in directory.model_bytes(ARRAYS)
    assert directory.model_bytes({})


def test_the_model_is_on_the_drive_before_a_summary_or_a_ledger_says_that_it_is_there(
    tmp_path, monkeypatch
):
    """Else a power cut could leave an empty file, from which the next night would start."""
    done, fsync, replace = [], os.fsync, os.replace

    def synced(handle):
        done.append(os.fstat(handle).st_ino)
        fsync(handle)

    def replaced(source, target, **more):
        done.append(Path(target).name)
        replace(source, target, **more)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    folder = run_to_end(tmp_path).folder
    model = folder / "model.safetensors"
    order = [done.index(what) for what in (model.stat().st_ino, model.name, "summary.json")]
    assert order == sorted(order)
    assert folder.stat().st_ino in done[order[1] : order[2]]  # the file's name


def test_same_run_gives_the_same_files(finished, tmp_path):
    other = run_to_end(tmp_path, note=np.float32(0.5), bad=float("nan"))
    ours, theirs = (
        {p.relative_to(r.folder): p.read_bytes() for p in r.folder.rglob("*") if p.is_file()}
        for r in (finished, other)
    )
    summaries = [json.loads(files.pop(Path("summary.json"))) for files in (ours, theirs)]
    ids = {json.loads(files.pop(Path("run.json")))["id"] for files in (ours, theirs)}
    assert len(ids) == 2  # what tells two runs of one name apart
    ends = [files.pop(Path("resume.toml")) for files in (ours, theirs)]
    assert ends[0] != ends[1]  # the directories
    for summary in summaries:
        summary.pop("seconds")
    pages = [files.pop(Path("report.html")) for files in (ours, theirs)]  # with time and folder
    assert all(page.startswith(b"<!doctype html>") for page in pages)
    assert ours == theirs
    assert summaries[0] == summaries[1]
    assert not [name for name in ours if name.name.startswith(".")]


def test_end_prints_table_and_leaves_the_folder_to_the_engine(tmp_path, capsys):
    report = run_to_end(tmp_path)
    out = capsys.readouterr().out
    assert out.count(str(report.folder)) == 1  # when the run began
    table = out[out.rindex("round 3/3") :]
    means = report.rows[-1].means.columns
    mean, std = (means[f"accuracy_personalized{x}"] for x in ("", "_std"))
    for text in ("fedrep", "digits", f"{mean:.4f} ± {std:.4f}", "3.7 MB down", "3 G", "failures"):
        assert text in table
    assert max(map(len, table.splitlines()[:-1])) <= 100
    assert "\x1b" not in out


def test_the_table_at_the_end_shows_errors_of_any_magnitude(capsys):
    known, settings = columns.columns_of(TASKS["regression"]), make_settings()
    values = {"mae_initial": 0.21, "mae_personalized": 3.21e-5, "mae_personalized_std": 4.5e-6,
              "mse_initial": 1.5e9, "mse_personalized": 1.234567e-9}  # fmt: skip
    means = Means(initial=0.21, personalized=3.21e-5, columns=values)
    rows = [make_row(1, means=means)]
    new = [{"mae_initial": "0.25", "mae_personalized": "0.0000521"}]
    print_summary(summarize(settings, rows, known, 1.0, new), settings, known)
    told = " ".join(capsys.readouterr().out.split())
    for text in (
        "mean absolute error initial 0.21", "personalized 3.21e-05 ± 4.5e-06 over clients",
        "0.25 initial, 5.21e-05 personalized, difference 2e-05",
        "1.5e+09 initial, 1.235e-09 personalized", "- initial, - personalized",
    ):  # fmt: skip
        assert text in told


def test_the_table_at_the_end_shortens_a_long_setting(capsys):
    """Such as the categories of a column: thousands of them would hide all scores."""
    texts = "|".join(f"item-{number}" for number in range(3000))
    settings = config.read(config.parse([f'columns="a,kind:{texts}" lr=0.25']))
    known = columns.columns_of(CLASSIFICATION)
    summary = summarize(settings, [make_row(1)], known, 1.0)
    assert summary["changed"]["columns"].endswith("|item-2999")
    print_summary(summary, settings, known)
    lines = capsys.readouterr().out.splitlines()
    told = "".join(line[20:].strip() for line in lines)
    assert "item-9|" in told and "lr=0.25" in told and "item-99" not in told
    assert len(lines) < 30


@pytest.mark.parametrize(
    ("due", "told"), [(10, "0.8 over 9 of 10 clients"), (9, "0.8 over clients")]
)
def test_the_table_at_the_end_says_if_clients_are_missing_in_its_scores(due, told, capsys):
    known, settings = columns.columns_of(TASKS["regression"]), make_settings()
    values = {"mae_initial": 1.5, "mae_personalized": 0.5, "mae_personalized_std": 0.8}
    rows = [make_row(1, means=Means(initial=1.5, evaluated=9, columns=values))]
    print_summary(summarize(settings, rows, known, 1.0) | {"evaluated_of": due}, settings, known)
    assert f"personalized 0.5 ± {told} " in " ".join(capsys.readouterr().out.split())


def test_the_table_at_the_end_has_the_score_over_the_samples_of_all_clients(capsys):
    """F1 of all labels together (by scikit-learn) is no mean over clients, so it is not called so.

    The second client has three times as many samples, and more of its labels apply.
    """
    task, settings, draws = TASKS["multilabel"], make_settings(), np.random.default_rng(0)
    parts, known = [slice(0, 10), slice(10, 40)], columns.columns_of(TASKS["multilabel"])
    truth = draws.random((40, 3)) < np.repeat([0.2, 0.8], [10, 30])[:, None]
    found = [truth ^ (draws.random(truth.shape) < share) for share in (0.4, 0.2)]
    results = [
        ClientEval(client, 5, part.stop - part.start, 0.5, task, *(
            task.count(torch.from_numpy(right[part] - 0.5), torch.from_numpy(truth[part]))
            for right in found
        ))
        for client, part in enumerate(parts)
    ]  # fmt: skip
    rows = [make_row(1, means=means(results, known))]
    print_summary(summarize(settings, rows, known, 1.0), settings, known)
    lines = capsys.readouterr().out.splitlines()
    (told,) = (line.split() for line in lines if "over all test samples" in line)
    scores = [f1_score(truth, right, average="micro") for right in found]
    weights = [10, 30]
    apart = [f1_score(truth[part], found[0][part], average="micro") for part in parts]
    assert abs(np.average(apart, weights=weights) - scores[0]) > 0.01
    assert [told[4], told[6]] == [f"{score:.4f}" for score in scores]


@pytest.mark.parametrize("secure", [True, False])
def test_the_table_at_the_end_says_if_the_server_saw_only_sums(secure, capsys):
    settings, known = make_settings(secure_sum=secure), columns.columns_of(TASKS["classification"])
    print_summary(summarize(settings, [make_row(1)], known, 1.0), settings, known)
    assert ("secure sum" in capsys.readouterr().out) == secure


@pytest.mark.parametrize(("secret", "spent"), [(True, 2.5), (False, 2.5), (True, math.inf)])
def test_the_table_at_the_end_says_what_an_epsilon_is_worth(secret, spent, tmp_path, capsys):
    """An epsilon without limit is no privacy, and one of noise from the seed holds for nobody."""
    keys = {"dp.mode": "central", "dp.secret-noise": secret}
    dp = config.read(config.defaults() | keys).dp
    report = make_report(tmp_path, num_rounds=1, dp=dp)
    report.round(make_row(1, epsilon=spent))
    report.finish(ARRAYS, {"runs_of_federation": 2, "epsilon_of_federation": math.inf})
    summary = json.loads((report.folder / "summary.json").read_text("utf-8"))
    assert float(summary["epsilon"]) == spent and summary["epsilon_of_federation"] == "inf"
    told = [line for line in capsys.readouterr().out.splitlines() if "epsilon" in line]
    assert f"{spent:.4g}" in told[0] and "inf in 2 runs" in told[1]
    assert [SEEDED in line for line in told] == [not secret] * 2


@pytest.mark.parametrize(("right", "more", "told"), [
    ((300, 0), {}, True),  # accuracy 0.9, always "no"
    ((296, 1), {}, True),
    ((295, 5), {}, False),  # balanced accuracy 0.567, but accuracy 0.9
    ((150, 17), {}, False),  # guesses: nothing hides behind an accuracy of 0.5
    ((300, 0), {"metric": "balanced"}, False),
    ((34, 0), {"counts": (34, 33)}, False),  # both classes are about as frequent
])  # fmt: skip
@pytest.mark.parametrize("names", [(), ("no", "yes")])
def test_a_run_whose_models_say_one_class_ends_with_a_note(right, more, told, names, capsys):
    """Accuracies of 0.1 before personalization do not matter."""
    task = CLASSIFICATION.leading(more.get("metric", "auto"))
    counts, known = more.get("counts", (300, 33)), columns.columns_of(task, (), names)
    few, some = (np.array(counts) // 10, np.array(right))
    result = ClientEval(
        0, 5, sum(counts), 0.5, task, of_classes(np.array(counts), few),
        of_classes(np.array(counts), some),
    )  # fmt: skip
    rows = [make_row(1, means=means([result], known))]
    settings = make_settings()
    summary = summarize(settings, rows, known, 1.0)
    print_summary(summary, settings, known, class_sums([result]))
    last = capsys.readouterr().out.splitlines()[-1]
    name = "no" if names else "0"
    assert last.startswith("note: ") == told
    assert not told or f"the most frequent class, {name}; metric=balanced " in last


@pytest.mark.parametrize(("metrics", "told"), [
    (("accuracy", "macro_f1"), "class, 0; metric=macro_f1 counts classes alike"),
    (("accuracy",), "class, 0"),
])  # fmt: skip
def test_that_note_names_the_metric_that_the_task_has(metrics, told, capsys):
    task, counts = copy(CLASSIFICATION), np.array((300, 33))
    task.metrics = tuple(known for known in task.metrics if known.name in metrics)
    scored = of_classes(counts, np.array((300, 0)))
    results, known = [ClientEval(0, 5, 333, 0.5, task, scored, scored)], columns.Columns(task, ())
    settings, rows = make_settings(), [make_row(1, means=means(results, known))]
    summary = summarize(settings, rows, known, 1.0)
    print_summary(summary, settings, known, class_sums(results))
    assert capsys.readouterr().out.splitlines()[-1].endswith(told)


def test_run_that_was_never_evaluated_ends_well(tmp_path, capsys):
    report = make_report(tmp_path, dataset="[bold]/x.npz")
    report.round(make_row(1, train_loss=float("nan")))
    report.finish({}, {})
    summary = read_summary(report)
    assert summary["accuracy_personalized"] is None and summary["train_loss"] is None
    assert not [name for name in summary if name.startswith("best")]
    assert "[bold]/x.npz" in capsys.readouterr().out
    assert list((report.folder / "plots").iterdir()) == []
    assert (report.folder / "events.csv").read_text().count("\n") == 1


@pytest.mark.parametrize(("module", "draw", "kind", "told"), [
    (plots, "draw_all", "plot", "plots not drawn"), (page, "render", "page", "page not written"),
])  # fmt: skip
def test_pictures_or_a_page_that_fail_cost_an_event_only(
    module, draw, kind, told, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(module, draw, Mock(side_effect=ValueError("no\nfont")))
    report = run_to_end(tmp_path)
    for name in ("summary.json", "model.safetensors", "classes.csv"):
        assert (report.folder / name).exists()
    assert (report.folder / "report.html").exists() == (kind == "plot")
    events = pd.read_csv(report.folder / "events.csv").to_numpy().tolist()
    assert events == [[3, "server", f"{kind}-failed", "ValueError: no font"]]
    assert f"{told}: ValueError: no font\n" in capsys.readouterr().out


# What methods declare


def figure(name, **changes):
    return Figure(name, "a toy", **changes)


@pytest.fixture
def declare(monkeypatch):
    """Give figures and plots to a method that has none, and forget them afterwards."""

    def give(*figures, plots=()):
        method = registry.strategy_class("fedper")
        monkeypatch.setattr(method, "figures", figures)
        monkeypatch.setattr(method, "plots", plots)
        columns.columns_of.cache_clear()

    yield give
    columns.columns_of.cache_clear()


@pytest.mark.parametrize("strategy", ["fedper", "fedavg"])
def test_a_figure_of_any_method_is_a_column_behind_the_others(tmp_path, declare, strategy):
    declare(figure("entropy", high=9.0), figure("regret", weighted=True, per_client=True, low=-5.0))
    report = make_report(tmp_path, strategy=strategy, num_rounds=1)
    results = make_results()
    regrets = {result.client: float(result.client**2 - 5) for result in results[:3]}
    for result in results:
        told = {"entropy": 0.5 + result.client}
        told |= {"regret": regrets[result.client]} if result.client in regrets else {}
        result.figures |= told
    report.round(make_row(means=report.evaluation(1, results)))
    report.finish({}, {})

    table = read_exactly(report.folder / "rounds.csv")
    known = ROUND_COLUMNS.split(",")
    assert [name for name in table if name in known] == known
    base = known.index("evaluated") + 1  # behind which the figures of all methods stand
    assert set(list(table)[base:]) == {*known[base:], "entropy", "regret", "regret_weighted"}
    assert list(table)[:base] == known[:base]
    sizes = {result.client: result.num_test for result in results}
    weighted = sum(regrets[c] * sizes[c] for c in regrets) / sum(sizes[c] for c in regrets)
    assert table["entropy"][0] == pytest.approx(sum(0.5 + c for c in range(5)) / 5)
    assert table["regret"][0] == pytest.approx(sum(regrets.values()) / 3)
    assert table["regret_weighted"][0] == pytest.approx(weighted)
    clients = read_exactly(report.folder / "clients.csv")
    assert list(clients)[list(clients).index("accuracy_last_local") + 1] == "regret"
    given = clients.set_index("client")["regret"].dropna()
    assert given.to_dict() == regrets
    summary = read_summary(report)
    assert summary["regret"] == table["regret"][0]
    assert not {"best_regret", "best_entropy"} & summary.keys()


def test_the_best_round_of_an_accuracy_that_a_method_declares(tmp_path, declare):
    declare(figure("toy", of_metric=True))
    report = make_report(tmp_path)
    for round_, value in enumerate([0.2, 0.7, None], 1):
        report.round(make_row(round_, means=Means(columns={"accuracy_toy": value})))
    report.finish({}, {})
    summary = read_summary(report)
    assert (summary["best_accuracy_toy"], summary["best_accuracy_toy_round"]) == (0.7, 2)
    assert summary["accuracy_toy"] is None


def test_a_figure_with_a_label_has_a_curve_and_a_summary_line(tmp_path, declare, capsys):
    declare(figure("toy", label="as a toy", of_metric=True), figure("other", of_metric=True))
    report, results = make_report(tmp_path, num_rounds=2), make_results()
    for result in results:
        result.figures = {"accuracy_toy": 0.25, "accuracy_other": 0.5}
    for round_ in (1, 2):
        report.round(make_row(round_, means=report.evaluation(round_, results)))
    report.finish({}, {})
    out = capsys.readouterr().out
    assert re.search(r"accuracy as a toy +0\.2500", out) and "without head" not in out
    evaluated = plots.evaluated_rounds(pd.read_csv(report.folder / "rounds.csv"), LEAD)
    _, lines = axes_of(plots.draw_scores(evaluated, report.columns.figures, Caption()))
    assert set(lines) >= {"initial", "as a toy", "personalized"}
    assert not [label for label in lines if "other" in label or "without head" in label]
    assert lines["as a toy"].get_ydata().tolist() == [25.0, 25.0]


@pytest.mark.parametrize("value", [-2.0, 0.0, 3.0, 3])
def test_a_figure_within_its_range_is_read(value):
    read = given([figure("toy", low=-2.0, high=3.0)], {"toy": value, "unknown": 7})
    assert read == {"toy": float(value)} and type(read["toy"]) is float


def test_a_figure_of_the_metric_has_its_name_and_bounds():
    told = {"toy": 0.5}
    assert given([figure("toy", of_metric=True).named(LEAD)], told) == {"accuracy_toy": 0.5}
    error = figure("toy", of_metric=True).named(TASKS["regression"].lead)
    assert given([error], {"toy": 40}) == {"mae_toy": 40.0}
    assert given([error], {}) == {}


@pytest.mark.parametrize("value", [-2.1, 3.1, float("nan"), float("inf"), "much", [1.0], True])
def test_a_figure_out_of_its_range_is_refused(value):
    bounds = "must be a finite float from -2 to 3 (low and high of its Figure)"
    with pytest.raises(ValueError, match=rf"^toy = {re.escape(f'{value!r}: {bounds}')}$"):
        given([figure("toy", low=-2.0, high=3.0)], {"toy": value})


@pytest.mark.parametrize(("metrics", "figures", "told"), [
    (["accuracy", "accuracy_top5"], [],
     "metric accuracy_top5: columns that begin with accuracy_ are those of the metric accuracy"),
    (["top5", "accuracy_top5", "accuracy"], [], "metric accuracy_top5: .* rename"),
    (["train"], [], "column train_loss: columns that begin with train_ are those of the metric"),
    (["mae"], ["mae_drift"], "column mae_drift: columns that begin with mae_ are .* rename"),
])  # fmt: skip
def test_what_begins_like_the_columns_of_a_metric_is_one_of_them(metrics, figures, told):
    """So it is one question which metric a column has, wherever it is asked."""
    task = copy(CLASSIFICATION)
    task.metrics = tuple(replace(LEAD, name=name) for name in metrics)
    with pytest.raises(RunError, match=told):
        columns.Columns(task, tuple(Figure(name, "x") for name in figures))


@pytest.mark.parametrize(("wrong", "told"), [
    (figure("mae_local"), "column mae_local: columns that begin with mae_ are those of the metric"),
    (figure("seconds"), r"figure seconds: rounds\.csv has another column of this name; rename it"),
    (figure("late", after="never"), r'figure late: after = "never": must be one of round, '),
    (figure("virtual_seconds"), r"figure virtual_seconds: rounds\.csv has another column of this"),
    (figure("num_test", per_client=True), r"figure num_test: clients\.csv has another column of"),
    (figure("loss"), r"figure loss: clients\.csv has another column of this name; rename it"),
    (figure("name", per_client=True), r"figure name: clients\.csv has another column of this name"),
    (figure("finetune_macs"), "figure finetune_macs: a client's reply has another value of this"),
    (figure("initial_squared"), "figure initial_squared: a client's reply has another value of"),
    (figure("num_train", of_metric=True), "figure num_train: a client's reply has another value"),
    (figure("last_local"), "figure last_local: a client's reply has another value of this name"),
    (figure("toy_weighted"), r"figure toy_weighted: rounds\.csv has another column of this name"),
    (figure("mae_without_head", low=-1), "figure mae_without_head: fedapps declares it differ"),
    (figure("toy", weighted=True, high=9), "figure toy: fedper declares it differently; rename"),
])  # fmt: skip
def test_a_figure_that_is_no_column_concerns_its_method_alone(declare, wrong, told):
    """Runs of others start, and their finished ones are plotted; the line says whose it is."""
    task, toy = TASKS["regression"], figure("toy", weighted=True)
    declare(toy)
    before = columns.columns_of(task).rounds
    declare(toy, wrong)
    assert "toy" in before and columns.columns_of(task).rounds == before
    assert columns.columns_of(task, timed=True).rounds == (*before, "virtual_seconds")
    columns.check_figures("fedavg", (), task)
    with pytest.raises(RunError, match=rf"^strategies/fedper\.py: {told}"):
        columns.check_figures("fedper", (toy, wrong), task)
    columns.check_figures("fedper", (toy, toy), task)  # that of a base, and once more
    own = {"mae_local", "initial_squared"}  # a classification counts nothing of this name
    declare(*map(figure, own))
    assert own <= {*columns.columns_of(CLASSIFICATION).rounds}


@pytest.mark.parametrize("wrong", [
    {"own": figure("own")}, "own", ("own",), figure("own"), [{"name": "own"}], None,
])  # fmt: skip
def test_what_is_no_tuple_of_figures_concerns_its_method_alone(declare, wrong, monkeypatch):
    """Such as a figure in brackets that lack their comma."""
    expected = columns.columns_of(CLASSIFICATION).rounds
    monkeypatch.setattr(registry.strategy_class("fedper"), "figures", wrong)
    columns.columns_of.cache_clear()
    assert columns.columns_of(CLASSIFICATION).rounds == expected
    columns.check_figures("fedavg", (), CLASSIFICATION)
    line = rf"^strategies/fedper\.py: figures = {re.escape(repr(wrong)[:20])}.*: must be a tuple of"
    with pytest.raises(RunError, match=line):
        columns.check_figures("fedper", wrong, CLASSIFICATION)


def test_its_runs_end_before_they_have_a_folder(declare, flat_config, tiny_npz):
    declare(figure("accuracy_local"))
    space = Workspace(config.read(flat_config(tiny_npz, 'strategy="fedper"')))
    with pytest.raises(RunError, match=r"^strategies/fedper\.py: column accuracy_local: "):
        MetricChecks(registry.strategy_class("fedper")(space))
    space = Workspace(config.read(flat_config(tiny_npz, 'strategy="fedavg"')))
    MetricChecks(registry.strategy_class("fedavg")(space))


def test_of_two_methods_whose_figures_do_not_go_together_the_later_one_ends(declare, monkeypatch):
    toy, other = figure("toy", weighted=True), figure("toy_weighted")
    monkeypatch.setattr(registry.strategy_class("fedrep"), "figures", (other,))
    declare(toy)
    known = columns.columns_of(CLASSIFICATION).figures
    assert toy in known and other not in known
    for method, figures in [("fedper", (toy,)), ("fedavg", ())]:
        columns.check_figures(method, figures, CLASSIFICATION)
    with pytest.raises(RunError, match=r"^strategies/fedrep\.py: figure toy_weighted: rounds"):
        columns.check_figures("fedrep", (other,), CLASSIFICATION)


@pytest.mark.parametrize("name", TASKS)
def test_a_metric_has_the_columns_that_begin_with_its_name(name):
    for metric in TASKS[name].metrics:
        known = columns.columns_of(TASKS[name].leading(metric.name))
        for each in known.task.metrics:
            assert all(known.metric_of(column) is each for column in each.means(known.rounds))


def test_a_method_that_cannot_be_loaded_is_no_matter_for_others(declare, monkeypatch):
    declare(figure("toy"))
    known = registry.names()
    monkeypatch.setattr(registry, "names", lambda: (*known, "absent"))
    names = [known.name for known in columns.columns_of(CLASSIFICATION).figures]
    expected = ["accuracy_global", "accuracy_last_local", "accuracy_without_head", "leak", "toy"]
    assert sorted(names) == expected


def test_a_plot_of_events_shows_counts_and_means(tmp_path, declare):
    plot = EventPlot("moods", "mood", "grade", count_label="moods", value_label="mean grade")
    declare(plots=(plot,))
    report = make_report(tmp_path, strategy="fedper", num_rounds=2)
    events = [
        (1, 0, "mood", "good"), (1, 1, "mood", "bad"), (1, 2, "mood", "good"),
        (1, 0, "grade", "bad 4"), (1, 1, "grade", "bad 2"), (1, 0, "grade", "good 1"),
        (2, 0, "mood", "bad"), (2, 0, "grade", "bad 1.5"), (2, 1, "failure", "good 9"),
    ]  # fmt: skip
    for event in events:
        report.event(*event)
    report.finish({}, {})
    assert "moods" in drawn(report.folder)
    table = event_plots.read_categories(report.folder, plot)
    assert len(table) == len(events) - 1
    upper, lower = event_plots.draw_categories(table, plot).axes
    assert [bar.get_height() for bar in upper.patches] == [1, 1, 2, 0]  # bad, then good
    assert [bar.get_y() for bar in upper.patches] == [0, 0, 1, 1]
    means = {line.get_label(): line.get_xydata().tolist() for line in lower.lines}
    assert means == {"bad": [[1, 3], [2, 1.5]], "good": [[1, 1]]}
    assert (upper.get_ylabel(), lower.get_ylabel()) == ("moods", "mean grade")


@pytest.mark.parametrize("missing", [None, ""])
def test_a_newcomer_with_a_score_of_zero_counts_in_the_means(missing):
    """Of numbers, as an evaluation has them, and of texts, as unseen.csv has them.

    One for whom the metric is not defined does not count in that mean.
    """
    heads, scores = (LEAD.initial, LEAD.personalized), [(0.0, 0.5), (0.25, 0.0)]
    for kind in (float, str):
        rows = [dict(zip(heads, map(kind, score), strict=True)) for score in scores]
        assert [*unseen(rows, 0.75, LEAD).values()] == [2, 0.125, 0.25, -0.5]
        found = [*unseen([*rows, rows[0] | {heads[1]: missing}], 0.75, LEAD).values()]
        assert found == pytest.approx([3, 0.25 / 3, 0.25, -0.5])
