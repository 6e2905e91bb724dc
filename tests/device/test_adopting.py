"""A shared model is personalized when no run is on, as the run does it with a newcomer."""

import json

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from fedapps.cli import adopt, export, predict
from fedapps.core import config
from fedapps.core.errors import RunError
from fedapps.device.personalized import PLACES
from fedapps.method import tools
from tests.support import kinds
from tests.support.methods import each_method, needed

OPTIONS = (
    "num-clients=3 fraction-train=1.0 num-rounds=3 local-epochs=2 evaluate-every=0 "
    'unseen-clients="2"'
)
ALONE = (
    "local",
    "fedfomo",
    "fedem",
    "feddbe",
    "fedproto",
)  # no shared model; other clients' models; components


@pytest.fixture
def own_data(tmp_path, workspace_of):
    """Return make(run) -> the file of the samples of its client 2."""

    def make(folder):
        space = workspace_of(folder)
        images, labels, share = space.dataset.rows, space.dataset.labels, space.population.share(2)
        arrays = {}
        for part in ("train", "test"):
            rows = getattr(share, part)
            arrays |= {f"{part}_images": images.read(rows), f"{part}_labels": labels[rows]}
        np.savez(tmp_path / "own.npz", **arrays)
        return tmp_path / "own.npz"

    return make


@pytest.fixture
def adopted(parse, tmp_path, capsys):
    """Return run(model, data, *words) -> what the command prints, by line."""

    def run(model, data, *words):
        words = ("--model", model, "--data", data, "--state-dir", tmp_path / "state", *words)
        capsys.readouterr()
        assert adopt.run(parse(adopt, *map(str, words))) == 0
        return capsys.readouterr().out.splitlines()

    return run


@pytest.mark.parametrize("method", each_method(leave_out=ALONE))
def test_a_file_alone_gives_what_the_run_gave_its_newcomer(
    method, serial_run, tiny_npz, own_data, adopted, read_csv, parse, tmp_path, capsys
):
    """Before training the scores are the same; then each client has random numbers of its own."""
    folder = serial_run(tiny_npz, f'strategy="{method}" {OPTIONS} {needed(method)}')
    file, data = tmp_path / "shared.safetensors", own_data(folder)
    assert export.run(parse(export, str(folder), "--output", str(file))) == 0
    (row,) = read_csv(folder, "unseen.csv")
    first, scores, path = adopted(file, data)
    counts = f"{row['num_train']} training and {row['num_test']} test samples"
    assert first == f"{method}, {counts} of {data}"
    before, after = (float(word) for word in scores.removeprefix("accuracy: ").split(" -> "))
    assert before == pytest.approx(float(row["accuracy_initial"]), abs=5e-5)
    assert 0 <= after <= 1
    assert adopted(folder, data) == [first, scores, path]  # the run directory says the same
    np.savez(tmp_path / "ask.npz", images=np.load(data)["test_images"])
    asked = parse(predict, str(tmp_path / "state"), "--input", str(tmp_path / "ask.npz"))
    assert predict.run(asked) == 0
    found = [int(line.split()[1]) for line in capsys.readouterr().out.splitlines()]
    assert np.mean(found == np.load(data)["test_labels"]) == pytest.approx(after, abs=5e-5)


@pytest.mark.parametrize(
    "options", ['strategy="fedper"', 'strategy="fedavg" adapter-rank=2 adapter-layers="fc2"']
)
def test_what_is_not_shared_begins_as_in_the_run_not_as_drawn_from_the_seed(
    options, serial_run, tiny_npz, own_data, adopted, read_csv, parse, tmp_path
):
    """The head of a pretrained model, or its layers without adapters: the file holds them."""
    data = f'{tiny_npz} {OPTIONS} model="mlp"'
    first = serial_run(data, 'strategy="fedavg" seed=1 lr=0.2')
    folder = serial_run(data, f'{options} initial-model="{first / "model.safetensors"}" lr=0.001')
    file = tmp_path / "shared.safetensors"
    assert export.run(parse(export, str(folder), "--output", str(file))) == 0
    (row,) = read_csv(folder, "unseen.csv")
    assert float(row["accuracy_initial"]) > 0.9
    scores = adopted(file, own_data(folder))[1].removeprefix("accuracy: ").split(" -> ")
    told = [float(row[f"accuracy_{when}"]) for when in ("initial", "personalized")]
    assert [float(word) for word in scores] == pytest.approx(told, abs=5e-5)


def test_an_exported_model_says_nothing_of_the_machine_and_works_on_another(
    serial_run, tiny_npz, make_npz, own_data, adopted, parse, tmp_path
):
    """Settings of folders, files, addresses and absent clients go; all others stay."""
    house, model = tmp_path / "jane", tmp_path / "shared.safetensors"
    house.mkdir()
    data, first = make_npz(house / "wards.npz"), house / "first.safetensors"
    before = serial_run(tiny_npz, f'strategy="fedavg" {OPTIONS} lr=0.04 dataset="{data}"')
    (before / "model.safetensors").rename(first)
    folder = serial_run(
        tiny_npz,
        f'strategy="fedavg" {OPTIONS} lr=0.04 dataset="{data}" initial-model="{first}"',
        f'data-root="{house}/data" runs-dir="{house}/runs" run-name="jane-1" devices="desktops"',
        f'federation="{house}/all" channel-address="127.0.0.1:1" channel-reach="jane:1"',
        f'channel-tls="{house}/tls"',
    )
    assert export.run(parse(export, str(folder), "--output", str(model))) == 0
    assert b"jane" not in model.read_bytes() and b"127.0.0.1:1" not in model.read_bytes()
    with safe_open(model, "np") as file:
        told = json.loads(file.metadata()["fedapps"])["config"]
    usual = config.defaults()
    gone = {key for key, value in config.stored(folder).items() if told[key] != value}
    assert gone >= {"data-root", "runs-dir", "federation", "devices", "unseen-clients"}
    assert all(told[key] == usual[key] for key in PLACES) and told["lr"] == 0.04
    own = own_data(folder)
    scores = adopted(folder, own)
    house.rename(tmp_path / "gone")
    assert adopted(model, own) == scores
    for source in (model, tmp_path / "state"):
        np.savez(tmp_path / "ask.npz", images=np.load(own)["test_images"])
        assert predict.run(parse(predict, str(source), "--input", str(tmp_path / "ask.npz"))) == 0
    new = serial_run(tiny_npz, f'strategy="fedavg" {OPTIONS} initial-model="{model}"')
    assert (new / "model.safetensors").exists()


@pytest.mark.parametrize(
    "options",
    [
        'strategy="fedavg" attackers=0.5 attack="sign-flip" aggregation="median"',
        'strategy="fedfc" fedfc.cuts="1,3,2"',
    ],
)
def test_what_settings_say_of_single_clients_is_not_about_a_newcomer(
    options, serial_run, tiny_npz, own_data, adopted, read_csv
):
    folder = serial_run(tiny_npz, f"{OPTIONS} {options} finetune-epochs=0")
    (row,) = read_csv(folder, "unseen.csv")
    told = adopted(folder, own_data(folder))[1].rpartition(" -> ")[2]
    assert float(told) == pytest.approx(float(row["accuracy_personalized"]), abs=5e-5)


def test_no_memory_is_asked_for_checkpoints_that_nobody_writes(
    serial_run, tiny_npz, own_data, adopted, parse, read_model, tmp_path, monkeypatch
):
    folder = serial_run(tiny_npz, f'strategy="fedamp" {OPTIONS}')
    file, asked = tmp_path / "shared.safetensors", []
    assert export.run(parse(export, str(folder), "--output", str(file))) == 0
    monkeypatch.setattr(tools, "reserve", lambda what, nbytes, instead: asked.append(nbytes))
    whole, clients = sum(array.nbytes for array in read_model(folder).values()), 4
    for model in (file, folder):
        adopted(model, own_data(folder))
        assert asked and {*asked} <= {(clients - 1) * whole, clients * whole}


def test_personalization_can_change_and_training_cannot(
    serial_run, tiny_npz, own_data, adopted, tmp_path
):
    folder = serial_run(tiny_npz, f'strategy="fedavg" {OPTIONS}')
    data = own_data(folder)
    adopted(folder, data, "-c", "finetune-epochs=0")
    same = load_file(tmp_path / "state" / "personalized.safetensors")
    for key, value in load_file(folder / "model.safetensors").items():
        np.testing.assert_array_equal(same[key], value)
    assert adopted(folder, data, "-c", "few-shot=1")[0].startswith("fedavg, 3 training")
    with pytest.raises(RunError, match=r"lr = 0.1 .*needs another training run"):
        adopted(folder, data, "-c", "lr=0.1")


def test_what_cannot_be_adopted(serial_run, tiny_npz, own_data, adopted, parse, tmp_path):
    folder = serial_run(tiny_npz, f'strategy="fedfomo" {OPTIONS}')
    data = own_data(folder)
    with pytest.raises(RunError, match="fedfomo: a newcomer needs more than the shared model"):
        adopted(folder, data)
    mine = tmp_path / "mine.safetensors"
    export.run(parse(export, str(folder), "--client", "0", "--output", str(mine)))
    with pytest.raises(RunError, match="the model is that of client 0; adopt takes the shared"):
        adopted(mine, data)
    folder = serial_run(tiny_npz, f'strategy="local" {OPTIONS}')
    with pytest.raises(RunError, match="local has trained no shared model"):
        adopted(folder, data)


def test_numbers_are_adopted_in_the_unit_of_the_run(
    serial_run, adopted, read_csv, workspace_of, tmp_path, monkeypatch
):
    """The newcomer's own mean and deviation, which are others, make no difference.

    Errors of small numbers are not told as 0.
    """
    table, truth = kinds.arrays("regression")
    monkeypatch.setattr(kinds, "arrays", lambda _: (table, 1e-4 * truth))
    options = kinds.options(tmp_path, "regression")
    folder = serial_run(options, 'strategy="fedavg" num-rounds=1 unseen-clients="3"')
    share, (inputs, targets) = workspace_of(folder).population.share(3), kinds.arrays("regression")
    own = {}
    for part, rows in (("train", share.train), ("test", share.test)):
        own |= {f"{part}_inputs": inputs[rows], f"{part}_targets": targets[rows]}
    np.savez(tmp_path / "own.npz", **own)
    (row,) = read_csv(folder, "unseen.csv")
    scores = adopted(folder, tmp_path / "own.npz")[1]
    told = [float(x) for x in scores.removeprefix("mean absolute error: ").split(" -> ")]
    assert told[0] == pytest.approx(float(row["mae_initial"]), rel=5e-4)
    assert 0 < told[1] < 1e-4


@pytest.mark.parametrize("task", ["classification", "tokens"])
def test_tokens_are_held_against_the_tokens_of_the_run_and_labels_against_its_labels(
    task, serial_run, adopted, workspace_of, tmp_path
):
    """A text can have two classes; or begin with a token that is no target, such as the last."""
    texts, _ = kinds.arrays("tokens")
    texts[:, 0] = kinds.TOKENS  # the begin
    targets = np.arange(len(texts)) % 2 if task == "classification" else texts[:, ::-1] % 5
    run, data = tmp_path / "run.npz", tmp_path / "own.npz"
    np.savez(run, inputs=texts, targets=targets)
    options = f'dataset="{run}" model="transformer-tiny" partitioner="iid" num-clients=4'
    more = 'strategy="fedavg" num-rounds=1 unseen-clients="3" min-samples=4 local-epochs=1'
    folder = serial_run(options, more)
    share = workspace_of(folder).population.share(3)
    mine = np.concatenate([share.train, share.test])
    inputs, truth, most = texts[mine], targets[mine], targets.max()
    np.savez(data, inputs=inputs, targets=truth)
    assert adopted(folder, data)[0].startswith("fedavg, ")
    for word, array, known, key in (
        ("label", truth, most, r" \(num-classes\)"), ("token", inputs, kinds.TOKENS, "")
    ):  # fmt: skip
        old, array.flat[-1] = array.flat[-1], known + 1
        np.savez(data, inputs=inputs, targets=truth)
        told = rf"{data}: {word} {known + 1} found; the run has 0\.\.{known}{key}$"
        with pytest.raises(RunError, match=told):
            adopted(folder, data)
        array.flat[-1] = old


@pytest.mark.parametrize("task", ["tokens", "regression"])
def test_names_beside_targets_that_are_no_classes_are_not_compared(
    task, serial_run, adopted, tmp_path
):
    """The file that the run was trained on, as it is; its names say nothing of its targets."""
    inputs, targets = kinds.arrays(task)
    targets = np.abs(targets * 10).astype(np.int64) if task == "regression" else targets
    names = [f"w{number}" for number in range(int(max(targets.max(), inputs.max())) + 1)]
    data = tmp_path / "run.npz"
    np.savez(data, inputs=inputs, targets=targets, class_names=names)
    options = f'dataset="{data}" task="{task}" partitioner="iid" num-clients=4 num-rounds=1'
    model = "transformer-tiny" if task == "tokens" else "mlp"
    more = 'strategy="fedavg" unseen-clients="3" min-samples=4 local-epochs=1'
    folder = serial_run(options, f'{more} model="{model}"')
    assert adopted(folder, data)[0].startswith("fedavg, ")
