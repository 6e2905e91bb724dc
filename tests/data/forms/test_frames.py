"""Tables as people have them: gaps, slips, several files, texts that look like numbers."""

import re
from dataclasses import replace
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_iris

from fedapps.core import config
from fedapps.core.errors import MisfitError, RunError
from fedapps.data import Form, clients_in, load, notes, of_device, unlabelled
from fedapps.data.forms.frames import frames_of
from fedapps.data.spec import FLOAT, WHOLE, Spec, label_spec
from tests.support.tables import save


def read(folder, form=None, **texts):
    """Write files and load their folder, or the file if there is only one."""
    for name, text in texts.items():
        (folder / f"{name}.csv").write_text(text)
    return load(str(folder if len(texts) > 1 else folder / f"{name}.csv"), "", form or Form())


def values(data):
    inputs, targets = data.tensors(np.arange(len(data.target_values)))
    return inputs.numpy().tolist(), targets.numpy().tolist()


class TestTargets:
    """Numbers stay numbers, and classes classes, whatever is in another row."""

    @pytest.mark.parametrize("slip", ["21,5", "n.d.", "about 30"])
    def test_a_slip_among_numbers_to_predict_is_refused(self, slip, tmp_path):
        """Also if nobody has said that they are numbers: these are too many, or not whole."""
        cells = [f"{number / 2}" for number in range(8)]
        text = "x,age\n" + "".join(f'1,"{cell}"\n' for cell in [*cells, slip])
        line = f'line 10: column age holds "{slip}", not a number'
        for form in (Form(numbers=True), Form()):
            with pytest.raises(RunError, match=re.escape(line)):
                read(tmp_path, form, t=text)

    @pytest.mark.parametrize(("form", "cells"), [
        (Form("y"), ["0.126", "1", "-3.5"]), (Form("y"), [*map(Decimal, ("0.126", "1", "-3.5"))]),
        (Form("y", numbers=True), ["7", "1", "12"]), (Form("y,z"), [*map(Decimal, "715")]),
        (Form("y", numbers=True), [2**63 + 2**11, 1, 0]), (Form("y,z"), [2**63 + 2**11, 1, 0]),
    ])  # fmt: skip
    def test_numbers_of_any_kind_in_parquet_can_be_predicted(self, form, cells, tmp_path):
        kind = np.uint64 if 2**63 + 2**11 in cells else object
        frame = pd.DataFrame({"x": [1.0, 2, 3], "y": pd.Series(cells, dtype=kind), "z": 2})
        data = load(str(save(frame, tmp_path, "parquet")), "", form)
        assert data.classes == 0
        found = data.target_values.reshape(3, -1)[:, 0]
        np.testing.assert_array_equal(found, np.array([*map(float, cells)], np.float32))

    @pytest.mark.parametrize("count", [2, 200])
    def test_whole_numbers_as_texts_are_classes(self, count, tmp_path):
        cells = [f"{number:03}" for number in range(count)]
        path = save(pd.DataFrame({"x": 1.0, "y": cells}), tmp_path, "parquet")
        assert load(str(path), "").names == tuple(cells)

    def test_decimal_commas_throughout_are_refused(self, tmp_path):
        text = "x,age\n" + "".join(f'1,"21,{number}"\n' for number in range(10, 90))
        with pytest.raises(RunError, match='line 2: column age holds "21,10", not a number; a dec'):
            read(tmp_path, t=text)

    def test_whole_numbers_with_one_text_are_classes(self, tmp_path):
        data = read(tmp_path, t="x,grade\n1,2\n1,1\n1,1\n1,none\n")
        assert data.names == ("1", "2", "none")
        assert values(data)[1] == [1, 0, 0, 2]
        with pytest.raises(RunError, match='line 5: column grade holds "none", not a number'):
            read(tmp_path, Form(numbers=True), t="x,grade\n1,2\n1,1\n1,1\n1,none\n")

    @pytest.mark.parametrize("missing", ["drop", "mean"])
    @pytest.mark.parametrize("kind", ["csv", "parquet", "datasets"])
    @pytest.mark.parametrize(("cells", "wanted"), [
        ([0, None, 2, 1], [0, 2, 1]), ([True, None, False, True], [1, 0, 1]),
    ])  # fmt: skip
    def test_classes_stay_classes_beside_a_row_without_one(
        self, cells, wanted, kind, missing, tmp_path
    ):
        """pandas makes floats of whole numbers with a gap, which would be a regression."""
        frame = pd.DataFrame({"x": range(4), "y": pd.Series(cells, dtype=object)})
        data = load(str(save(frame, tmp_path, kind)), "", Form("y", missing=missing))
        assert data.has_labels
        assert values(data)[1] == wanted
        assert "1 of 4 rows have no target, left out" in data.told

    @pytest.mark.parametrize(("form", "cells", "what"), [
        (Form("y"), [np.ones(2), None, np.zeros(2)], "more holds a list"),
        (Form("y"), [{"a": 1}, {"a": 2}, {"a": 1}], "more holds a list or record"),
        (Form("y"), [b"one", b"two", b"one"], "more holds bytes"),
        (Form("more"), [[1], [2], [1]], "more holds a list"),
        (Form("y", client_column="more"), [[1], [2], [1]], "more holds a list"),
        (Form(columns="more", text_length=2, next_token=True), [["abc"]] * 3, "more holds a list"),
    ])  # fmt: skip
    def test_a_cell_with_several_values_is_no_text(self, form, cells, what, tmp_path):
        """Else each list would be a category or a class of its own, and nobody would know."""
        frame = pd.DataFrame({"x": [0.5, 1.5, 2.5], "more": cells, "y": [0, 1, 0]})
        path = save(frame, tmp_path, "parquet")
        with pytest.raises(RunError, match=f"row 0: column {what}"):
            load(str(path), "", form)
        named = Form("y", columns="x")
        assert load(str(path), "", named).inputs == Spec((1,), FLOAT)  # unless it is not read

    @pytest.mark.parametrize("kind", ["csv", "parquet"])
    @pytest.mark.parametrize("gap", [False, True])
    def test_whole_floats_are_classes_if_the_task_says_so(self, kind, gap, tmp_path):
        """pandas saves integers with a gap as 1.0; also on devices, whose targets are declared."""
        table = pd.DataFrame({"x": range(4), "y": [1.0, 0.0, 2.0, np.nan if gap else 1.0]})
        table["y"] = table.y.astype("float64")
        path = save(table, tmp_path, kind)
        wanted = [1, 0, 2] + [1] * (not gap)
        asked = {task: Form.of(config.read(config.parse([f"task={task} missing=drop"])))
                 for task in ("auto", "classification", "regression")}  # fmt: skip
        data = load(str(path), "", asked["classification"])
        assert data.has_labels and data.classes == 3
        assert data.target_values.tolist() == wanted
        for task in ("auto", "regression"):
            assert load(str(path), "", asked[task]).targets == Spec((), FLOAT)
        form = Form(columns="x", missing="drop", names=("0", "1", "2"))
        own = of_device(path, Spec((1,), FLOAT), label_spec(3), form)
        assert own.target_values.tolist() == wanted

    @pytest.mark.parametrize("kind", ["csv", "parquet", "datasets"])
    @pytest.mark.parametrize(("cells", "form", "names"), [
        ([-1, 1, 1, -1], Form("y"), ("-1", "1")),
        ([-1, 1, 1, -1], Form("y", labels=True), ("-1", "1")),
        ([-1.0, 1.0, 1.0, -1.0], Form("y", labels=True), ("-1", "1")),
        ([-1, 1, 0, -1], Form("y", labels=True), ("-1", "0", "1")),
        ([-1, None, 1, -1], Form("y", labels=True, missing="drop"), ("-1", "1")),
        ([-1.0, -0.0, 0.0, -1.0], Form("y", labels=True), ("-1", "0")),
        ([-1.0, None, 1.0, 3.0], Form("y", labels=True, missing="drop"), ("-1", "1", "3")),
    ])  # fmt: skip
    def test_negative_numbers_are_names_of_classes(self, cells, form, names, kind, tmp_path):
        """A device that the run tells these names reads the same table."""
        path = save(pd.DataFrame({"x": range(4), "y": cells}), tmp_path, kind)
        data, there = load(str(path), "", form), [cell for cell in cells if cell is not None]
        assert data.names == names
        assert values(data)[1] == [names.index(str(int(cell))) for cell in there]
        own = replace(form, columns="x", names=names)
        mine = of_device(path, Spec((1,), FLOAT), label_spec(len(names)), own)
        assert values(mine) == values(data)
        numbers = load(str(path), "", Form("y", numbers=True, missing=form.missing))
        assert numbers.target_values.tolist() == there

    @pytest.mark.parametrize("kind", ["csv", "parquet", "datasets"])
    @pytest.mark.parametrize(("cells", "line"), [
        ([-1.0, 0.5], "class 0.5; the run has -1, 1"), ([-1.0, 2.0], "class 2; the run has -1, 1"),
        ([True, False], "class True; the run has -1, 1"),
        ([-1.0, 1e300], "class 1e+300; the run has -1, 1"),
    ])  # fmt: skip
    def test_other_numbers_are_no_classes_that_numbers_name(self, cells, line, kind, tmp_path):
        path = save(pd.DataFrame({"x": [1, 2], "y": cells}), tmp_path, kind)
        form = Form("y", columns="x", names=("-1", "1"))
        with pytest.raises(MisfitError, match=re.escape(line)):
            of_device(path, Spec((1,), FLOAT), label_spec(2), form)

    def test_names_that_are_numbers_are_sorted_as_numbers(self, tmp_path):
        cells, table = [10, -2, 1, -10, 2, 0], Form("y", labels=True)
        read(tmp_path, table, t="x,y\n" + "".join(f"1,{cell}\n" for cell in cells))
        for cell in cells:
            (tmp_path / "f" / str(cell)).mkdir(parents=True)
            (tmp_path / "f" / str(cell) / "1.csv").write_text(f"x\n{cell}\n{cell}\n")
        for name, form in (("t.csv", table), ("f", Form(window=2))):
            data = load(str(tmp_path / name), "", form)
            assert data.names == ("-10", "-2", "0", "1", "2", "10")
        first, targets = data.rows.read(np.arange(6))[:, 0, 0], data.target_values
        assert [int(data.names[target]) for target in targets] == first.tolist()

    def test_negative_numbers_that_can_be_a_count_are_not(self, tmp_path):
        line = r'holds label -3; must be 0\.\.65535; .* task="regression".*="classification"'
        with pytest.raises(RunError, match=line):
            read(tmp_path, t="x,y\n1,-3\n2,1\n3,4\n")

    def test_other_floats_stay_numbers(self, tmp_path):
        found = read(tmp_path, Form(labels=True), t="x,y\n1,1.0\n2,0.5\n")
        assert found.targets == Spec((), FLOAT)
        (note,) = notes(read(tmp_path, t="x,y\n1,1.0\n2,0.0\n"), "merged")
        assert note.endswith('learned as numbers; if they are classes, set task="classification"')

    def test_a_gap_in_one_file_does_not_change_the_kind_of_all(self, tmp_path):
        data = read(tmp_path, Form("y", missing="drop"), a="x,y\n1,0\n2,\n", b="x,y\n3,1\n")
        assert data.has_labels
        assert data.target_values.tolist() == [0, 1]

    @pytest.mark.parametrize("kind", ["csv", "parquet"])
    @pytest.mark.parametrize("cells", [[True, False, True], [True, None, False, True]])
    def test_truth_values_and_numbers_in_two_files_are_two_classes(self, cells, kind, tmp_path):
        """pandas joins them as objects, whose texts would be four classes."""
        truths = pd.Series(cells, dtype="boolean" if None in cells else bool)
        tables = {"a": truths, "b": pd.Series([1, 0, 1])}
        for name, column in tables.items():
            save(pd.DataFrame({"ill": column, "y": column}), tmp_path, kind, name)
        data = load(str(tmp_path), "", Form("y", missing="drop"))
        wanted = [int(cell) for cell in [*cells, 1, 0, 1] if cell is not None]
        assert data.classes == 2
        assert data.names == ()
        assert data.columns == "ill"
        assert values(data) == ([[cell] for cell in wanted], wanted)


class TestTexts:
    """A code such as 01 is one code in all files, and on devices."""

    def test_codes_are_the_same_in_all_files(self, tmp_path):
        """In a.csv alone, they would be numbers."""
        tables = {"a": "code,y\n01,01\n02,02\n", "b": "code,y\nA1,A1\n02,01\nB7,02\nA1,01\n"}
        data = read(tmp_path, **tables)
        assert data.names == ("01", "02", "A1")
        assert data.columns == "code=01|02|A1|B7"
        inputs, targets = values(data)
        assert targets == [0, 1, 2, 0, 1, 0]
        np.testing.assert_array_equal(inputs, np.eye(4)[[0, 1, 2, 1, 3, 2]])
        few = {name: text.replace("B7", "01") for name, text in tables.items()}
        line = r'"A1", not a number; .*, or for codes columns="code=01'
        with pytest.raises(RunError, match=line):
            read(tmp_path, **few)
        assert read(tmp_path, Form(columns="code=01|02|A1"), **few).shape == (3,)

    def test_a_device_with_codes_that_look_like_numbers(self, tmp_path):
        (tmp_path / "t.csv").write_text("code,y\n01,02\n02,01\n")
        form = Form("y", columns="code=01|02|A1", names=("01", "02", "A1"))
        data = of_device(tmp_path / "t.csv", Spec((3,), FLOAT), label_spec(3), form)
        inputs, targets = values(data)
        assert targets == [1, 0]
        np.testing.assert_array_equal(inputs, np.eye(3)[:2])

    @pytest.mark.parametrize("kind", ["csv", "parquet", "datasets"])
    @pytest.mark.parametrize(("cells", "names", "line"), [
        ([1, 0], ("ill", "well"), "class 1; the run has ill, well"),
        ([None, 0], ("ill", "well"), "class 0; the run has ill, well"),
        ([True, False], ("no", "yes"), "class True; the run has no, yes"),
        ([1.0, 2.0], ("a", "b", "c"), "class 1.0; the run has a, b, c"),
        ([1, 0], ("1", "2"), "class 0; the run has 1, 2"),
        ([2, 1], ("1", "2"), [1, 0]),
        ([2, 1], ("1", "2", "3"), [1, 0]),
        ([1, 0], ("0", "1"), [1, 0]),
        (["well", "ill"], ("ill", "well"), [1, 0]),
    ])  # fmt: skip
    def test_a_device_does_not_number_classes_that_have_names(
        self, cells, names, line, kind, tmp_path
    ):
        """Sorted by name, ill comes before well, where most would write 1 for ill."""
        if cells[0] is None:
            cells = pd.Series(cells, dtype="Int64")
        path = save(pd.DataFrame({"x": [1, 2], "y": cells}), tmp_path, kind)
        form = Form("y", columns="x", missing="drop", names=names)

        def read():
            return of_device(path, Spec((1,), FLOAT), label_spec(len(names)), form)

        if isinstance(line, str):
            with pytest.raises(MisfitError, match=re.escape(line + " (class-names)")):
                read()
        else:
            assert values(read())[1] == line

    def test_codes_to_predict(self, tmp_path):
        (tmp_path / "t.csv").write_text("x,code\n1,1\n2,\n")
        rows = unlabelled(tmp_path / "t.csv", Spec((4,), FLOAT), "x,code=1|2|A", gaps=True)
        found = rows.read(np.arange(2))
        np.testing.assert_array_equal(found, [[1, 1, 0, 0], [2, np.nan, np.nan, np.nan]])

    def test_blanks_at_the_end_do_not_count(self, tmp_path):
        """Columns of a fixed width have them; the rule, without them, reads the same table."""
        text = "x,sex,y\n1,F   ,no \n2,M   ,yes\n3,M,no\n"
        data = read(tmp_path, t=text)
        assert data.columns == "x,sex=F|M"
        assert data.names == ("no", "yes")
        assert values(data) == values(read(tmp_path, Form(columns=data.columns), t=text))
        np.testing.assert_array_equal(values(data)[0], [[1, 1, 0], [2, 0, 1], [3, 0, 1]])

    @pytest.mark.parametrize("cells", [
        ["1", "2", "4"], [Decimal(1), Decimal(2), Decimal(4)], pd.Categorical([1, 2, 4]),
    ])  # fmt: skip
    def test_texts_that_are_all_numbers_are_numbers(self, cells, tmp_path):
        frame = pd.DataFrame({"x": cells, "y": [0, 1, 0]})
        data = load(str(save(frame, tmp_path, "parquet")), "")
        assert data.columns == "x"
        assert values(data)[0] == [[1], [2], [4]]

    def test_whole_numbers_that_no_integer_can_hold_are_numbers(self, tmp_path):
        data = read(tmp_path, t="x,y\n99999999999999999999,0\n1,1\n")
        assert values(data)[0] == [[np.float32(1e20)], [1]]


class TestPlaces:
    """Where a row is: for messages, and for windows."""

    @pytest.mark.parametrize(("text", "line"), [
        ("x,y\n1,0\nq,1\n2,0\n", 3), ("x,y\n1,0\n\n  \nq,1\n2,0\n", 5),
        ('x,"a\nname",y\n1,"b\n\nc",0\n2,d,0\n"q",b,1\n3,d,1\n', 7),
    ])  # fmt: skip
    def test_the_line_of_a_cell_that_is_wrong(self, text, line, tmp_path):
        """Blank lines are no rows, and a cell in quotes can have several lines."""
        with pytest.raises(RunError, match=f't.csv: line {line}: column x holds "q", not a number'):
            read(tmp_path, t=text)

    @pytest.mark.parametrize(("text", "times"), [
        ("x,y\n1,0\n2,1\n", 1), ('\ufeff\n  \n"x", "y"\n\n1, "0"\n2,1\n', 1),
        ('x,y,"' + "z" * 140_000 + '"\n1,0,1\n2,1,2\n', 1),  # longer than module csv takes
    ])  # fmt: skip
    def test_a_file_is_parsed_once(self, text, times, tmp_path, monkeypatch):
        calls, parse = [], pd.read_csv
        monkeypatch.setattr(pd, "read_csv", lambda *a, **b: calls.append(a) or parse(*a, **b))
        inputs, targets = values(read(tmp_path, Form("y"), t=text))
        assert [row[0] for row in inputs] == [1, 2] and targets == [0, 1] and len(calls) == times

    def test_endings_may_have_capitals(self, tmp_path):
        (tmp_path / "a").mkdir()
        (tmp_path / "a" / "T.CSV").write_text("x,y\n1,no\n2,yes\n")
        np.savez(tmp_path / "b.npz", inputs=np.array([[1.0], [2]]), targets=[0, 1])
        (tmp_path / "b.npz").rename(tmp_path / "B.NPZ")
        for name in ("a", "a/T.CSV", "B.NPZ"):
            assert values(load(str(tmp_path / name), ""))[1] == [0, 1]

    def test_each_client_can_have_its_own_test_table(self, tmp_path):
        for client in ("anna", "ben"):
            (tmp_path / client).mkdir()
            for part, rows in (("train", "1,0\n2,1\n"), ("test", "3,1\n")):
                (tmp_path / client / f"{part}.csv").write_text(f"x,y\n{rows}")
        data = load(str(tmp_path), "", Form("y"))
        assert data.num_train == 4
        assert data.groups.tolist() == ["anna", "anna", "ben", "ben", "anna", "ben"]
        assert values(data)[1] == [0, 1, 0, 1, 1, 1]


class TestRefused:
    """What cannot be used ends in one line."""

    @pytest.mark.parametrize("kind", ["csv", "parquet", "datasets"])
    @pytest.mark.parametrize("other", ["é ", "e\u0301"])
    def test_names_that_differ_in_what_does_not_count(self, other, kind, tmp_path):
        path = save(pd.DataFrame({"é": [1, 2], other: [3, 4], "y": [0, 1]}), tmp_path, kind)
        for form in (Form(), Form("y", columns="é")):
            with pytest.raises(RunError, match=rf"t\.{kind}: column é is there twice$"):
                load(str(path), "", form)

    @pytest.mark.parametrize(("text", "line"), [
        ("x,y\n1,0,5\n2,1\n", "line 2 has 3 cells, not 2"),
        ("\nx,y\n\n1,0,5\n", "line 4 has 3 cells, not 2"),
        ("x,y\n1,0\n2,1,5\n", "line 3 has 3 cells, not 2"),
        (",,y\n1,2,0\n", "column nan is there twice"),
        ("x;y\n1;0\n", "has no comma in line 1; separate columns by commas"),
        ("", "is empty; must have a line of column names, and rows"), ("x,y\n", "has no rows"),
    ])  # fmt: skip
    def test_lines_that_do_not_fit(self, text, line, tmp_path):
        with pytest.raises(RunError, match=f"t.csv: {line}"):
            read(tmp_path, t=text)

    @pytest.mark.parametrize("kind", ["datetime64[us]", "datetime64[ms]", "timedelta64[ms]"])
    def test_dates_of_a_parquet_are_no_numbers(self, kind, tmp_path):
        """They would be counted in a unit that each file has for itself, of which nobody knows."""
        when = np.arange(1, 4_000_000_000, 33_000_000).astype("int64").astype(kind)
        path = save(pd.DataFrame({"x": 1.0, "when": when, "y": 0}), tmp_path, "parquet")
        dates = "dates? turn them into numbers, such as days, or leave them out"
        for form, line in (
            (Form(), f"row 0: column when holds {len(when)} different texts; {dates}; columns="),
            (Form(columns="x,when"), f"must be a finite number; {dates}"),
            (Form("when", numbers=True), f", not a number; {dates}"),
        ):
            with pytest.raises(RunError, match=re.escape(line)):
                load(str(path), "", form)

    def test_an_empty_part_of_tokens(self, tmp_path):
        arrays = {"train_inputs": np.ones((3, 2), int), "train_targets": np.arange(3)}
        empty = {"test_inputs": np.ones((0, 2), int), "test_targets": np.arange(0)}
        np.savez(tmp_path / "t.npz", **arrays, **empty)
        with pytest.raises(RunError, match=r"test_inputs has shape \[0, 2\]; must be .*, every"):
            load(str(tmp_path / "t.npz"), "")


def test_tokens_of_another_machine(tmp_path):
    """Integers whose first byte is the highest."""
    inputs = np.array([[1, 2], [300, 4]], ">i4")
    np.savez(tmp_path / "t.npz", inputs=inputs, targets=np.arange(2))
    assert values(load(str(tmp_path / "t.npz"), ""))[0] == inputs.tolist()


class TestFirstLine:
    """A table without a line of names would lose its first row, and call its columns after it."""

    @pytest.mark.parametrize("table", [
        "5.1,3.5,1.4,0.2,setosa", "-1.5,-2.5,no", "1e3, 2e-2,0", "7,2, ,3,9", "0,0,x",
        "5,6,x\n7,3,y", "0,1\n1,1\n0,0", "72,73,m\n70.5,165.2,f", "72,m\n70,f",
        "39, State-gov, 77516, Bachelors, 13, <=50K", "0,1,2,3,y", "410,430,445,500,501,y",
        "1,2,3,4,5\n2,4,6,8,11", "9,7,5,3,1,y\n8,6,5,2,0,n",  # rows that are in order, all of them
    ])  # fmt: skip
    def test_numbers_are_no_names(self, table, tmp_path):
        line = (
            r"t\.csv: line 1 has numbers, .*; put a line of names of columns above it, or, if "
            f"these are the names, begin them with a letter: x{table.split(',')[0]}$"
        )
        with pytest.raises(RunError, match=line):
            read(tmp_path, t=f"{table}\n{table}\n")

    @pytest.mark.parametrize(("head", "row"), [
        ("label," + ",".join(map(str, range(784))), "5" + ",0" * 784),  # a white picture
        (",".join(map(str, range(784))), ",".join("0379" * 196)),
        ("country,1990,1995,2000,2005,2010", "de,7.5,,7.25,8,9"),
        ("400.5,401.2,402.1,403.3,405.0,protein", "0.5,0.75,0.25,0.5,1.5,2.5"),
        ("4000.6,3998.7,3996.7,3994.8,3992.9,label", "0.25,1,0.5,0.75,0.5,1"),
        ("90,80,70,60,50,y", "?,,?,,?,1"),
        (",".join(str(500 - n * n / 2) for n in range(20)), ",".join("3478236587" * 2)),
        ("x1,x0.5,y", "1,2,3"), ("nan,inf,y", "1,2,3"),
    ])  # fmt: skip
    def test_many_in_even_steps_or_in_order_are(self, head, row, tmp_path):
        (tmp_path / "t.csv").write_text(f"{head}\n{row}\n{row}\n")
        (frame,) = frames_of([tmp_path / "t.csv"], (), (), {})
        assert ([*frame.columns], len(frame)) == (head.split(","), 2)

    def test_random_rows_are_not(self, tmp_path):
        """Of 3200 tables without a line of names, none would lose its first row."""
        draws, path, taken = np.random.default_rng(0), tmp_path / "t.csv", list[str]()
        for _ in range(800):
            shape = 2, draws.integers(2, 31)
            for rows in (
                draws.integers(1, 6, shape),
                draws.integers(0, 2, shape),
                draws.integers(0, 1000, shape),
                draws.normal(size=shape),
            ):
                path.write_text("\n".join(",".join(map(str, row)) for row in rows.tolist()))
                try:
                    frames_of([path], (), (), {})
                except RunError as error:
                    assert "line 1 has numbers" in str(error)
                else:
                    taken.append(path.read_text())
        assert not taken

    @pytest.mark.parametrize("step", [1, -1])  # columns from the first to the last, and back
    def test_no_iris_is(self, step, tmp_path):
        """Whichever come first: also one that descends, or ascends, above one that does not."""
        x, y = load_iris(return_X_y=True)
        lines = [
            ",".join([*map(str, [*row, kind])][::step]) for row, kind in zip(x, y, strict=True)
        ]
        draws = np.random.default_rng(0)
        for _ in range(100):
            (tmp_path / "t.csv").write_text("\n".join(draws.permutation(lines)))
            with pytest.raises(RunError, match="line 1 has numbers"):
                frames_of([tmp_path / "t.csv"], (), (), {})

    @pytest.mark.parametrize("copy", [False, True])
    def test_columns_that_the_run_names_are_names(self, copy, tmp_path):
        """Those of an array are called 0, 1, 2; the rows of a table to predict can be in order."""
        rows, path = np.array([[0.1, 0.2, 0.3], [0.5, 0.4, 0.7]]), tmp_path / "t.csv"
        np.save(tmp_path / "t.npy", np.c_[rows, [0, 1]])
        data = load(str(tmp_path / "t.npy"), "", Form(labels=True))
        assert (data.columns, data.target_column) == ("0,1,2", "3")
        for order in ([0, 1, 2], [2, 0, 1]):
            frame = pd.DataFrame(np.c_[rows, [7, 7]])[[*order, 3]]
            for table in (frame, frame.drop(columns=3)):
                table.to_csv(path, index=False)
                found = unlabelled(path, data.inputs, data.columns, copy=copy)
                np.testing.assert_array_equal(found.read(np.arange(2)), rows.astype(np.float32))
        own = load(str(save(frame, tmp_path, "csv")), "", Form("3", columns="0,1,2"))
        np.testing.assert_array_equal(values(own)[0], rows.astype(np.float32))
        assert values(own)[1] == [7, 7]

    def test_so_are_those_of_texts_of_recordings_and_of_clients(self, tmp_path):
        """In tables that have no target, or whose folder is it, or that are read once more."""
        (tmp_path / "t.csv").write_text("0\ngood\n12\n")
        texts = [[*b"good"], [*b"12\0\0"]]
        for copy in (False, True):
            rows = unlabelled(tmp_path / "t.csv", Spec((4,), WHOLE, 256), "0", copy=copy)
            assert rows.read(np.arange(2)).tolist() == texts
        own = load(str(tmp_path / "t.csv"), "", Form(columns="0", text_length=2, next_token=True))
        assert values(own) == ([texts[0][:2]], [texts[0][1:3]])
        for name in ("run", "walk"):
            (tmp_path / "f" / name).mkdir(parents=True)
            (tmp_path / "f" / name / "1.csv").write_text("0,1,2\n3,5,4\n6,8,7\n")
        own = load(str(tmp_path / "f"), "", Form(columns="0,2", window=2))
        assert values(own) == ([[[3, 4], [6, 7]]] * 2, [0, 1])
        path = tmp_path / "f" / "run" / "1.csv"
        assert clients_in(path, "1", "0,2") == 2
        assert clients_in(path, "who", "0=3|6,2") == 0

    @pytest.mark.parametrize("text", ["0.1,0.2,0.3\n0,1,2\n", "0,1,1.5\n0,1,2\n", "1,2,3\n0,1,2\n"])
    def test_a_line_without_all_of_them_is_none(self, text, tmp_path):
        path = tmp_path / "t.csv"
        path.write_text(text)
        for read in (
            lambda: unlabelled(path, Spec((3,), FLOAT), "0,1,2"),
            lambda: load(str(path), "", Form("2", columns="0,1")),
            lambda: load(str(path), "", Form("1")),  # not all are named
        ):
            with pytest.raises(RunError, match="line 1 has numbers"):
                read()


@pytest.mark.parametrize(("text", "told"), [
    ("label,x\n0,1\n1,2\n1,-", "line 4 (half written?): column x"),
    ("label,x\n0,1\n1,2\n1,-\n", "line 4: column x"),
    ("label,x\n0,1\n1,-\n1,2", "line 3: column x"),
])  # fmt: skip
def test_a_last_line_without_an_end_may_be_half_written(text, told, tmp_path):
    with pytest.raises(RunError, match=re.escape(f'{told} holds "-"; must be a finite number')):
        read(tmp_path, Form("label", columns="x"), t=text)


class TestArraysAlone:
    """A bare .npy is a table, of which the last column is the target."""

    @pytest.mark.parametrize("shape", [(6,), (6, 4, 3)])
    def test_only_two_sides_are_a_table(self, shape, tmp_path):
        np.save(tmp_path / "x.npy", np.ones(shape))
        rule = r"x\.npy: has shape .*; a table has two sides: .* inputs and targets in an \.npz"
        with pytest.raises(RunError, match=rule):
            load(str(tmp_path / "x.npy"), "")

    def test_a_recording_of_a_class_can_have_any_shape(self, tmp_path):
        for name in ("run", "walk"):
            (tmp_path / "own" / name).mkdir(parents=True)
            np.save(tmp_path / "own" / name / "1.npy", np.ones((6, 2, 2)))
        assert load(str(tmp_path / "own"), "").shape == (6, 4)
        np.save(tmp_path / "x.npy", np.arange(12.0).reshape(6, 2))
        assert load(str(tmp_path / "x.npy"), "").shape == (1,)
