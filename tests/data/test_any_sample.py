"""Samples are tensors of any shape: tables, series and tokens beside images."""

import numpy as np
import pandas as pd
import pytest
import torch

from fedapps.core.config import parse, read
from fedapps.core.errors import RunError
from fedapps.data import Form, load, notes
from fedapps.data.spec import Spec
from fedapps.training.run_data import RunData
from fedapps.training.workspace import Workspace

N, TEST = 60, 20
LABELS = np.arange(N + TEST) % 3


def arrays(kind):
    """Inputs whose class can be seen, of each kind."""
    rng = np.random.default_rng(0)
    if kind == "tokens":
        return rng.integers(0, 4, (N + TEST, 9)) + 4 * LABELS[:, None]
    shape = {"table": (5,), "series": (9, 2)}[kind]
    return rng.normal(LABELS.reshape(-1, *[1] * len(shape)), 0.3, (N + TEST, *shape))


@pytest.fixture
def own(tmp_path):
    def write(inputs, targets=LABELS, **others):
        path = tmp_path / "own.npz"
        parts = {"train": slice(0, N), "test": slice(N, None)}
        members = {f"{part}_inputs": inputs[rows] for part, rows in parts.items()}
        members |= {f"{part}_targets": targets[rows] for part, rows in parts.items()}
        np.savez(path, **(members | others))
        return path

    return write


@pytest.mark.parametrize(("kind", "model", "spec"), [
    ("table", "mlp", "float32 samples of shape [5]"),
    ("series", "gru", "float32 samples of shape [9, 2]"),
    ("series", "cnn1d", "float32 samples of shape [9, 2]"),
    ("tokens", "transformer-tiny", "int64 samples of shape [9]"),
])  # fmt: skip
def test_each_kind_of_samples_is_learned(kind, model, spec, own, serial_run, read_csv):
    """Classes are far apart, so that a method which sees the samples finds them."""
    path = own(arrays(kind))
    assert str(load(str(path), "").inputs) == spec
    folder = serial_run(
        f'dataset="{path}" model="{model}" strategy="fedper" num-clients=4 min-samples=4 '
        'partitioner="iid" num-rounds=3 fraction-train=1.0 local-epochs=8 lr=0.003 '
        'batch-size=8 optimizer="adam" finetune-epochs=0 device="cpu"'
    )
    last = read_csv(folder, "rounds.csv")[-1]
    assert float(last["accuracy_personalized"]) > 0.9


def test_a_table_is_normalized_by_the_training_samples_of_all_clients(own):
    values = np.random.default_rng(1).normal([5.0, -2.0, 7.0], [1.0, 4.0, 0.0], (N + TEST, 3))
    path = own(values)
    options = f'dataset="{path}" model="mlp" num-clients=3 partitioner="iid" device="cpu"'
    space = Workspace(read(parse([options])))
    shares = map(space.population.share, space.population.training)
    train = values.astype(np.float32)[np.concatenate([share.train for share in shares])]
    found = space.dataset.normalization
    np.testing.assert_allclose(found.mean, train.astype(float).mean(0), rtol=1e-6)
    np.testing.assert_allclose(found.std[:2], train.astype(float).std(0)[:2], rtol=1e-6)
    assert found.std[2] == 1.0  # it is constant: only shifted
    together = torch.cat([space.samples(client, "train")[0] for client in range(3)]).double()
    np.testing.assert_allclose(together.mean(0), np.zeros(3), atol=1e-6)
    np.testing.assert_allclose(together.std(0, correction=0)[:2], np.ones(2), rtol=1e-5)


@pytest.mark.parametrize(("change", "line"), [
    ({"test_inputs": np.zeros((TEST, 4))}, "test_inputs holds inputs [4] of float64; must be [5]"),
    ({"train_targets": LABELS[: N - 1]}, "train_targets holds 59 targets for 60 samples of"),
    ({"train_targets": -LABELS[:N]}, "train_targets holds label -2; must be 0..65535; numbers to"),
    (
        {"train_targets": 1.0 * LABELS[:N], "test_targets": np.array([1.0, np.nan] * (TEST // 2))},
        "test_targets[1] holds NaN or infinity; must be finite",
    ),
    (
        {"train_targets": -1e39 * LABELS[:N], "test_targets": 1.0 * LABELS[N:]},
        "train_targets[1] holds -1e+39; must be between -3.4e38 and 3.4e38",
    ),
    ({"train_inputs": np.zeros((N, 5), complex)}, "must be floats, or integers [N, T]"),
    ({"train_inputs": np.zeros(N)}, "has shape [60]; must be [N, ...], every side at least 1"),
])  # fmt: skip
def test_arrays_that_do_not_fit_are_one_line(change, line, own):
    with pytest.raises(RunError) as caught:
        load(str(own(arrays("table"), **change)), "")
    assert line in str(caught.value)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize(("one", "other"), [
    ("f4", "f8"), ("f8", "f4"), ("f2", "f8"), ("<f4", ">f4"), ("i4", "i8"), ("i1", "i8"),
    ("u2", "u8"), ("<i8", ">i8"),
])  # fmt: skip
def test_parts_may_have_numbers_of_different_sizes(save, one, other, tmp_path):
    """None of the values is changed by the size, or the order of bytes, of another part's."""
    floats = np.dtype(one).kind == "f"
    values = np.random.default_rng(0).integers(0, 1000, (N + TEST, 5)) * (1 / 8 if floats else 1)
    values[:N] %= 100
    values[N] = 1e5 if floats else 60_000
    inputs = {"train_inputs": values[:N].astype(one), "test_inputs": values[N:].astype(other)}
    if one == "f8":
        inputs["test_inputs"] /= 3
    targets = {"train_targets": LABELS[:N], "test_targets": LABELS[N:]}
    save(tmp_path / "own.npz", **inputs, **targets)
    found, _ = load(str(tmp_path / "own.npz"), "").tensors(np.arange(N + TEST))
    dtype = np.float32 if floats else np.int64
    wanted = np.concatenate([part.astype(dtype) for part in inputs.values()])
    assert found.dtype == torch.from_numpy(wanted).dtype
    np.testing.assert_array_equal(found.numpy(), wanted)


def test_labels_in_joined_files_stay_labels_whatever_their_size(tmp_path):
    """NumPy joins int64 and uint64 to float64, which would be numbers to predict."""
    for name, dtype in (("a", "i8"), ("b", "u8"), ("c", "u1")):
        values = {"inputs": np.ones((N, 2)), "targets": LABELS[:N].astype(dtype)}
        np.savez(tmp_path / f"{name}.npz", **values)
    data = load(str(tmp_path), "")
    assert data.has_labels and data.classes == 3
    assert data.labels.tolist() == [*LABELS[:N]] * 3


@pytest.mark.parametrize(("one", "other"), [
    ([0, 1], [0.2, 1.7]), ([0, 1], [2**63, 2**63 + 1]), ([0.2, 1.7], [0, 1]),
])  # fmt: skip
def test_names_of_clients_in_joined_files_are_not_cut_off(one, other, tmp_path):
    """All would be floats in one array, which tell fewer clients apart."""
    for name, groups in (("train", one), ("test", other)):
        values = {"inputs": np.ones((2, 2)), "targets": LABELS[:2], "groups": np.array(groups)}
        np.savez(tmp_path / f"{name}.npz", **values)
    with pytest.raises(RunError, match="must be texts or integers"):
        load(str(tmp_path), "")


@pytest.mark.parametrize("more", [{}, {"groups": np.arange(9)}])
def test_arrays_of_other_names_are_told_the_shortest_that_would_do(more, tmp_path):
    """As from scikit-learn."""
    np.savez(tmp_path / "own.npz", X=np.zeros((9, 2)), y=np.arange(9), **more)
    with pytest.raises(RunError, match=r"found X, y.*; or inputs, targets$"):
        load(str(tmp_path / "own.npz"), "")


@pytest.mark.parametrize(("inputs", "targets", "window", "wrong"), [
    ((0, 3), (0,), 0, "inputs has shape [0, 3]"),
    ((0, 3), (0,), 3, "inputs has shape [0, 3]"),
    ((9, 0), (9,), 0, "inputs has shape [9, 0]"),
    ((9, 3), (9, 0), 0, "targets has shape [9, 0]"),
])  # fmt: skip
def test_arrays_without_values_are_one_line(inputs, targets, window, wrong, tmp_path):
    """Such as those of a filter that nothing has passed."""
    path = tmp_path / "none.npz"
    np.savez(path, inputs=np.zeros(inputs), targets=np.zeros(targets))
    with pytest.raises(RunError) as caught:
        load(str(path), "", Form(window=window))
    assert f"{path}: {wrong}; must be [N, ...], every side at least 1" in str(caught.value)


@pytest.mark.parametrize(
    ("targets", "line"),
    [
        (1.0 * LABELS, "targets are floats from 0 to 2 without decimals, which are learned as "
         "numbers; if they are classes, save integers"),
        (1.0 * np.stack([LABELS > 0, LABELS > 1], 1), "if they are truth values, save booleans"),
        (LABELS + 0.5, ""),
    ],
)  # fmt: skip
def test_floats_that_look_like_classes_are_told(targets, line, own):
    told = notes(load(str(own(arrays("table"), targets)), ""), "merged")
    assert "".join(told).endswith(line) and len(told) == bool(line)


@pytest.mark.parametrize(
    ("dtype", "learned"), [(int, "labels"), (bool, "labels"), (float, "numbers")]
)
def test_classes_as_rows_with_a_single_1_are_told(dtype, learned, own):
    """Such as a network's own targets; a row with no 1, or with two, makes them labels."""
    rows = np.eye(3, dtype=dtype)[LABELS]
    line = (
        f"targets are learned as {learned}, but each row has exactly one 1: if these are classes,"
    )
    (told,) = notes(load(str(own(arrays("table"), rows)), ""), "merged")
    assert told.endswith(f"{line} save targets.argmax(1)")
    found = load(str(own(arrays("table"), rows)), "")
    assert not notes(found, "merged", "", "multilabel" if learned == "labels" else "regression")
    rows[4] = (1, 0, 1) if dtype is bool else 0
    told = notes(load(str(own(arrays("table"), rows)), ""), "merged")
    assert "exactly one" not in "".join(told) and len(told) == (dtype is float)


@pytest.mark.parametrize(("dtype", "task"), [(bool, "multilabel"), (int, "tokens")])
def test_booleans_are_no_tokens_if_a_text_has_as_many(dtype, task, own):
    path = own(arrays("tokens"), np.random.default_rng(0).random((N + TEST, 9)) > 0.5)
    with np.load(path) as stored:
        np.savez(path, **{k: v.astype(dtype if "targets" in k else int) for k, v in stored.items()})
    run = RunData(read(parse([f'dataset="{path}" partitioner="iid" num-clients=4 device="cpu"'])))
    assert run.task.name == task


@pytest.mark.parametrize(("model", "takes", "more"), [
    ("cnn", "images", ""),
    ("gru", "series", ", or set window if the rows are steps of a recording"),
])  # fmt: skip
def test_what_a_model_does_not_take_is_one_line_with_those_that_fit(model, takes, more, own):
    options = f'dataset="{own(arrays("table"))}" model="{model}" num-clients=3 device="cpu"'
    with pytest.raises(RunError) as caught:
        Workspace(read(parse([options])))
    assert str(caught.value) == (
        f"model '{model}': takes {takes}, but the data are float32 samples of shape [5]; use mlp"
        + more
    )


def test_augmentation_is_for_images(own):
    options = f'dataset="{own(arrays("series"))}" model="gru" num-clients=3 augment="crop-flip"'
    space = Workspace(read(parse([options, 'partitioner="iid" device="cpu"'])))
    with pytest.raises(RunError, match='augment = "crop-flip": is for images; own has float32'):
        _ = space.trainer


@pytest.mark.parametrize("unit", [1e-3, 1e-9, 1e-30, 1e9])
def test_the_unit_of_features_and_targets_does_not_matter(unit, tmp_path):
    """Coulombs or nanocoulombs: normalized, all is the same; a constant feature stays one."""
    rng = np.random.default_rng(0)
    inputs = rng.normal(2, 1, (60, 3)) * [1, 1, 0] + [0, 0, 0.1]
    found = []
    for factor in (1, unit):
        values = {"inputs": inputs * factor, "targets": (inputs[:, 0] - inputs[:, 1]) * factor}
        np.savez(tmp_path / "u.npz", **values)
        data = load(str(tmp_path / "u.npz"), "").normalized(np.arange(50)).scaled(np.arange(50))
        mean, std = (values.numpy() for values in data.scaling.tensors(Spec((1,))))
        x, y = data.tensors(np.arange(60))
        found.append((x.numpy(), (y.numpy() - mean) / std))
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(other, one, atol=2e-5)
    assert found[1][0][:, 0].std() > 0.9 and found[1][1].std() > 0.9
    assert not found[1][0][:, 2].any()


class TestLargeOffsets:
    """float32 has steps of 1 at ten million, and of 64 at a billion."""

    Y = np.random.default_rng(2).integers(0, 2, N)
    FAR = 1e7 + Y + 0.1

    @pytest.fixture(params=["npz", "csv", "folder"])
    def write(self, request, tmp_path):
        def save(inputs, targets):
            if request.param == "csv":
                columns = {f"x{i}": inputs[:, i] for i in range(inputs.shape[1])}
                pd.DataFrame(columns | {"y": targets}).to_csv(tmp_path / "t.csv", index=False)
                return str(tmp_path / "t.csv")
            folder = tmp_path / "clients"
            folder.mkdir()
            for name, rows in (("a", slice(0, 30)), ("b", slice(30, N))):
                np.savez(folder / f"{name}.npz", inputs=inputs[rows], targets=targets[rows])
            np.savez(tmp_path / "t.npz", inputs=inputs, targets=targets)
            return str(folder if request.param == "folder" else tmp_path / "t.npz")

        return save

    def test_targets_that_all_count_as_equal_are_refused(self, write):
        path = write(np.ones((N, 2)) * self.Y[:, None], self.FAR)
        lost = "around 1e+07 differ by 0.5 only (standard deviation), where float32 has steps of 1"
        with pytest.raises(RunError) as error:
            load(path, "")
        assert lost in str(error.value) and "; subtract a constant, such as 1e+07" in str(
            error.value
        )
        assert ("column y: " in str(error.value)) == path.endswith("csv")

    def test_features_that_are_rounded_are_told(self, write):
        middle = 3e5 + self.Y
        path = write(np.stack([self.Y, 1e9 + 3 * self.Y, middle], 1) * 1.0, self.Y * 0.7)
        (line,) = [line for line in load(path, "").told if "steps of" in line]
        one, two = ("column x1", "column x2") if "csv" in path else ("[..., 1]", "[..., 2]")
        assert one in line and two in line
        assert "differ by 1.5 only" in line and "steps of 64, so they count as equal; sub" in line

    @pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
    def test_columns_are_told_apart_in_either_order(self, save, tmp_path):
        """A data frame's `to_numpy()` is in Fortran order."""
        values = np.stack([self.Y, 1e9 + 3 * self.Y, 0.5 * self.Y, 0 * self.Y], 1) * 1.0
        values[17, 2] = -9999
        told = []
        for order in "CF":
            save(tmp_path / "t.npz", inputs=np.asarray(values, order=order), targets=self.Y)
            told.append(load(str(tmp_path / "t.npz"), "").told)
        assert any("inputs[..., 1]" in line for line in told[1])
        assert any("inputs[17]: inputs[..., 2]" in line for line in told[1])
        assert told[0] == told[1]

    def test_what_is_precise_enough_is_not_told(self, write):
        path = write(
            np.stack([self.Y + 1e4, self.Y * 1e-9 + 1e-6, self.Y * 0 + 0.1], 1), self.Y + 0.5
        )
        assert not [line for line in load(path, "").told if "steps of" in line]


@pytest.mark.parametrize(("names", "line"), [
    ("inputs target", "key targets is missing; found inputs, target; needed inputs, targets"),
    ("images targets", "key labels is missing; found images, targets; needed images, labels"),
    ("inputs labels", "key targets is missing; found inputs, labels; needed inputs, targets"),
    ("targets", "key inputs is missing; found targets; needed inputs, targets"),
    ("X y", "key train_images is missing; found X, y; needed train_images, train_labels, "
     "test_images, test_labels; or train_inputs, train_targets, test_inputs, test_targets; or "
     "inputs, targets"),
    ("images", "key labels is missing; found images; needed images, labels"),
    ("train_inputs train_targets", "key test_inputs is missing; found train_inputs, train_targets;"
     " needed train_inputs, train_targets, test_inputs, test_targets"),
])  # fmt: skip
def test_an_array_that_is_missing_goes_with_those_that_are_there(names, line, tmp_path):
    np.savez(tmp_path / "x.npz", **{name: np.ones((6, 2)) for name in names.split()})
    with pytest.raises(RunError) as error:
        load(str(tmp_path / "x.npz"), "")
    assert str(error.value) == f"{tmp_path}/x.npz: {line}"
