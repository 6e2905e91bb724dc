"""Models of finished runs: the shared one, and any simulated client's personalized one."""

import argparse
import itertools
import json
import shutil
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
import torch

from fedapps.__main__ import main
from fedapps.cli import export, predict
from fedapps.core import registry
from fedapps.core.errors import RunError
from fedapps.data.sources.scikit_learn import DIGITS
from fedapps.device import personalized, run_models
from fedapps.engine import again, finished
from fedapps.engine.finished import FinishedRun
from fedapps.engine.rounds import Rounds
from fedapps.engine.store import ClientStore
from fedapps.method.update import replace
from fedapps.training.workspace import workspace
from tests.support import kinds
from tests.support.owners import hide, rewrite
from tests.support.tls import make_tls

TINY = "num-clients=4 num-rounds=2 lr=0.03 min-samples=12 evaluate-every=0"


def call(command, *words):
    """Run a command of the `fedapps` program."""
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.run(parser.parse_args([str(word) for word in words]))


@pytest.fixture
def tiny_run(serial_run):
    """Return run(*run_config) -> the directory of a run of four clients on tiny images."""
    return lambda *run_config: serial_run(TINY, *run_config)


@pytest.fixture
def accuracy(tiny_npz, workspace_of, tmp_path):
    """Return of(folder, client, source, *options) -> accuracy of `predict` on its test samples."""
    with np.load(tiny_npz.split('"')[1]) as arrays:
        images, labels = (
            np.concatenate([arrays[f"train_{kind}"], arrays[f"test_{kind}"]])
            for kind in ("images", "labels")
        )

    def of(folder, client, source, *options):
        own, out = workspace_of(folder).population.share(client).test, tmp_path / "out.npz"
        np.savez(tmp_path / "own.npz", images=images[own])
        assert not call(predict, source, *options, "--input", tmp_path / "own.npz", "--output", out)
        with np.load(out) as predicted:
            return (predicted["labels"] == labels[own]).mean()

    return of


def last_rows(read_csv, folder):
    return [row for row in read_csv(folder, "clients.csv") if row["round"] == "2"]


@pytest.mark.parametrize("method", [
    'strategy="fedper"',  # layers that a client keeps
    'strategy="fedbabu"',  # fine-tuning in the evaluation
    'strategy="fedavg" model="lenet5" bn-stats="local"',  # statistics that a client keeps
    'strategy="ditto"',  # a personal model beside the shared one
    'strategy="apfl"',  # a mixture of both
    'strategy="pfedme" pfedme.local-rounds=4',  # the shared one is scored too, and last
    'strategy="pfedsim"',  # the server mixes a model for each client
    'strategy="fedcmd" fedcmd.candidates="all"',  # which layers travel is in its state
    'strategy="fedseq" fedseq.base="fedper"',  # a last phase of fine-tuning
])  # fmt: skip
def test_predict_has_the_accuracy_of_each_client(method, tiny_run, read_csv, accuracy):
    folder = tiny_run(method)
    rows = last_rows(read_csv, folder)
    found = [accuracy(folder, int(r["client"]), folder, "--client", r["client"]) for r in rows]
    assert found == [float(row["accuracy_personalized"]) for row in rows]
    assert len(set(found)) > 1  # or another client's model would do


def test_shared_model_has_the_initial_accuracy(tiny_run, read_csv, accuracy, capsys):
    folder = tiny_run('strategy="fedavg"')
    for row in last_rows(read_csv, folder):
        assert accuracy(folder, int(row["client"]), folder) == float(row["accuracy_initial"])
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("keys, initial", [
    ("", ()),
    ("bn-local=true", ("conv1", "conv2")),
    ("bn-stats=local", ("conv1", "conv2")),  # weights and biases travel, statistics do not
    ("bn-stats=batch", ()),  # there are none
    ("adapter-rank=2", ()),
    ("adapter-rank=2 bn-local=true", ()),
], ids=str)  # fmt: skip
def test_layers_as_initialized_are_those_that_nobody_sends(keys, initial, tiny_run):
    """Not a bias before a BatchNorm, whose gradient is 0, and not what nobody trains, as here."""
    run = FinishedRun.open(tiny_run('strategy="fedavg" model="lenet5" num-rounds=1', keys))
    assert run.initial == initial


def test_exported_client_predicts_without_the_run(tiny_run, read_csv, accuracy, tmp_path, capsys):
    folder = tiny_run('strategy="fedper"')
    row = last_rows(read_csv, folder)[1]
    model = tmp_path / "one.safetensors"
    assert call(export, folder, "--client", row["client"], "--output", model) == 0
    source = folder.rename(folder.with_name("before"))
    assert accuracy(source, int(row["client"]), model) == float(row["accuracy_personalized"])
    with pytest.raises(RunError, match=r"--client 3: .*one\.safetensors is the model of client 1"):
        call(predict, model, "--client", 3, "--input", tmp_path / "own.npz")
    shared = tmp_path / "shared.safetensors"
    assert call(export, source, "--output", shared) == 0
    told = capsys.readouterr().err
    assert told.startswith("warning: these layers are not shared, ") and "chance: fc2; " in told
    for words in ((shared,), (source,), (source, "--client", 1), (model,)):
        assert call(predict, *words, "--input", tmp_path / "own.npz") == 0
        assert ("chance: fc2; " in capsys.readouterr().err) == (words in ((shared,), (source,)))
    assert accuracy(source, 0, shared) == accuracy(source, 0, source)
    for words, message in (
        ((shared, "--client", 3), r"^--client 3: .*shared\.safetensors is the shared model$"),
        (
            (source / "model.safetensors",),
            r"model.safetensors: cannot be read \(it does not describ",
        ),
        ((tmp_path / "x.pt2",), r"x\.pt2: is a program for torch\.export\.load; give a "),
        ((shared,), r"holds no \.png, \.jpg, \.jpeg files; give pictures, or an \.npz$"),
    ):
        with pytest.raises(RunError, match=message):
            call(predict, *words, "--input", tmp_path)


def test_of_a_run_without_its_data_the_error_says_what_needs_none(serial_run, make_npz, tmp_path):
    """An exported model; but this is no hint if something else is missing."""
    data, hint = make_npz(tmp_path / "own.npz"), "; a run directory needs the run's data set, "
    folder = serial_run(TINY, f'strategy="fedavg" dataset="{data}"')
    shared, asked = tmp_path / "shared.safetensors", ("--input", tmp_path / "x.npz")
    call(export, folder, "--output", shared)
    data.rename(asked[1])
    workspace.cache_clear()  # as in a new process
    with pytest.raises(RunError, match=rf"^{data}: no such file{hint}"):
        call(predict, folder, *asked)
    assert call(predict, shared, *asked) == 0
    asked[1].rename(data)
    (folder / "model.safetensors").unlink()
    shutil.rmtree(folder / "checkpoint")
    with pytest.raises(RunError, match=r"so this one has not finished$"):
        call(predict, folder, "--input", data)


def test_images_are_normalized_like_those_of_the_runs_data_set(serial_run, data_root, tmp_path):
    folder = serial_run('strategy="fedavg" dataset="digits" num-rounds=1')
    model = run_models.of_run(FinishedRun.open(folder), None)
    with np.load(data_root / "digits.npz") as arrays:
        images = arrays["test_images"][:20]
    np.savez(tmp_path / "own.npz", images=images)
    labels, found = personalized.predict(model, tmp_path / "own.npz")
    mean, std = DIGITS.mean[0], DIGITS.std[0]
    with torch.no_grad():
        logits = model.module(torch.from_numpy((images[:, None] - mean) / std).float())
    np.testing.assert_allclose(found, logits.softmax(1), rtol=1e-4, atol=1e-6)
    assert labels.tolist() == logits.argmax(1).tolist()


def refusal(*words):
    with pytest.raises(RunError) as refused:
        call(predict, *words, "--input", "images.npz")
    return str(refused.value)


def test_predictions_are_an_npz_file_by_name_too():
    with pytest.raises(RunError, match=r"^--output p\.txt: must end in \.csv or \.npz$"):
        call(predict, "nowhere", "--input", "images.npz", "--output", "p.txt")


def test_what_a_run_does_not_have_is_a_line(tiny_run, tmp_path):
    folder = tiny_run('strategy="pfedsim" num-rounds=1 pfedsim.warmup=0.0 checkpoint-every=0')
    assert refusal(folder, "--client", 4) == "--client 4: must be 0 to 3"
    assert "has no checkpoint, and pfedsim needs what the server" in refusal(folder, "--client", 0)
    (folder / "model.safetensors").unlink()
    assert refusal(folder).endswith("so this one has not finished")
    assert refusal(tiny_run('strategy="local" num-rounds=1')).endswith(
        ": local has trained no shared model; name a client, for example --client 0"
    )
    assert refusal(tmp_path / "nowhere").startswith(f"{tmp_path / 'nowhere'}: no model is there; ")
    assert refusal() == "name one model: a run directory, a state-dir or a .safetensors file"


def test_a_run_without_checkpoints_or_end_is_read_too(tiny_run, read_csv, accuracy):
    folder = tiny_run('strategy="fedper" checkpoint-every=0')
    row = last_rows(read_csv, folder)[2]
    assert accuracy(folder, 2, folder, "--client", "2") == float(row["accuracy_personalized"])
    folder = tiny_run('strategy="fedper"')
    for name in ("model.safetensors", "summary.json"):
        (folder / name).unlink()
    assert accuracy(folder, 2, folder, "--client", "2") == float(row["accuracy_personalized"])


@pytest.mark.parametrize("hidden", ["checkpoint", "clients/0"])
def test_what_this_user_may_not_read_is_not_taken_for_missing(tiny_run, monkeypatch, hidden):
    """Another user's run has private folders; the model of a client would be the initial one."""
    folder = tiny_run('strategy="fedper"')
    hide(monkeypatch, folder / hidden)
    told = f"{folder / hidden}: cannot be read (Permission denied)"
    assert refusal(folder, "--client", 0) == told


def test_a_copy_without_the_checkpoints_has_no_models_of_clients(tiny_run):
    folder = tiny_run('strategy="fedper"')
    shutil.rmtree(folder / "checkpoint")
    shutil.rmtree(folder / "clients")
    assert FinishedRun.open(folder).shared() is not None
    assert refusal(folder, "--client", 0) == (
        f"{folder}: has no checkpoint, and fedper needs what the server keeps in one; "
        "copy the whole run"
    )


def test_a_run_that_ended_before_its_first_checkpoint_is_whole(tiny_run, read_csv, accuracy):
    folder = tiny_run('strategy="fedper" checkpoint-every=0')
    row = last_rows(read_csv, folder)[2]
    text = (folder / "config.toml").read_text()
    longer = text.replace("checkpoint-every = 0", "checkpoint-every = 5")
    (folder / "config.toml").write_text(longer)
    (folder / "summary.json").write_text('{"finished": false}')
    assert accuracy(folder, 2, folder, "--client", "2") == float(row["accuracy_personalized"])


MISSING = "clients/ is missing or not whole; copy the whole run"


@pytest.mark.parametrize("method", ["fedper", "pfedme"])
def test_a_copy_without_states_scores_no_untrained_layers(method, tiny_run):
    """Without a checkpoint, only the summary knows how many clients have a state."""
    folder = tiny_run(f'strategy="{method}" checkpoint-every=0')
    shutil.rmtree(folder / "clients" / "2")
    assert refusal(folder, "--client", 2) == f"{folder}: {MISSING}"
    shutil.rmtree(folder / "clients")
    assert refusal(folder, "--client", 2) == f"{folder}: {MISSING}"


def test_a_damaged_state_of_a_run_without_checkpoint_is_not_passed_over(tiny_run):
    """The summary counts those that are there, and an older one would be that of another round."""
    folder = tiny_run('strategy="pfedme" checkpoint-every=0 num-rounds=2 fraction-train=1.0')
    (folder / "clients" / "2" / "round-000002.safetensors").write_bytes(b"")
    told = refusal(folder, "--client", 2)
    assert told.startswith(f"{folder}: client 2: the state of round 2 was expected, but that of")


def test_files_beside_the_states_cost_no_run(tiny_run, accuracy, monkeypatch):
    """Finder writes one into each folder that it shows."""
    save = ClientStore.save

    def beside(store, round_, state):
        save(store, round_, state)
        (store.folder.parent / ".DS_Store").write_text("")
        (store.folder.parent / "a-b.txt").write_text("")

    monkeypatch.setattr(ClientStore, "save", beside)
    folder = tiny_run('strategy="fedper" checkpoint-every=0')
    assert json.loads((folder / "summary.json").read_text())["clients_with_state"] > 0
    assert 0 <= accuracy(folder, 2, folder, "--client", "2") <= 1


@pytest.mark.parametrize("text", ["{", "[1]"])
def test_a_summary_that_cannot_be_read_is_told(tiny_run, text):
    folder = tiny_run('strategy="fedavg" checkpoint-every=0')
    (folder / "summary.json").write_text(text)
    told = refusal(folder, "--client", 2)
    assert told.startswith(f"{folder / 'summary.json'}: cannot be read (")
    assert f"resuming the run writes it anew (fedapps serial --resume {folder})" in told


def test_a_copy_without_states_of_a_run_whose_clients_keep_none_is_whole(tiny_run, accuracy):
    folder = tiny_run('strategy="fedavg" checkpoint-every=0')
    shutil.rmtree(folder / "clients", ignore_errors=True)
    assert 0 <= accuracy(folder, 2, folder, "--client", "2") <= 1


@pytest.mark.parametrize("summary", ['{"finished": false}', '{"finished": true}'])
def test_a_summary_without_the_count_of_states_is_not_needed_for_own_layers(summary, tiny_run):
    """An earlier version wrote it, or the run ended early."""
    folder = tiny_run('strategy="fedrod" checkpoint-every=0')
    (folder / "summary.json").write_text(summary)
    shutil.rmtree(folder / "clients")
    assert refusal(folder, "--client", 2) == f"{folder}: {MISSING}"


def test_a_run_whose_certificates_are_gone_is_read_all_the_same(tiny_run, tmp_path):
    """They are the server's, and only while clients connect."""
    certificates = make_tls(tmp_path / "tls")
    folder = tiny_run(f'strategy="sflv2" num-rounds=1 channel-tls="{certificates}"')
    shutil.rmtree(certificates)
    assert FinishedRun.open(folder).shared() is not None


def test_a_run_that_ended_in_its_first_round_has_nothing_to_show(tiny_run, monkeypatch, tmp_path):
    monkeypatch.setattr(Rounds, "aggregate_train", Mock(side_effect=RunError("nobody there")))
    with pytest.raises(RunError, match="nobody there"):
        tiny_run('strategy="fedavg" checkpoint-every=0')
    (folder,) = (tmp_path / "runs").glob("fedavg-*")
    assert (folder / "model.safetensors").exists()
    assert refusal(folder) == f"{folder}: no round of this run has finished"


def test_what_a_finished_run_sends_is_float32_too(serial_run, monkeypatch):
    """A method may keep a state in float64; clients of the run got float32."""
    seen = []

    class Doubling(registry.strategy_class("fedavg")):
        def evaluation_plan(self, round_, client):
            plan = super().evaluation_plan(round_, client)
            return replace(plan, receives={"shift/x": (3,)})

        def download(self, round_, client, plan):
            further = {name: np.arange(3) / 3 for name in plan.receives}
            return super().download(round_, client, plan) | further

    class Watching(registry.client_class("fedavg")):
        def before_scoring(self, plan):
            seen.append(self.received["shift/x"].dtype)
            return super().before_scoring(plan)

    monkeypatch.setattr(registry, "strategy_class", lambda name: Doubling)
    monkeypatch.setattr(registry, "client_class", lambda name: Watching)
    folder = serial_run(TINY, 'strategy="fedavg"')
    assert set(seen) == {np.dtype(np.float32)}
    seen.clear()
    FinishedRun.open(folder).client(0)
    assert seen == [np.float32]


def test_another_evaluation_tells_small_errors(serial_run, read_csv, monkeypatch, tmp_path, capsys):
    table, truth = kinds.arrays("regression")
    monkeypatch.setattr(kinds, "arrays", lambda _: (table, 1e-4 * truth))
    folder = serial_run(kinds.options(tmp_path, "regression"), 'strategy="fedavg" num-rounds=1')
    capsys.readouterr()
    again.evaluate(folder, {})
    told = capsys.readouterr().out.partition("mean absolute error ")[2].split()
    (row,) = read_csv(folder, "evaluations.csv")
    means = [float(row[f"mae_{when}"]) for when in ("initial", "personalized")]
    assert [float(told[0]), float(told[2])] == pytest.approx(means, rel=5e-4)
    assert 0 < means[1] < 1e-4


def test_a_model_of_another_run_is_refused(tiny_run):
    folder, other = (
        tiny_run(f'strategy="fedavg" num-rounds=1 checkpoint-every=0 model="{model}"')
        for model in ("mlp", "lenet5")
    )
    shutil.copy(other / "model.safetensors", folder)
    with pytest.raises(RunError, match=r"config\.toml do not belong to the same run$"):
        FinishedRun.open(folder)


@pytest.mark.parametrize("checkpoints", [0, 1])
def test_of_an_edited_model_that_no_longer_fits_the_cause_is_told(checkpoints, tiny_run, tmp_path):
    code = "from torch import nn\n\ndef make(inputs, outputs):\n    return nn.Sequential("
    code += "nn.Flatten(), nn.Linear(64, {0}), nn.Linear({0}, *outputs.shape))\n"
    (mine := tmp_path / "mine.py").write_text(code.format(5))
    keys = f'model="{mine}" strategy="fedavg" checkpoint-every={checkpoints} finetune-epochs=0'
    folder = tiny_run(keys)
    mine.write_text(code.format(6))
    workspace.cache_clear()  # as in a new process
    told = "the model's code or initial values have changed since the run; put back what was there"
    with pytest.raises(RunError, match=f"^{folder}: .*; {told}$"):
        FinishedRun.open(folder, trust=str(mine))
    mine.write_text(code.format(5))
    workspace.cache_clear()
    assert FinishedRun.open(folder, trust=str(mine)).round == 2


def test_the_settings_of_a_run_are_read_once_for_all_clients(tiny_run, monkeypatch):
    folder, read = tiny_run('strategy="fedper" checkpoint-every=1'), []
    settings_of = finished.settings_of

    def counted(*given):
        read.append(given)
        return settings_of(*given)

    monkeypatch.setattr(finished, "settings_of", counted)
    run = FinishedRun.open(folder)
    opened = len(read)
    for client in range(4):
        run.evaluate(client)
    assert len(read) <= opened + 1


@pytest.mark.parametrize(("run", "changes", "line"), [
    (
        'strategy="fedseq" fedseq.finetune-epochs=1', {"finetune-epochs": 20},
        "no effect: fedseq.finetune-epochs = 1 overrides finetune-epochs = 20",
    ),
    ('strategy="fedper"', {"device": "cuda"}, 'device = "cuda": no GPU is visible here'),
])  # fmt: skip
def test_another_evaluation_refuses_what_it_would_not_do(run, changes, line, tiny_run, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    folder = tiny_run(run, "num-rounds=1")
    with pytest.raises(RunError) as refused:
        again.evaluate(folder, changes)
    assert str(refused.value).startswith(line)
    assert not (folder / "evaluations.csv").exists()


def test_clients_on_devices_are_not_scored_here(tmp_path):
    (tmp_path / "config.toml").write_text('dataset = "device"')
    with pytest.raises(RunError, match=": its clients are devices; their state is on the"):
        again.evaluate(tmp_path, {})


@pytest.mark.parametrize(("run", "changes", "why"), [
    ('strategy="ditto"', {"finetune-epochs": 20}, "on ditto"),
    ('strategy="fedper" finetune-epochs=0', {"finetune-lr": 0.5}, "with finetune-epochs = 0"),
])  # fmt: skip
def test_another_evaluation_tells_what_has_no_effect(run, changes, why, tiny_run, capsys):
    again.evaluate(tiny_run(run, "num-rounds=1"), changes)
    ((key, value),) = changes.items()
    assert f"{key} = {value} has no effect {why}" in capsys.readouterr().out


def test_a_methods_own_fine_tuning_can_be_another_one(tiny_run):
    """Its key does what the general one does in a run that sets neither."""
    both = [
        again.evaluate(tiny_run('strategy="fedseq" num-rounds=1', own), changes).read_bytes()
        for own, changes in (
            ("fedseq.finetune-epochs=1", {"fedseq.finetune-epochs": 3}),
            ("", {"finetune-epochs": 3}),
        )
    ]
    assert both[0] == both[1]


def test_states_belong_to_a_run_whatever_metric_ends_it(tiny_run, read_csv):
    """With `patience`, a metric decides when the run ends, but not what its clients are."""
    ends = 'metric="balanced" patience=9 validation-fraction=0.2 evaluate-on="validation"'
    folder = tiny_run('strategy="fedper" checkpoint-every=1', ends)
    assert main(["evaluate", str(folder)]) == 0
    wanted = [row["accuracy_personalized"] for row in last_rows(read_csv, folder)]
    found = [row["accuracy_personalized"] for row in read_csv(folder, "evaluation-1.csv")]
    assert found == wanted
    more = [f"--resume={folder}", "-c", "patience=0 num-rounds=3"]
    assert main(["serial", *more]) == 0
    assert "state-lost" not in (folder / "events.csv").read_text()


def test_states_of_another_client_are_not_found(tiny_run):
    folder = tiny_run('strategy="fedper"')
    rewrite(folder.glob("clients/*/*.safetensors"), r"client \d", "client 9")
    assert main(["evaluate", str(folder)]) == 1


@pytest.fixture
def people(tmp_path):
    """A table of three people, its file, and the words with which a run reads it."""
    table = pd.DataFrame({"x": np.random.default_rng(0).normal(size=90)})
    table = table.assign(who=["anna", "ben", "carl"] * 30, mood=np.where(table.x > 0, "up", "down"))
    path = tmp_path / "t.csv"
    table.to_csv(path, index=False)
    words = f'dataset="{path}" model="mlp" client-column="who" partitioner="natural" num-clients=0'
    return table, path, words


@pytest.mark.parametrize(("change", "told"), [
    (lambda t: t.replace({"who": {"anna": "zoe"}}), "client anna of the run is not there"),
    (lambda t: t[t.who != "carl"], "client carl of the run is not there"),
    (lambda t: t.drop(t.index[3::3]), r"client anna .* too few samples \(min-samples = 4\)"),
    (lambda t: t.replace({"mood": {"up": "Up"}}), "class 0 was down, and is Up now"),
    (lambda t: t.sample(frac=1, random_state=0), ""),
])  # fmt: skip
@pytest.mark.parametrize("options", ["", "num-clients=3", 'unseen-clients="carl"'])
def test_data_in_which_a_number_is_somebody_else_are_refused(
    change, told, options, people, serial_run
):
    """Otherwise, a person's name would stand at another one's model, or a class at another's.

    Who is missing is named, not another, nor a key that cannot be changed.
    """
    table, path, words = people
    folder = serial_run(words, 'strategy="fedper" num-rounds=1 finetune-epochs=0', options)
    change(table).to_csv(path, index=False)
    workspace.cache_clear()  # as in a new process
    if not told:
        FinishedRun.open(folder)
        return
    with pytest.raises(RunError, match=f"{told}.*; put back what the run had"):
        FinishedRun.open(folder)


@pytest.mark.parametrize(("gone", "told"), [(None, ""), ("", "client of the run is not there")])
def test_people_of_odd_names_keep_their_numbers(gone, told, tmp_path, serial_run):
    """In the table of names, the last two are called alike: a tab is a blank there."""
    draws, people = np.random.default_rng(0), np.repeat(["", "anna", "ben\t1", "ben 1"], 20)

    def write(who):
        arrays = {"inputs": draws.normal(size=(len(who), 4)), "targets": np.arange(len(who)) % 2}
        parts = itertools.product(("train", "test"), (arrays | {"groups": who}).items())
        np.savez(tmp_path / "p.npz", **{f"{part}_{name}": each for part, (name, each) in parts})

    write(people)
    words = f'dataset="{tmp_path}/p.npz" model="mlp" partitioner="natural" num-clients=0'
    folder = serial_run(words, 'strategy="fedavg" num-rounds=1')
    before = FinishedRun.open(folder).space.population.names
    write(people[people != gone])
    workspace.cache_clear()  # as in a new process
    if not told:
        assert FinishedRun.open(folder).space.population.names == before
        return
    with pytest.raises(RunError, match=told):
        FinishedRun.open(folder)


@pytest.mark.parametrize("wanted", [0, 2])
def test_clients_that_have_come_to_the_data_since_are_left_out(wanted, people, serial_run):
    """Even in the middle of the alphabet; and of whom some were drawn, the same ones stay."""
    table, path, words = people
    folder = serial_run(words, f'num-clients={wanted} strategy="fedper" num-rounds=1 seed=1')
    before = FinishedRun.open(folder)
    names = before.space.population.names
    assert len(names) == (wanted or 3)
    kept = [run_models.of_run(before, number).state_dict() for number in range(len(names))]
    more = table[table.who == "ben"]
    new = [more.assign(who=who, x=5 * more.x) for who in ("abel", "bea", "zoe")]
    pd.concat([table, *new]).to_csv(path, index=False)
    workspace.cache_clear()  # as in a new process
    now = FinishedRun.open(folder)
    assert now.space.population.names == names
    for number, name in enumerate(names):
        x, _ = now.samples(number, "train")
        assert {*x[:, 0]} <= {*table.x[table.who == name].astype(np.float32)}
        found = run_models.of_run(now, number).state_dict()
        assert found.keys() == kept[number].keys()
        assert all(torch.equal(value, kept[number][key]) for key, value in found.items())
