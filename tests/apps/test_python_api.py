"""`import fedapps`: the same runs and predictions as the commands, in a process left as it was."""

import asyncio
import importlib
import json
import logging
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import traceback
import warnings
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from flwr.supercore.exit import exit_handler
from safetensors.numpy import load_file

import fedapps
from clients.fedper import FedPerClient
from fedapps import serial
from fedapps.core import log, registry
from fedapps.report.report import Report
from fedapps.tasks import CLASSIFICATION
from fedapps.training.undisturbed import undisturbed
from tests.support import ROOT, kinds
from tests.support.made_runs import scored_run
from tests.support.owners import hide
from tests.support.reports import make_results, make_row, make_settings

SAME = ("clients.csv", "classes.csv", "events.csv", "samples.csv", "model.safetensors")
KEYS = {
    "strategy": "fedprox", "model": "mlp", "min_samples": 4, "alpha": 10.0, "batch_size": 8,
    "num_clients": 4, "num_rounds": 2, "fraction_train": 1.0, "finetune_epochs": 0, "threads": 1,
    "local_epochs": 1, "lr": 0.05, "runs_dir": "runs", "data_root": "data",
}  # fmt: skip


@pytest.fixture
def here(tmp_path, monkeypatch, make_npz, no_plots):
    """The working directory, with the data set mine.npz."""
    monkeypatch.chdir(tmp_path)
    make_npz(tmp_path / "mine.npz")
    return tmp_path


@pytest.fixture
def run(here):
    """Return run(**keys): a short silent run of mine.npz."""
    return lambda *configs, **keys: fedapps.run(
        KEYS, {"dataset": here / "mine.npz"}, *configs, progress=False, plots=False, **keys
    )


def test_importing_it_loads_neither_torch_nor_pandas():
    code = "import fedapps, sys; fedapps.run; print({'torch', 'pandas', 'flwr'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
    assert {*fedapps.__all__} <= {*dir(fedapps)}
    with pytest.raises(AttributeError):
        fedapps.nothing  # noqa: B018


def test_the_function_stays_when_the_package_of_its_name_is_imported():
    function = fedapps.compare
    fedapps.compare = importlib.import_module("fedapps.compare")  # as Python does at an import
    assert fedapps.compare is function and callable(function)


def test_a_function_that_names_the_module_can_be_sent_to_another_process():
    """As joblib and cloudpickle send those of a notebook, with the modules that they name."""
    sent = pickle.dumps(fedapps)
    code = "import pickle, sys; print(pickle.load(sys.stdin.buffer).__name__)"
    done = subprocess.run([sys.executable, "-c", code], input=sent, capture_output=True, check=True)
    assert done.stdout == b"fedapps\n" and pickle.loads(sent) is fedapps


def test_its_files_are_those_of_the_command(run, here, capsys):
    """By each way to write a key, later ones over earlier ones."""
    mine = run(
        "num-rounds=7 fedprox.prox-mu=3", num_rounds=2, fedprox={"prox_mu": 1}, run_name="python"
    )
    (here / "c.toml").write_text("num-rounds = 5\nseed = 3\n[fedprox]\nprox-mu = 0.5\n")
    other = run(here / "c.toml", seed=0, num_rounds=2, **{"fedprox.prox_mu": 1}, run_name="other")
    words = " ".join(f"{k.replace('_', '-')}={v}" for k, v in KEYS.items())
    command = f"{words} dataset={here}/mine.npz fedprox.prox-mu=1 run-name=command"
    capsys.readouterr()
    assert serial.main(["-c", command]) == 0
    (printed,) = capsys.readouterr().out.splitlines()[-1:]
    assert [mine.path, other.path] == [here / "runs" / "python", here / "runs" / "other"]
    theirs = fedapps.load(printed)
    for found in (mine, other):
        for name in SAME:
            assert (found.path / name).read_bytes() == (theirs.path / name).read_bytes(), name
        untimed = [run.rounds.drop(columns="seconds") for run in (found, theirs)]
        pd.testing.assert_frame_equal(*untimed, check_exact=True)
        assert found.config == theirs.config and found.finished
    assert theirs.config["fedprox.prox-mu"] == 1 and theirs.config["runs-dir"] == str(here / "runs")


def test_it_holds_what_is_in_the_run_directory(run):
    found = run(strategy="fedper")
    assert found.summary == json.loads((found.path / "summary.json").read_text())
    for name in ("rounds", "clients", "classes"):
        table, lines = getattr(found, name), (found.path / f"{name}.csv").read_text().splitlines()
        assert ",".join(table) == lines[0] and len(table) == len(lines) - 1
    scores = [line.split(",") for line in (found.path / "clients.csv").read_text().splitlines()]
    column = scores[0].index("accuracy_personalized")
    assert [*found.clients["accuracy_personalized"]] == [float(row[column]) for row in scores[1:]]
    assert [*found.events] == ["round", "client", "kind", "detail"]
    again = fedapps.run(found.config, progress=False, plots=False)  # a config repeats its run
    assert (again.path / "clients.csv").read_bytes() == (found.path / "clients.csv").read_bytes()
    page = found.report()
    assert page == found.path / "report.html" and "fedper" in page.read_text()


def test_a_table_keeps_its_names_and_is_predicted_as_a_data_frame(run, here):
    """One file holds what all forms of samples say; in its gaps are the means of training."""
    draws = np.random.default_rng(0)
    table = pd.DataFrame({"age": draws.normal(50, 9, 60), "sex": ["f", "m"] * 30})
    table["ill"] = np.where(table["age"] > 50, "yes", "NA, or no")
    table.iloc[3, 0] = None
    table.to_csv(here / "t.csv", index=False)
    found = run(dataset=here / "t.csv", strategy="fedper", missing="mean", partitioner="iid")
    assert found.class_names == ("NA, or no", "yes") == (*found.classes["name"],)
    assert found.summary["layers"] == "shared fc1, fc2; personal fc3"
    page = found.report().read_text()
    assert '<td class="text">yes</td>' in page and "Layers: shared fc1, fc2; pers" in page
    assert page.count("class 1 (yes): ") == 4  # what each client holds
    features = np.stack([table["age"], table["sex"] == "f", table["sex"] == "m"], 1).astype(float)
    features[3, 0] = found.model(1).mean[0]
    wanted = found.predict_proba(1, features.astype(np.float32))
    for samples in (table, table[["sex", "age"]], here / "t.csv", str(here / "t.csv")):
        np.testing.assert_allclose(found.predict_proba(1, samples), wanted, atol=1e-6)
    odd = table[["age", "sex"]].iloc[[9, 4, 7]]
    odd.iloc[1, 1] = "d"
    with pytest.raises(fedapps.RunError, match=r'^x: row 1: column sex holds "d"; must be f\|m'):
        found.predict(1, odd)
    odd.to_csv(here / "odd.csv", index=False)
    with pytest.raises(fedapps.RunError, match=r'odd.csv: line 3: column sex holds "d"; must be'):
        found.predict(1, here / "odd.csv")


def test_names_and_details_are_texts_whatever_they_say(tmp_path):
    """Also those that stand for a missing value in other tables, and those of the fifth class."""
    names = ("None", "NA", "nan", "", "-5"), ("null", "n/a", "NaN", "1")
    settings = make_settings(runs_dir=str(tmp_path), run_name="run")
    report = Report.create(settings, dict(settings.flat), CLASSIFICATION, names)
    scored = sorted(make_results(classes=5), key=lambda result: result.client)
    report.round(make_row(means=report.evaluation(1, scored)))
    report.unseen(1, scored)
    report.event(1, 2, "cut", "4")
    report.finish({"a": np.zeros(3, np.float32)}, {}, plots=False)
    run = fedapps.load(report.folder)
    assert [*run.clients["name"]] == [*run.unseen["name"]] == [*names[0]]
    assert [*run.classes["name"]] == [*names[1], ""] and run.classes["num_test"].dtype == np.int64
    assert run.classes["accuracy_initial"].isna().tolist() == [True] + 4 * [False]
    assert run.events.to_numpy().tolist() == [[1, "2", "cut", "4"]]


SCORES = {  # a metric of each kind of data, in NumPy
    kind: ("accuracy", lambda y, found: np.mean(y == found))
    for kind in ("images", "tokens", "multilabel")
} | {"regression": ("mae", lambda y, found: np.mean(np.abs(y.astype(float) - found)))}


@pytest.mark.parametrize("kind", SCORES)
def test_a_clients_samples_give_the_scores_of_the_run_again(run, here, kind):
    """So any metric can be computed. Together, the clients have all that is in the data."""
    name, score = SCORES[kind]
    own = {}
    if kind != "images":
        own = {"dataset": kinds.write(here, kind), "model": kinds.MODELS[kind]}
    more = {"partitioner": "iid", "validation_fraction": 0.25, "finetune_epochs": 1}
    found = run(strategy="fedper", **own, **more)
    last = found.clients[found.clients["round"] == 2].set_index("client")
    parts = []
    for client in range(4):
        x, y = found.samples(client)
        value = score(y, found.predict(client, x))
        assert value == pytest.approx(last[f"{name}_personalized"][client], rel=1e-5)
        parts += [(x, y), *(found.samples(client, which) for which in ("train", "validation"))]
    if kind == "regression":
        with pytest.raises(fedapps.RunError, match="this run gives no probabilities"):
            found.predict_proba(0, x)
    assert len(parts[1][1]) > len(parts[0][1]) >= len(parts[2][1]) > 0
    with np.load(own.get("dataset", here / "mine.npz")) as data:
        for place, what in enumerate(("images", "labels") if not own else ("inputs", "targets")):
            whole = np.concatenate([data[f"train_{what}"], data[f"test_{what}"]])
            got = np.concatenate([part[place] for part in parts])
            assert sorted(got.astype("f4").tolist()) == sorted(whole.astype("f4").tolist())


def test_a_client_without_samples_of_a_subset_has_none(run):
    found = run()
    x, y = found.samples(1, "validation")
    assert len(x) == len(y) == 0
    for client, subset, text in (
        (4, "test", "client 4: the clients are 0..3"),
        (1, "tests", 'subset = "tests": must be one of train, test, validation'),
        ("anna", "test", "anna"),
    ):
        with pytest.raises(fedapps.RunError, match=text):
            found.samples(client, subset)


def test_its_table_in_a_notebook_is_escaped(run, here, make_npz):
    make_npz(here / "<b>&.npz")
    found = run(dataset=here / "<b>&.npz")
    html = found._repr_html_()
    assert "&lt;b&gt;&amp;" in html and "<b>&" not in html
    assert f"{100 * found.summary['accuracy_personalized']:.1f} %" in html
    both = fedapps.compare([found, run(strategy="fedavg", lr=0.06)])
    both.notes.append("<script>")
    assert "&lt;script&gt;" in both._repr_html_() and "<script>" not in both._repr_html_()


def test_a_run_is_shown_also_to_who_may_not_look_for_its_checkpoints(run, monkeypatch):
    found = run()
    hide(monkeypatch, found.path / "checkpoint")
    assert f"{100 * found.summary['accuracy_personalized']:.1f} %" in found._repr_html_()


def by_hand(weights, images):
    """Logits of the mlp, in NumPy; pixels are normalized by mean and deviation 0.5."""
    x = (images.reshape(len(images), -1) / 255 - 0.5) / 0.5
    for layer in ("fc1", "fc2"):
        x = np.maximum(x @ weights[f"{layer}.fc.weight"].T + weights[f"{layer}.fc.bias"], 0)
    return x @ weights["fc3.fc.weight"].T + weights["fc3.fc.bias"]


def test_predictions_are_those_of_the_saved_weights(run, here):
    """FedPer's client: the shared body, and the head that it has kept."""
    found = run(strategy="fedper")
    images = np.load(here / "mine.npz")["test_images"]
    for client in (2, 0, 2, None):
        weights = load_file(found.path / "model.safetensors")
        if client is not None:
            states = sorted((found.path / "clients" / str(client)).glob("*.safetensors"))
            state = load_file(states[-1])
            weights |= {key.removeprefix("model/"): value for key, value in state.items()}
        logits = by_hand(weights, images)
        e = np.exp(logits - logits.max(1, keepdims=True))
        chances = found.predict_proba(client, images)
        np.testing.assert_allclose(chances, e / e.sum(1, keepdims=True), atol=1e-5)
        labels = found.predict(client, torch.from_numpy(images))
        assert labels.dtype == np.int64 and np.array_equal(labels, logits.argmax(1))
        tensor = torch.from_numpy(images)[:, None] / 255
        with torch.no_grad():
            np.testing.assert_allclose(found.model(client)(tensor), logits, atol=1e-4)
        for other in (tensor[:, 0], tensor.permute(0, 2, 3, 1)):  # as samples are
            with pytest.raises(fedapps.RunError, match=re.escape("= [n, 1, 8, 8]; samples [n, H")):
                found.model(client)(other)
        as_floats = found.predict_proba(client, images[..., None] / 255)  # float64 [n, H, W, 1]
        np.testing.assert_allclose(as_floats, chances, atol=1e-6)


def test_what_a_run_has_learned_can_be_predicted(run, here, capsys, caplog):
    """Pixels from -1 to 1, as other libraries have them: both warn, in the same words."""
    with np.load(here / "mine.npz") as file:
        scaled = {key: file[key] / 127.5 - 1 if "images" in key else file[key] for key in file}
    np.savez(here / "scaled.npz", **scaled)
    found = run(dataset=here / "scaled.npz")
    line = "images: float pixels from -1 to 0.87451 are used as they are, but models expect 0..1"
    assert f"scaled.npz: train_{line}" in caplog.text
    x, _ = found.samples(1)
    assert x.min() < -0.9
    with torch.no_grad():
        chances = found.model(1)(torch.from_numpy(x).reshape(-1, 1, 8, 8)).softmax(1)
    np.testing.assert_allclose(found.predict_proba(1, x), chances, atol=1e-6)
    assert capsys.readouterr().out.startswith("warning: x: images: float pixels from -")


def test_masked_values_are_missing_ones(run, here):
    """NumPy keeps a number behind each of them, which nobody has measured."""
    inputs = np.random.default_rng(0).normal(size=(96, 4))
    data = {"inputs": np.where(inputs > 1, np.nan, inputs), "targets": np.arange(96) % 2}
    np.savez(here / "gaps.npz", **data)
    found = run(dataset=here / "gaps.npz", missing="mean", partitioner="iid", num_rounds=1)
    x, hidden = inputs[:9], inputs[:9] > 0
    expected = found.predict_proba(0, np.where(hidden, np.nan, x))
    assert not np.array_equal(found.predict_proba(0, x), expected)
    masked = np.ma.masked_array(x, hidden)
    for given in (masked, [*masked], masked.astype(np.float32)):
        np.testing.assert_allclose(found.predict_proba(0, given), expected, rtol=1e-5)
    whole = np.ma.masked_array(x)
    assert np.array_equal(found.predict_proba(0, whole), found.predict_proba(0, x))
    with pytest.raises(fedapps.RunError, match=r"^x: .* array: int16 cannot mark masked values"):
        found.predict(0, masked.astype(np.int16))


def test_a_shared_model_with_layers_that_nobody_shares_is_warned_of(run, here, capsys):
    """Once for a model that predicts again and again, and not for a client or a whole model."""
    found, whole = run(strategy="fedper"), run()
    images = np.load(here / "mine.npz")["test_images"]
    whole.predict(None, images), found.predict(1, images)
    assert "warning" not in capsys.readouterr().out
    found.predict(None, images), found.predict_proba(None, images)
    told = capsys.readouterr().out
    assert told.startswith(f"warning: {found.path}: these layers are not shared, ")
    assert "no better than chance: fc3; name a client to take " in told and told.count("\n") == 1
    found.model(None)
    assert capsys.readouterr().out == told


def test_samples_can_be_any_form_of_array_and_nothing_else(run, here):
    found = run(strategy="fedper")
    images = torch.from_numpy(np.load(here / "mine.npz")["test_images"]) / 256
    expected = found.predict_proba(0, images)
    rows = [row.clone().requires_grad_() for row in images]
    for given in (images.bfloat16(), images.to_sparse(), rows, tuple(rows), images.tolist()):
        np.testing.assert_allclose(found.predict_proba(0, given), expected, rtol=1e-5)
    for given, reason in (
        ((row for row in images), "it is a generator; give an array, a tensor or a list of rows"),
        ({"images": images}, "it is a dict; give"),
        ([[1.0, 2.0], [1.0]], "setting an array element with a sequence."),
        ([torch.zeros(2), torch.zeros(3)], "stack expects each tensor to be equal size"),
        (images.to("meta"), "Cannot copy out of meta tensor"),
    ):
        with pytest.raises(fedapps.RunError) as caught:
            found.predict(0, given)
        text = str(caught.value)
        assert text.startswith(f"x: cannot be read as an array: {reason}") and "\n" not in text
    assert np.array_equal(found.predict_proba(np.array(0), images), expected)
    line = r"^client array\(\[1, 2\]\): must be a number or a name"
    with pytest.raises(fedapps.RunError, match=line):
        found.predict(np.array([1, 2]), images)


def test_another_thread_that_predicts_changes_nobodys_model(run, here, monkeypatch):
    """In the worst moment: after the kept model was found to be the right one."""
    found = run(strategy="fedper")
    images = np.load(here / "mine.npz")["test_images"]
    expected = found.predict_proba(0, images)

    class Slow(int):
        """A number of a client that takes long to compare."""

        __hash__ = int.__hash__

        def __ne__(self, other):
            thread = threading.Thread(target=lambda: found.predict_proba(1, images))
            thread.start()
            thread.join()
            return int(self) != other

    real = found._number
    monkeypatch.setattr(found, "_number", lambda client: Slow(0) if client == "0" else real(client))
    assert np.array_equal(found.predict_proba("0", images), expected)
    assert not np.array_equal(found.predict_proba(1, images), expected)


def test_a_run_is_the_path_of_its_directory(here, monkeypatch):
    first, second = (scored_run(here, name, "seed=1") for name in ("a", "b"))
    found = fedapps.load(first)
    assert Path(found) == first and fedapps.load(found).config == found.config
    for given in ([[found, second]], [found, second], [first, str(second)]):
        assert [*fedapps.compare(*given).runs["run"]] == [first, second]
    wanted = {}
    monkeypatch.setattr(serial, "run_serial", lambda keys, **_: wanted.update(keys) or first)
    fedapps.run(resume=found, progress=False)
    assert wanted["resume"] == str(first) and wanted["seed"] == 1
    for call, line in (
        (lambda: fedapps.load(None), "load: a NoneType is no path; give a run directory"),
        (lambda: fedapps.run(found), "run: a run is no config; give run.config to repeat it, or"),
    ):
        with pytest.raises(fedapps.RunError) as caught:
            call()
        assert str(caught.value).startswith(line)


def test_errors_are_one_line_without_their_causes(run, here):
    found = run(strategy="fedper")
    images = np.load(here / "mine.npz")["test_images"]
    for call, line in (
        (lambda: run(num_round=3), "unknown key num-round, did you mean num-rounds?;"),
        (lambda: run(lr=-1), "lr = -1: must be float > 0"),
        (lambda: run(sizes=[1, 2]), "run: sizes must be a number, true, false or a text;"),
        (
            lambda: run(seed=[0, 1, 2]),
            "run: seed must be a number, true, false or a text; for a run of each of several"
            " values use `fedapps sweep`; a list that is one value, such as sizes, is a text:",
        ),
        (
            lambda: run(lr=None),
            "run: lr is a NoneType; must be a number, true, false or a text: leave",
        ),
        (
            lambda: run(dataset=pd.DataFrame()),
            "run: dataset is a DataFrame; must be a number, true, false or a text: save it to a",
        ),
        (
            lambda: run(strategy=FedPerClient),
            "run: strategy is a class; must be a number, true, false or a text: write the class to"
            " strategies/NAME.py and its client's to clients/NAME.py (docs/add-a-method.md), and",
        ),
        (
            lambda: run(model=torch.nn.ReLU()),
            "run: model is a ReLU; must be a number, true, false or a text: write a .py file with",
        ),
        (lambda: run({"keep_going": True}), "keep_going is an argument of run(), not a key: write"),
        (lambda: run(dataset="no.npz"), 'dataset = "no.npz": must be absolute'),
        (lambda: run("no.toml"), "config no.toml: cannot be read (No such file"),
        (lambda: fedapps.load("nothing"), f"{here}/nothing is not a run directory: there is no"),
        (lambda: fedapps.compare([found]), "nothing to compare: give at least two"),
        (lambda: fedapps.compare(found), "nothing to compare: give at least two"),
        (lambda: fedapps.compare(), "nothing to compare: give at least two"),
        (lambda: fedapps.compare(3), "compare: type int is no run; give runs or paths, such"),
        (lambda: fedapps.compare([found, 3]), "compare: type int is no run; give runs or paths, "),
        (lambda: fedapps.compare([found], [3]), "compare: type list is no run; give runs or paths"),
        (lambda: found.unseen, f"{found.path}: has no unseen.csv: unseen-clients is not set, or"),
        (lambda: found.predict(9, images), "client 9: must be 0 to 3"),
        (lambda: found.predict(0, images.astype(int)), "x: images has dtype int64; must be"),
        (lambda: found.predict(0, images[:, :5]), "x: images of [C, H, W] = [1, 5, 8];"),
    ):
        with pytest.raises(fedapps.RunError) as caught:
            call()
        text = str(caught.value)
        assert text.startswith(line) and "\n" not in text, text
        told = "".join(traceback.format_exception(caught.value))
        assert "During handling" not in told and "direct cause" not in told
    with pytest.raises(fedapps.RunError, match=r"^run: device is a device; .* or a text$"):
        run(device=torch.device("cpu"))
    (found.path / "rounds.csv").unlink()
    with pytest.raises(fedapps.RunError, match=r"rounds\.csv: cannot be read \(No such file"):
        _ = fedapps.load(found.path).rounds


def state_of_process():
    """What a run could leave behind."""
    return {
        "cwd": os.getcwd(), "threads": torch.get_num_threads(), "stdout": sys.stdout,
        "warnings": [*warnings.filters], "lines": [*log.logger.handlers],
        "flower": [*logging.getLogger("flwr").filters], "root": [*logging.getLogger().handlers],
        "torch": torch.get_rng_state().tolist(), "numpy": str(np.random.get_state()),
        "at the end": len(exit_handler.registered_exit_handlers),
        "living": {thread.name for thread in threading.enumerate()},
    }  # fmt: skip


def test_the_process_is_as_before_also_after_errors(run, monkeypatch, capfd):
    first = run(strategy="fedper", finetune_epochs=1)  # what is imported once is there
    in_thread(run)
    torch.set_num_threads(2)
    try:
        before = state_of_process()
        capfd.readouterr()
        with pytest.raises(fedapps.RunError):
            run(model="lenet5-of-nobody")
        with monkeypatch.context() as patch:
            patch.setattr(FedPerClient, "personal", lambda self: 1 / 0)
            with pytest.raises(fedapps.ClientError) as caught:
                run(strategy="fedper")
            assert isinstance(caught.value.__cause__, ZeroDivisionError)
        second = run(strategy="fedper", finetune_epochs=1)
        second.predict(0, np.zeros((1, 8, 8), np.uint8))
        in_thread(run)
        after = state_of_process()
    finally:
        torch.set_num_threads(1)
    assert after == before
    assert capfd.readouterr() == ("", "")  # nor is anything printed without progress
    assert (second.path / "clients.csv").read_bytes() == (first.path / "clients.csv").read_bytes()


class Tee:
    """An output of somebody's own that has no more than Python asks of one."""

    def __init__(self):
        self.text = ""

    def write(self, text):
        self.text += text

    def flush(self):
        pass


def test_the_output_can_be_an_object_of_ones_own_or_none(tmp_path, make_npz, monkeypatch, capfd):
    """Without a console, as under pythonw, there is none."""
    keys = KEYS | {"dataset": make_npz(tmp_path / "mine.npz"), "runs_dir": tmp_path}
    monkeypatch.setattr(sys, "stdout", tee := Tee())
    assert fedapps.run(keys, plots=False).finished
    lines = tee.text.splitlines()
    assert lines[0].startswith("run directory: ") and lines[-1][:2] == " ─"
    monkeypatch.setattr(sys, "stdout", None)
    assert fedapps.run(keys, plots=False).finished
    assert capfd.readouterr() == ("", "")


@contextmanager
def default(kind, value):
    """Have another default of torch's in this context."""
    before = getattr(torch, f"get_default_{kind}")()
    getattr(torch, f"set_default_{kind}")(value)
    try:
        yield
    finally:
        getattr(torch, f"set_default_{kind}")(before if kind == "dtype" else None)


MODES = {
    "float64": lambda: default("dtype", torch.float64),
    "meta": lambda: default("device", "meta"),
    "with meta": lambda: torch.device("meta"),
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu"),
}


@pytest.mark.parametrize("mode", MODES)
def test_what_a_notebook_has_set_does_not_reach_into_a_run(run, mode):
    def modes():
        tensor = torch.zeros(1) @ torch.zeros(1)
        return tensor.dtype, tensor.device, torch.is_grad_enabled(), tensor.is_inference()

    plain, before = run(num_rounds=1), modes()
    sample = np.full((1, 8, 8), 7, np.uint8)
    wanted = plain.predict(0, sample)
    with MODES[mode]():
        changed = modes()
        assert changed != before
        other = run(num_rounds=1)
        answers = fedapps.load(other.path).predict(0, sample)
        assert modes() == changed
    assert modes() == before
    assert answers.tolist() == wanted.tolist()
    one, two = ((found.path / "model.safetensors").read_bytes() for found in (plain, other))
    assert one == two


@pytest.mark.parametrize("mode", ["float64", "meta"])
def test_nor_into_a_best_round_whose_tables_are_asked_for_first(run, mode):
    """Which rows they have, the checkpoint says: it is read with the model."""
    keys = {"keep_best": True, "evaluate_on": "validation", "validation_fraction": 0.25}
    path = run(strategy="fedper", **keys).path / "best"
    sample = np.full((1, 8, 8), 7, np.uint8)
    wanted = fedapps.load(path).predict_proba(0, sample)
    with MODES[mode]():
        drawn, best = torch.get_rng_state(), fedapps.load(path)
        assert len(best.rounds) > 0
        assert torch.equal(torch.get_rng_state(), drawn)
        assert best.predict_proba(0, sample).tolist() == wanted.tolist()


def test_a_best_round_has_no_table_of_what_comes_at_the_end(run):
    """The growing tables of its run it has, up to its round."""
    keys = {"keep_best": True, "evaluate_on": "validation", "validation_fraction": 0.25}
    whole = run(strategy="fedper", unseen_clients="3", **keys)
    best = fedapps.load(whole.path / "best")
    for name in ("classes", "unseen"):
        assert len(getattr(whole, name)) > 0
        line = f"{best.path}: has no {name}.csv: a best round has none; load its run"
        with pytest.raises(fedapps.RunError, match=f"^{re.escape(line)}$"):
            getattr(best, name)
    for name in ("rounds", "clients", "events"):
        assert len(getattr(best, name)) <= len(getattr(whole, name))


def test_a_best_round_is_shown_as_its_run_and_has_no_page(run):
    keys = {"keep_best": True, "evaluate_on": "validation", "validation_fraction": 0.25}
    whole = run(strategy="fedper", **keys)
    best = fedapps.load(whole.path / "best")
    shown = best._repr_html_()
    figures, told = (html.partition("</table>") for html in (whole._repr_html_(), shown))
    assert figures[0] == told[0] and ", finished in " in told[0] and best.finished
    assert told[2] == f"<code>{best.path}</code>, best round {best.rounds['round'].max()}"
    line = f"{best.path}: is not a run directory, because it has no rounds.csv"
    with pytest.raises(fedapps.RunError, match=f"^{re.escape(line)}$"):
        best.report()
    assert not (best.path / "report.html").exists()


METHOD = """
from fedapps.method import BaseStrategy


class Mine(BaseStrategy):
    citation = "nobody"
    exchanges = "everything"

    def plan(self, round_, client):
        names = self.layout.names
        return self.exchange(round_, names, self.stage(round_, names))
"""
CLIENT = """
from fedapps.method import BaseClient


class MineClient(BaseClient):
    pass
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """The two files of a method that is called `mine`."""
    files = {"strategies": METHOD, "clients": CLIENT}
    for package, code in files.items():
        (tmp_path / package).mkdir()
        (tmp_path / package / "mine.py").write_text(code)
        path = [*importlib.import_module(package).__path__, str(tmp_path / package)]
        monkeypatch.setattr(sys.modules[package], "__path__", path)
    registry.names.cache_clear()
    yield [tmp_path / package / "mine.py" for package in files]
    registry.names.cache_clear()
    for package in files:
        sys.modules.pop(f"{package}.mine", None)


@pytest.mark.parametrize("imported", [False, True])
def test_the_record_of_a_run_is_of_the_code_that_was_loaded(imported, run, mine):
    """A notebook keeps the code of its first run, whatever is written into the files since.

    Or of its own imports before it.
    """

    def done():
        found = run(strategy="mine")
        lines = (found.path / "log.txt").read_text("utf-8").splitlines()
        about = json.loads((found.path / "run.json").read_text("utf-8"))
        return about["fingerprints"]["code"], [line for line in lines if "this process" in line]

    if imported:
        codes = [file.read_bytes() for file in mine]
        for package, file in zip(("strategies", "clients"), mine, strict=True):
            importlib.import_module(f"{package}.mine")
            file.write_text(file.read_text() + "\nLATER = 2\n")
        assert len(done()[1]) == 2
        for file, code in zip(mine, codes, strict=True):
            file.write_bytes(code)
    first, told = done()
    assert told == []
    for number, file in enumerate(mine, 1):
        file.write_text(file.read_text().replace("class ", "OTHER = 1\n\n\nclass "))
        again, told = done()
        assert again == first
        assert len(told) == number and any(str(file) in line for line in told)
    for package in ("strategies", "clients"):
        importlib.reload(sys.modules[f"{package}.mine"])
    now, told = done()
    assert told == [] and now != first


def in_thread(run, **keys):
    """Return what a run in a thread of its own returned."""
    found = []
    thread = threading.Thread(target=lambda: found.append(run(**keys)))
    thread.start()
    thread.join()
    return found[0]


def test_threads_and_event_loops_have_the_same_numbers(run):
    async def in_loop():
        return run(strategy="fedper")

    together: list = []
    pair = [threading.Thread(target=lambda: together.append(run(strategy="fedper"))) for _ in "ab"]
    for thread in pair:
        thread.start()
    for thread in pair:
        thread.join()
    alike = [run(strategy="fedper"), in_thread(run, strategy="fedper"), asyncio.run(in_loop())]
    texts = {(found.path / "clients.csv").read_text() for found in [*alike, *together]}
    assert len(texts) == 1 and len({found.path for found in [*alike, *together]}) == 5


def of_fork():
    """Return what is said to a fork of this process, which is killed if it waits for ever."""
    read, write = os.pipe()
    if not (fork := os.fork()):
        signal.alarm(60)
        try:
            with undisturbed():
                os.write(write, b"its turn")
        except BaseException as error:
            os.write(write, str(error).encode())
        os._exit(0)
    os.close(write)
    os.waitpid(fork, 0)
    with open(read, "rb") as told:
        return told.read().decode()


def test_a_fork_of_a_process_with_a_run_in_another_thread_does_not_wait_for_it():
    """In the fork there is no such thread, so nobody would ever give it the turn."""
    begun, end = threading.Event(), threading.Event()

    def work():
        with undisturbed():
            begun.set()
            end.wait(60)

    with undisturbed():
        assert of_fork() == "its turn"
    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert begun.wait(60)
        line = "this process was forked while a run or a prediction was going on in another thread"
        assert of_fork().startswith(line)
    finally:
        end.set()
        thread.join()
    assert of_fork() == "its turn"


def test_an_interrupted_run_says_so_and_can_be_opened(run, monkeypatch, here):
    rounds = Report.round

    def interrupt(report, row):
        rounds(report, row)
        if row.round == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(Report, "round", interrupt)
    with pytest.raises(KeyboardInterrupt, match=re.escape(str(here / "runs" / "x"))):
        run(run_name="x")
    left = fedapps.load("runs/x")
    assert not left.finished and left.summary["stopped"] == "Ctrl-C"
    assert [*left.rounds["round"]] == [1] and "interrupted" in left._repr_html_()


def test_a_comparison_has_the_tables_of_the_command(run, here, tmp_path):
    from fedapps import cli

    runs = [run(strategy=name) for name in ("fedavg", "fedper")]
    both = fedapps.compare(here / "runs")
    words = ["compare", *(str(r.path) for r in runs), "--output", str(tmp_path / "out")]
    assert cli.main(words) == 0
    for name, mine in (("groups", both.table.reset_index()), ("runs", both.runs)):
        theirs = pd.read_csv(tmp_path / "out" / f"{name}.csv")
        numbers = [*theirs.select_dtypes("number")]
        np.testing.assert_array_equal(mine[numbers].astype(float), theirs[numbers].astype(float))
    figure = both.plot()
    drawn = {tuple(line.get_ydata()) for axes in figure.axes for line in axes.lines}
    assert all(tuple(100 * r.rounds["accuracy_personalized"]) in drawn for r in runs)
    assert figure._repr_png_().startswith(b"\x89PNG") and "fedper" in str(both)
    assert repr(both) == "<comparison of fedavg (1 run), fedper (1 run)>"


def test_the_code_of_the_page_runs(here, data_root, monkeypatch):
    small = {"num_rounds": 1, "num_clients": 4, "model": "mlp", "data_root": data_root}
    small["runs_dir"], start = "runs", fedapps.run
    monkeypatch.setattr(fedapps, "run", lambda *a, **k: start(*a, **{**k, **small}))
    page, names = (ROOT / "docs" / "python.md").read_text("utf-8"), {}
    for code in re.findall(r"^```python\n(.*?)^```", page, re.M | re.S):
        exec(code, names)
    assert [*names["both"].table["n"]] == [1, 2] and names["again"].config["seed"] == 1
    assert names["chances"].argmax(1).tolist() == names["classes"].tolist()
    assert (here / "curves.pdf").read_bytes().startswith(b"%PDF")
