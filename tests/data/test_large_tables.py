"""Own data with many rows: what is read at once, and how much memory loading takes."""

import tracemalloc
import unicodedata
from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedapps.core import config
from fedapps.data import precision
from fedapps.data.forms import columns, frames, tables
from fedapps.data.forms.form import File, Form
from fedapps.data.npz import Rows, headers, held
from fedapps.training.run_data import RunData


class Counted(np.ndarray):
    """An array that counts how often it is indexed."""

    times = 0

    def __getitem__(self, index):
        Counted.times += 1
        return np.asarray(super().__getitem__(index))


def test_scattered_rows_in_memory_are_read_at_once(tmp_path):
    """Two parts in memory around one in a file; runs of rows do not end where a part ends."""
    draws = np.random.default_rng(0)
    parts = [draws.normal(size=(n, 3)).astype(np.float32) for n in (50, 30, 40)]
    np.savez(tmp_path / "x.npz", val_inputs=parts[1])
    stored = headers(tmp_path / "x.npz")["val_inputs"]
    own = [held(tmp_path / "x.npz", "x", part.view(Counted)) for part in (parts[0], parts[2])]
    rows = Rows((own[0], stored, own[1]))
    order = draws.permutation(120)
    Counted.times = 0
    assert (rows.read(order) == np.concatenate(parts)[order]).all()
    assert (rows.read(np.arange(120)) == np.concatenate(parts)).all()
    assert Counted.times == 4  # each part in memory, once a call


@pytest.fixture
def peak():
    """Return peak(call) -> its result, and the most bytes that it needed at once."""

    def measure(call):
        tracemalloc.start()
        try:
            return call(), tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    return measure


def test_looking_at_the_precision_of_numbers_copies_some_rows_only(peak):
    values = np.random.default_rng(0).normal(size=(50_000, 20))
    values[:, 3] += 1e7
    values[7, 5] = np.inf
    names = [f"x{i}" for i in range(20)]
    (line,), most = peak(lambda: precision.told("t.csv", names, values, False))
    assert "x3" in line and "differ by 1 only" in line
    assert most < 0.7 * values.nbytes


def test_features_of_a_table_are_made_column_by_column(peak):
    draws = np.random.default_rng(0)
    frame = pd.DataFrame({f"x{i}": draws.normal(size=20_000) for i in range(30)})
    frame["sex"] = np.array(["f", "m", None], object)[draws.integers(0, 3, 20_000)]
    rule = columns.parsed(",".join([f"x{i}" for i in range(30)] + ["sex=f|m"]))
    rows = frames.Rows.of([frame], [File(Path("t.csv"))], {})
    found, most = peak(lambda: columns.encoded(rows, rule, False))
    assert (found[:, :30] == frame.iloc[:, :30].to_numpy()).all()
    sex = frame["sex"].to_numpy()
    for place, text in ((30, "f"), (31, "m")):
        wanted = np.where(pd.isna(sex), np.nan, sex == text)
        np.testing.assert_array_equal(found[:, place], wanted.astype(float))
    assert most < 1.6 * found.nbytes


def test_a_regression_goes_through_its_clients_once(tmp_path, flat_config, monkeypatch):
    """For the inputs and for the targets; each client's samples are split when asked for."""
    x = np.random.default_rng(0).normal(size=(60, 2)).astype(np.float32)
    np.savez(tmp_path / "t.npz", inputs=x, targets=3 + x[:, 0])
    passes, indices = [], RunData._training_indices

    def counted(own):
        passes.append(1)
        return indices(own)

    monkeypatch.setattr(RunData, "_training_indices", counted)
    flat = flat_config(
        f'dataset="{tmp_path}/t.npz" model="mlp" num-clients=3 partitioner="iid" split="merged"'
    )
    data = RunData(config.read(flat))
    chosen = indices(data)
    assert len(passes) == 1
    assert data.dataset.scaling.mean == pytest.approx([(3 + x[chosen, 0]).mean()], rel=1e-6)
    assert data.dataset.normalization.mean == pytest.approx(x[chosen].mean(0).tolist(), rel=1e-5)


def test_a_regression_of_images_keeps_their_normalization(tmp_path, flat_config):
    images = np.random.default_rng(0).integers(0, 256, (60, 8, 8), np.uint8)
    np.savez(tmp_path / "i.npz", images=images, labels=images.mean((1, 2)).astype(int))
    flat = flat_config(
        f'dataset="{tmp_path}/i.npz" task="regression" model="mlp"',
        'num-clients=3 partitioner="iid" split="merged"',
    )
    found = RunData(config.read(flat)).dataset
    assert (found.normalization.mean, found.normalization.std) == ((0.5,), (0.5,))
    assert found.scaling.mean != (0.0,)


@pytest.mark.parametrize("kind", ["string", "str", object])
def test_columns_are_what_they_are_row_by_row(kind):
    """Texts that repeat, with blanks, of two spellings of a letter, and missing ones."""
    cells = [" a ", "a", None, "e\u0301", "\u00e9", "1", " 1.5", "1", None, "nan", "1e400", ""]
    values = pd.Series([*cells, *cells[::-1]], index=range(5, 29), dtype=kind)
    texts, found = frames.stripped(values), columns.numbers(values)
    assert len(texts) == len(found) == 24
    for text, number, cell in zip(texts, found, [*cells, *cells[::-1]], strict=True):
        if cell is not None:
            assert text == unicodedata.normalize("NFC", cell.strip())
        try:
            wanted = float(cell or "nan")
        except ValueError:
            wanted = np.nan
        assert number == wanted or (np.isnan(number) and np.isnan(wanted))


def test_other_values_that_are_equal_stay_what_they_are():
    values = pd.Series([Decimal("1.0"), Decimal("1.00"), True, 1, 1.0] * 2, dtype=object)
    assert frames.stripped(values).tolist() == ["1.0", "1.00", "True", "1", "1.0"] * 2


def test_each_text_of_a_table_is_looked_at_once_not_in_each_row(tmp_path, monkeypatch):
    looked = []
    monkeypatch.setattr(frames, "composed", lambda text: looked.append(text) or text)
    rows = 3000
    pd.DataFrame({
        "sex": np.array(["f", "m"])[np.arange(rows) % 2], "x": np.arange(rows) * 0.5,
        "y": np.array(["walk", "run", "sit"])[np.arange(rows) % 3],
    }).to_csv(tmp_path / "t.csv", index=False)  # fmt: skip
    found = tables.read([File(tmp_path / "t.csv")], Form(target_column="y"))
    assert found.names == ("run", "sit", "walk") and len(looked) < 60
    assert (found.arrays["targets"] == np.array([2, 0, 1])[np.arange(rows) % 3]).all()
    assert (found.arrays["inputs"][:, 0] == 1 - np.arange(rows) % 2).all()
