"""Loggers that people use, read with their own readers."""

import importlib.util
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedapps.core import config
from fedapps.core.errors import RunError
from fedapps.report import directory, loggers, status
from fedapps.report.report import Report
from fedapps.serial import run_serial
from fedapps.tasks import CLASSIFICATION
from tests.support.marks import extra
from tests.support.reports import ARRAYS, make_results, make_row, make_settings

BRIEF = 'strategy="fedper" num-clients=3 num-rounds=2 fraction-train=1.0'
WHY = "2026-11-22: an extra that the tests do not install; passes where it is there"


@pytest.fixture
def logged(serial_run, tiny_npz):
    """Return run(name, *run_config) -> the directory of a run with a logger."""
    return lambda name, *more: serial_run(tiny_npz, BRIEF, f'loggers="{name}"', *more)


@pytest.fixture
def figures(read_rounds):
    """Return of(folder) -> {column: [value, ...]} of rounds.csv, columns with numbers only."""

    def of(folder):
        rows = read_rounds(folder)
        names = [name for name, value in rows[0].items() if isinstance(value, float)]
        return {f"rounds/{name}": [row[name] for row in rows] for name in names}

    return of


def test_tensorboard_reads_the_rows_of_the_tables(logged, figures, read_csv):
    extra("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = logged("tensorboard")
    found = EventAccumulator(str(folder / "tensorboard")).Reload()
    expected = figures(folder)
    assert set(found.Tags()["scalars"]) == set(expected)
    for name, values in expected.items():
        scalars = found.Scalars(name)
        assert [scalar.step for scalar in scalars] == [1, 2]
        assert [scalar.value for scalar in scalars] == pytest.approx(values, rel=1e-6)
    rows = read_csv(folder, "clients.csv")
    last = found.Histograms("clients/accuracy_personalized")[-1]
    own = [float(row["accuracy_personalized"]) for row in rows if row["round"] == "2"]
    assert (last.step, last.histogram_value.num) == (2, 3)
    assert last.histogram_value.sum == pytest.approx(sum(own))
    (text,) = found.Tensors("config/text_summary")
    assert b"strategy = fedper" in text.tensor_proto.string_val[0]


def test_tensorboard_has_the_rounds_of_a_resumed_run_once(tmp_path):
    """Of rounds 2 and 3, those after the resume count, also where their clients stand."""
    extra("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    settings = make_settings(runs_dir=str(tmp_path), run_name="run", logger_names=("tensorboard",))
    flat = dict(settings.flat)
    report, lasts = Report.create(settings, flat), {}

    def go_on(losses):
        for round_, loss in losses.items():
            means = report.evaluation(round_, make_results(seed=round_))
            report.round(make_row(round_, train_loss=loss, means=means))
            lasts[round_] = report.state(round_)

    go_on({1: 4.0, 2: 3.0, 3: 2.0})
    report = Report.reopen(report.folder, settings, flat, lasts[1], CLASSIFICATION)
    report.begin()
    go_on({2: 1.0, 3: 0.5})
    report.finish(ARRAYS, {}, plots=False)
    found = EventAccumulator(str(report.folder / "tensorboard"), {"histograms": 0}).Reload()
    losses = [(scalar.step, scalar.value) for scalar in found.Scalars("rounds/train_loss")]
    assert losses == [(1, 4.0), (2, 1.0), (3, 0.5)]
    assert [each.step for each in found.Histograms("clients/accuracy_initial")] == [1, 2, 3]


def test_mlflow_reads_the_rows_of_the_tables(logged, figures, monkeypatch, tmp_path):
    pytest.importorskip("mlflow", reason=WHY)
    from mlflow import MlflowClient

    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    folder = logged("mlflow")
    client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
    (run,) = client.search_runs([client.get_experiment_by_name("fedapps").experiment_id])
    assert (run.info.run_name, run.info.status) == (folder.name, "FINISHED")
    assert run.data.params["strategy"] == "fedper"
    for name, values in figures(folder).items():
        history = sorted(client.get_metric_history(run.info.run_id, name), key=lambda m: m.step)
        assert [(m.step, m.value) for m in history] == [*enumerate(values, 1)]
    store = f"sqlite:///{tmp_path}/all.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    (elsewhere := tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(elsewhere)
    folder = logged("mlflow")
    (run,) = MlflowClient(store).search_runs(["1"])
    names = {Path(file.path).name for file in MlflowClient(store).list_artifacts(run.info.run_id)}
    assert not (folder / "mlflow.db").exists() and {"config.toml", "clients.csv"} <= names
    assert [*elsewhere.iterdir()] == [] and (tmp_path / "mlruns").is_dir()


@pytest.mark.parametrize(("store", "place"), [
    ("", "/runs/a/mlflow"), ("sqlite:////home/me/all.db", "/home/me/mlruns"),
    ("sqlite+pysqlite:////home/me/all.db?cache=/a/b", "/home/me/mlruns"),
    ("postgresql+psycopg2://me@there/all", "/runs/mlruns"), ("https://there", None),
])  # fmt: skip
def test_no_files_of_mlflow_are_in_the_working_directory(store, place):
    found = loggers._place_of_files(store, Path("/runs/a"))
    assert found == (place and f"file://{place}")


@pytest.mark.parametrize("there", [True, False])
def test_two_runs_that_begin_at_once_share_mlflows_experiment(monkeypatch, tmp_path, there):
    """Neither sees an experiment; MLflow lets one make it, and refuses the other."""
    looks = iter([None, SimpleNamespace(experiment_id="7") if there else None])
    runs = []

    class Client:
        def __init__(self, uri):
            self.get_experiment_by_name = lambda name: next(looks)

        def create_experiment(self, name, place):
            raise ValueError(f"Experiment '{name}' already exists." if there else "no access")

        def create_run(self, experiment, run_name):
            runs.append(experiment)
            return SimpleNamespace(info=SimpleNamespace(run_id="1"))

    fake = SimpleNamespace(MlflowClient=Client, entities=SimpleNamespace(Metric=None))
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    if there:
        loggers.MLflow(tmp_path, {}, 0)
    else:
        with pytest.raises(ValueError, match="no access"):
            loggers.MLflow(tmp_path, {}, 0)
    assert runs == ["7"] * there


def test_wandb_keeps_the_rows_of_the_tables_offline(logged, figures, monkeypatch):
    pytest.importorskip("wandb", reason=WHY)
    monkeypatch.setenv("WANDB_MODE", "offline")
    folder = logged("wandb")
    (file,) = folder.glob("wandb/offline-run-*/*.wandb")
    content = file.read_bytes()
    for name, values in figures(folder).items():
        assert name.encode() in content
        assert all(repr(value).encode() in content for value in values if not value.is_integer())
    assert b"clients/accuracy_personalized" in content


def test_a_logger_that_is_not_installed_ends_the_run_before_it_begins(flat_config, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    flat = flat_config('loggers="mlflow,wandb" dataset="/nowhere.npz"')
    with pytest.raises(RunError) as error:
        run_serial(flat)
    line = 'loggers = "mlflow,wandb": mlflow is not installed; pip install mlflow'
    assert str(error.value) == line
    assert not Path(flat["runs-dir"]).exists()


@pytest.mark.parametrize("value", ["tensorbord", "wandb,wandb", "mlflow,", "TensorBoard"])
def test_an_unknown_logger_is_a_line(flat_config, value):
    with pytest.raises(RunError, match=f'^loggers = "{value}": must be some of tensorboard, mlf'):
        run_serial(flat_config(f'loggers="{value}"'))


class Noted:
    """A logger that notes what it gets, and may fail."""

    def __init__(self, folder, config, done):
        self.got = []

    def metrics(self, step, values):
        self.got.append((step, values))
        if step == self.fails:
            raise OSError("no\nroom")

    def distributions(self, step, values):
        self.got.append((step, values))

    def close(self, summary):
        self.got.append(summary)


@pytest.fixture
def noted(monkeypatch):
    """Return make(fails) -> list of the loggers that runs made; they fail in that round."""

    def make(fails):
        made = []

        def begin(*arguments):
            made.append(Noted(*arguments))
            made[-1].fails = fails
            return made[-1]

        monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
        monkeypatch.setitem(loggers.LOGGERS, "wandb", begin)
        return made

    return make


def test_a_logger_that_fails_costs_an_event_only(logged, noted, read_csv, capsys):
    made = noted(fails=1)
    folder = logged("wandb")
    (event,) = read_csv(folder, "events.csv")
    assert [*event.values()] == ["1", "server", "logger-failed", "wandb: OSError: no room"]
    (logger,) = made
    assert [step for step, _ in logger.got[:-1]] == [1, 1] and logger.got[-1] is None
    assert "warning: wandb gets no more figures: OSError: no room\n" in capsys.readouterr().out


def test_loggers_are_told_how_a_run_ends(logged, noted, read_csv, read_summary, tmp_path):
    made = noted(fails=None)
    folder = logged("wandb")
    assert made[0].got[-1] == read_summary(folder)
    with pytest.raises(RunError):
        logged("wandb", 'lr=1e30 run-name="bad"')
    assert made[1].got == [None]
    (*_, event) = read_csv(tmp_path / "runs/bad", "events.csv")
    assert event["kind"] == "run-failed" and event["detail"].startswith("round 1: 3 of 3 clients")


@pytest.mark.parametrize("more", ['unseen-clients="2"', 'strategy="fedseq" finetune-epochs=1'])
def test_the_last_round_stays_that_of_the_training(logged, noted, read_rounds, more):
    """Loggers and Prometheus get each column of a round once, and the scores of its last row."""
    made = noted(fails=None)
    folder = logged("wandb", f"evaluate-every=0 {more}")
    *_, trained, later = read_rounds(folder)
    assert trained["round"] == later["round"] == 2 and later["phase"] in ("newcomers", "finetune")
    sent, known = {}, status.read(folder).figures
    for step, values in made[0].got[:-1]:
        for name, value in values.items() if step == 2 else ():
            assert name not in sent, "twice"
            sent[name] = value
    assert trained["bytes_up"] > 0 and later["train_loss"] not in (None, trained["train_loss"])
    for name in ("clients", "failures", "bytes_up", "bytes_eval", "train_loss", "train_macs"):
        assert sent[f"rounds/{name}"] == known[name] == trained[name], name
    for name in ("accuracy_initial", "accuracy_personalized", "evaluated", "least_personalized"):
        assert sent[f"rounds/{name}"] == known[name] == later[name], name


def test_a_logger_that_cannot_begin_ends_the_run(logged, monkeypatch):
    def refuse(*arguments):
        raise PermissionError("log\nin")

    monkeypatch.setitem(loggers.LOGGERS, "tensorboard", refuse)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    with pytest.raises(RunError, match=r"^loggers: tensorboard cannot begin \(PermissionError: in"):
        logged("tensorboard")


def test_a_run_that_is_made_longer_is_not_finished_and_one_that_cannot_be_stays(
    serial_run, tiny_npz, monkeypatch
):
    def refuse(*arguments):
        raise PermissionError("log in")

    def longer(*more):
        return serial_run(tiny_npz, BRIEF, f'num-rounds=4 resume="{folder}"', *more)

    def content():  # log.txt tells of the attempt
        files = [path for path in folder.rglob("*.*") if path.is_file() and path.name != "log.txt"]
        return {path: path.read_bytes() for path in files}

    folder = serial_run(tiny_npz, BRIEF)
    before = content()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    with monkeypatch.context() as patch, pytest.raises(RunError, match="cannot begin"):
        patch.setitem(loggers.LOGGERS, "wandb", refuse)
        longer('loggers="wandb"')
    assert content() == before and directory.has_finished(folder)
    with monkeypatch.context() as patch, pytest.raises(RunError, match="cannot write"):
        patch.setattr(os, "truncate", refuse)  # as if it were killed in between
        longer()
    assert config.stored(folder)["num-rounds"] == 4 and not directory.has_finished(folder)
    assert directory.has_finished(longer())
