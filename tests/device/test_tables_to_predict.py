"""What a user is told of a table to predict, from Python and by `fedapps predict`."""

from pathlib import Path
from types import SimpleNamespace as Namespace

import numpy as np
import pandas as pd
import pytest

import fedapps
from fedapps.__main__ import main
from fedapps.cli import predict
from fedapps.core.errors import RunError
from fedapps.data import unlabelled
from fedapps.data.spec import Spec
from fedapps.device import personalized, predictions
from fedapps.device.given import save
from tests.support.marks import extra

KEYS = 'partitioner="natural" num-clients=0 client-column="who" model="mlp" num-rounds=1'


@pytest.fixture
def table():
    """Rows of two people by time, with a target."""
    draws = np.random.default_rng(0)
    found = pd.DataFrame({"who": ["anna", "ben"] * 60, "x": draws.normal(size=120)})
    return found.assign(mood=["up", "down"] * 60, y=draws.normal(size=120))


@pytest.fixture
def run(table, tmp_path, serial_run):
    """Return run(*run_config) -> a finished run on the table; the config says how it is read."""
    table.to_csv(tmp_path / "t.csv", index=False)

    def made(*run_config):
        data = f'dataset="{tmp_path / "t.csv"}" target-column="y" task="regression"'
        return fedapps.load(serial_run(data, KEYS, 'strategy="fedavg"', *run_config))

    return made


def test_rows_that_are_no_data_frame_are_told(run, table):
    """A column alone is a table of one; a row alone has lost the types of its values."""
    study, x = run('columns="x,mood=up|down"'), table[["x", "mood"]].head(3)
    cure = "give a data frame with the columns x, mood"
    one, rows = f"x: a Series is no table; {cure}: of a row", f"x: holds texts or objects; {cure}"
    for given, told in (
        (x.iloc[0], one),
        (table["y"], one),
        (x.to_numpy(), rows),
        (x.to_dict("records"), rows),
        (x.astype(str).to_numpy().astype("U"), rows),
    ):
        with pytest.raises(RunError, match=f"^{told}"):
            study.predict(None, given)
    alone = run('columns="x"')
    wanted = alone.predict(None, x[["x"]])
    np.testing.assert_array_equal(alone.predict(None, x["x"]), wanted)


@pytest.mark.parametrize("other", ["z", "mood"])
def test_the_columns_of_an_arrow_table_go_by_name(other, run, table, tmp_path):
    arrow, table = extra("pyarrow"), table.assign(z=np.arange(120) / 9)
    table.to_csv(tmp_path / "t.csv", index=False)
    study = run(f'columns="x,{other}{"=up|down" * (other == "mood")}"')
    asked = table[[other, "x"]].tail(5)
    found = study.predict(None, arrow.Table.from_pandas(asked))
    np.testing.assert_array_equal(found, study.predict(None, asked))


@pytest.mark.parametrize("kind", ["arrow", "polars", "datasets"])
def test_other_tables_are_read_as_their_parquet(kind, tmp_path):
    """Whole numbers and truth values stay such beside gaps; an index of a frame can be an input."""
    arrow, parquet, datasets = extra("pyarrow"), extra("pyarrow.parquet"), extra("datasets")
    index = pd.Index([3.5, 4.5, 5.5], name="x")
    made = arrow.Table.from_pandas(pd.DataFrame({"grade": [2, 1, 1], "fit": [True] * 3}, index))
    for place, name, value in ((0, "grade", [2, 1, None]), (1, "fit", [True, None, False])):
        made = made.set_column(place, name, arrow.array(value))
    parquet.write_table(made, tmp_path / "t.parquet")
    x = {
        "arrow": lambda: made,
        "polars": lambda: Namespace(to_pandas=made.to_pandas, to_arrow=lambda: made),
        "datasets": lambda: datasets.Dataset(made.take([2, 0, 1])).select([1, 2, 0]),
    }[kind]()
    about = Namespace(columns="x,fit,grade=1|2", inputs=Spec((4,)))
    saved = save(x, tmp_path, about)
    found, wanted = (
        unlabelled(path, about.inputs, about.columns, gaps=True, copy=True).read(np.arange(3))
        for path in (saved, tmp_path / "t.parquet")
    )
    np.testing.assert_array_equal(found[:2], [[3.5, 1, 0, 1], [4.5, np.nan, 1, 0]])
    np.testing.assert_array_equal(found, wanted)


def texts_of(x, folder):
    """Return the texts that a model of texts gets of x, or the error as predict tells it."""
    about = Namespace(columns="text", inputs=Spec((5,), "int64", 256))
    try:
        saved = save(x, folder, about)
        tokens = unlabelled(saved, about.inputs, about.columns, copy=True).read(np.arange(len(x)))
    except RunError as error:
        return str(error).replace(f"{folder}/x.parquet", "x")
    return [bytes(row.tolist()).rstrip(b"\0").decode() for row in tokens]


@pytest.mark.parametrize("kind", ["arrow", "batch", "pandas"])
@pytest.mark.parametrize("cells", ["bytes", "lists", "records", "texts"])
def test_only_texts_are_texts(kind, cells, tmp_path):
    """Others came out as Python writes them, such as b'hello'."""
    arrow = extra("pyarrow")
    values, held = {
        "bytes": ([b"hello", b"you"], "bytes"),
        "lists": ([["hello"], ["you"]], "a list or record"),
        "records": ([{"a": "hello"}, {"a": "you"}], "a list or record"),
        "texts": (["hello", "None"], ""),
    }[cells]
    make = {"arrow": arrow.table, "batch": arrow.record_batch, "pandas": pd.DataFrame}[kind]
    found = texts_of(make({"text": values, "z": [b"z"] * 2}), tmp_path)
    cure = "give each value a column of its own, or save arrays as .npz"
    assert found == (f"x: row 0: column text holds {held}; {cure}" if held else ["hello", "None"])


def test_a_named_column_alone_is_a_table_of_one(tmp_path):
    """A Series of Polars becomes an array of Arrow, which has no name."""
    texts = pd.Series(["hello", "you"], name="text")
    array = extra("pyarrow").array(texts)
    polars = Namespace(to_arrow=lambda: array, to_pandas=lambda: texts)
    saved = save(polars, tmp_path, Namespace(columns="text", inputs=Spec((5,), "int64", 256)))
    assert pd.read_csv(saved).text.tolist() == ["hello", "you"]


def test_two_columns_of_a_name_are_told(tmp_path):
    twins = extra("pyarrow").table([["a"], ["b"], ["c"]], ["text", "z", "z"])
    assert texts_of(twins, tmp_path) == "x: column z is there twice"


def test_a_data_frame_can_have_a_column_called_schema(run, table):
    """Tables of Arrow have a schema; pandas shows each column as an attribute, too."""
    study, x = run('columns="x"'), table[["x"]].head(3)
    np.testing.assert_array_equal(study.predict(0, x.assign(schema="a")), study.predict(0, x))


def test_a_table_that_no_parquet_can_hold_is_told(tmp_path):
    arrow = extra("pyarrow")
    spans = arrow.array([(1, 2, 3)], arrow.month_day_nano_interval())
    told = texts_of(arrow.table([["hello"], spans], ["text", "span"]), tmp_path)
    assert told.startswith("x: cannot be read as a table (ArrowNotImplementedError: ")


def test_a_table_that_cannot_be_a_data_frame_is_told(tmp_path):
    broken = Namespace(to_pandas=lambda: [][0])
    with pytest.raises(RunError, match=r"^x: cannot be read as a table \(IndexError: "):
        save(broken, tmp_path, Namespace(columns="x", inputs=Spec((1,))))


def test_rows_that_fill_no_window_are_told(run, table, tmp_path, caplog, capsys):
    study = run('window=4 columns="x"')
    asked = table[table.who == "anna"].head(10)
    windows = asked.x.to_numpy(np.float32)[:8].reshape(2, 4, 1)
    caplog.clear()
    expected = study.predict(None, windows)
    assert not caplog.messages
    np.testing.assert_array_equal(study.predict(None, asked), expected)
    told = "the last 2 of 10 rows fill no window of 4 rows, and are left out"
    assert caplog.messages == [told]
    asked.to_csv(tmp_path / "asked.csv", index=False)
    capsys.readouterr()
    assert main(["predict", str(study.path), "--input", str(tmp_path / "asked.csv")]) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 2
    assert f"note: {told}\n" in err
    with pytest.raises(RunError, match=r"^x: row 0: the window of sample 0 begins with anna and"):
        study.predict(None, table.head(8))


@pytest.mark.parametrize("who", [[None] * 8, ["anna", None, "anna", "anna"] + ["ben"] * 4])
def test_a_row_of_nobody_in_a_table_of_windows_is_refused(who, run, table, tmp_path, capsys):
    study = run('window=4 columns="x"')
    asked = table.head(8).assign(who=who)
    first = who.index(None)
    told = "column who is empty (client-column); fill it, or leave the column out"
    with pytest.raises(RunError) as error:
        study.predict(None, asked)
    assert str(error.value) == f"x: row {first}: {told}"
    asked.to_csv(tmp_path / "asked.csv", index=False)
    assert main(["predict", str(study.path), "--input", str(tmp_path / "asked.csv")]) == 1
    assert f"asked.csv: line {first + 2}: {told}\n" in capsys.readouterr().err
    assert len(study.predict(None, asked[["x"]])) == 2


def test_a_missing_value_is_refused_where_it_is(run, table, tmp_path, capsys):
    study = run('columns="x,mood=up|down"')
    asked = table.head(4)
    asked.loc[2, "mood"] = None
    asked.to_csv(tmp_path / "asked.csv", index=False)
    told = (
        "column mood is empty; the model fills no values, as its run did not (missing=mean); leave"
        " the row out"
    )
    with pytest.raises(RunError) as error:
        study.predict(None, asked)
    assert str(error.value) == f"x: row 2: {told}"
    assert main(["predict", str(study.path), "--input", str(tmp_path / "asked.csv")]) == 1
    assert f"asked.csv: line 4: {told}\n" in capsys.readouterr().err


def test_how_many_values_are_filled_is_told(run, table, tmp_path, caplog, capsys):
    study = run('columns="x,mood=up|down" missing="mean"')
    asked = table.head(5)
    asked.loc[2, ["x", "mood"]] = None
    asked.loc[4, "x"] = None
    caplog.clear()
    study.predict(None, asked.dropna())
    assert not caplog.messages
    study.predict(None, asked)
    assert caplog.messages == ["3 of 10 values are missing, and filled"]
    asked.to_csv(tmp_path / "asked.csv", index=False)
    capsys.readouterr()
    assert main(["predict", str(study.path), "--input", str(tmp_path / "asked.csv")]) == 0
    assert capsys.readouterr().err == "note: 3 of 10 values are missing, and filled\n"


@pytest.mark.parametrize(("name", "told"), [("x.csv", True), ("x.png", False), ("x.npz", False)])
def test_only_of_a_table_the_rows_of_a_sample_are_told(name, told, monkeypatch, capsys):
    """A model of pictures has columns, too, if these named the column of the pictures."""
    model = Namespace(about=Namespace(columns="image", inputs=Spec((1, 8, 8))))
    monkeypatch.setattr(predict, "read_model", lambda _options: model)
    monkeypatch.setattr(personalized, "predict", lambda *_given, **_more: ())
    monkeypatch.setattr(predictions, "lines", lambda *_given: [])
    assert predict.run(Namespace(output=None, input=Path(name))) == 0
    assert ("sample 0 is the first" in capsys.readouterr().err) == told
