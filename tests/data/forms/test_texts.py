"""A column of texts: its bytes are the tokens, on every device the same ones."""

import re
import unicodedata
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace as Namespace

import numpy as np
import pandas as pd
import pytest

import fedapps
from fedapps.core import config
from fedapps.core.errors import RunError
from fedapps.data import load, unlabelled
from fedapps.data.forms import frames
from fedapps.data.forms.form import Form
from fedapps.data.spec import FLOAT, WHOLE, Spec
from fedapps.device import given
from fedapps.tasks import specs_of_devices, task_for
from tests.support.marks import extra

TEXTS = ["Hé, Anna!", "no", "?", "a = b | c", "日本", "", "NA", "007"]
LABELS = ["good", "bad"] * 4
FORM = Form("mood", "who", "text", text_length=6)


def table(path, texts=TEXTS, **more):
    columns = {"text": texts, "mood": LABELS[: len(texts)], "who": ["b", "b", "a", "a"] * 2}
    frame = pd.DataFrame({key: values[: len(texts)] for key, values in columns.items()} | more)
    frame.to_csv(path, index=False)
    return str(path)


def by_hand(text, length):
    values = [*text.encode()][:length]
    return values + [0] * (length - len(values))


def read(data):
    return data.rows.read(np.arange(len(data.target_values))).tolist()


def test_tokens_are_the_bytes_of_utf_8(tmp_path):
    """Cut, or filled up with zeros. No text counts as missing but the empty one."""
    texts = [text for text in TEXTS if text]
    data = load(table(tmp_path / "t.csv", texts), "", FORM)
    assert read(data) == [by_hand(text, 6) for text in texts]
    assert data.inputs == Spec((6,), WHOLE, 256)  # not as many as occur here
    assert data.names == ("bad", "good") and data.columns == "text"
    assert data.target_values.tolist() == [1, 0, 1, 0, 1, 0, 1]
    assert data.groups.tolist() == ["b", "b", "a", "a", "b", "b", "a"]
    assert "2 of 7 texts are longer than 6 bytes (text-length), and cut" in data.told


def test_letters_are_the_same_however_they_are_composed(tmp_path):
    apart = [unicodedata.normalize("NFD", "Hé"), "Hé"]
    one, other = read(load(table(tmp_path / "t.csv", apart), "", FORM))
    assert one == other == by_hand("Hé", 6) and len(apart[0]) > len(apart[1])


def test_a_missing_text_is_refused_or_left_out(tmp_path):
    path = table(tmp_path / "t.csv")
    with pytest.raises(RunError, match=r"t\.csv: line 7: column text is empty \(columns\); missi"):
        load(path, "", FORM)
    with pytest.raises(RunError, match="column text is empty"):
        load(path, "", Form("mood", "who", "text", "mean", text_length=6))  # texts have none
    data = load(path, "", Form("mood", "who", "text", "drop", text_length=6))
    assert len(read(data)) == 7 and "1 of 8 rows have no text and are left out" in data.told


@pytest.mark.parametrize(("text", "line"), [
    ('text\nhello world and more\n""\n', 3), ('text\n\n  \nhello\n""\nmore\n', 5),
    (f'text\n{"z" * 140_000}\n""\n', 3),  # longer than what module csv takes by itself
    ('text\n "a\n\nb"\n""\nmore\n', 5),  # a blank before the quote
])  # fmt: skip
def test_the_line_of_an_empty_text_in_quotes(text, line, tmp_path):
    """pandas takes it for a row, and a blank line for none: so does the message."""
    path = tmp_path / "t.csv"
    path.write_text(text)
    told = rf"t.csv: line {line}: column text is empty \(columns\); "
    with pytest.raises(RunError, match=f'{told}missing="drop" leaves such rows out$'):
        load(str(path), "", Form("", "", "text", text_length=3, next_token=True))
    with pytest.raises(RunError, match=f"{told}fill it, or leave the row out$"):  # no key does so
        unlabelled(path, Spec((3,), WHOLE, 256), "text")


def test_long_cells_in_two_files_that_are_read_at_once(tmp_path):
    """As in threads: the file that ends first leaves the other one as it is."""
    (tmp_path / "a.csv").write_text("text\nshort\n")
    (tmp_path / "b.csv").write_text(f"text\nshort\n{'z' * 140_000}\n")
    a, b = (frames._rows(tmp_path / name) for name in ("a.csv", "b.csv"))
    assert [next(a), next(b), *a] == [(1, ["text"]), (1, ["text"]), (2, ["short"])]
    assert [len(cells[0]) for _, cells in b] == [5, 140_000]


def test_texts_of_a_data_frame_are_read_as_they_are(tmp_path):
    """A row stays one, whatever its text holds, or a column that the model does not take."""
    texts = ["one\rtwo", "  hello", "NA", 'x "y"', "a\nb\r\n", "7", "1"]
    notes = ["ok", "seen\rtwice", None, 1.5, True, "ok", ","]
    frame = pd.DataFrame({"text": texts, "notes": notes, "n": np.float32([0.1, *[np.nan] * 6])})
    for columns in (["text"], ["notes", "text", "n"], ["n", "text", "notes"]):
        about = Namespace(columns="text", inputs=Spec((8,), WHOLE, 256))
        path = given.save(frame[columns], tmp_path, about)
        rows = unlabelled(path, about.inputs, "text", copy=True)
        found = rows.read(np.arange(rows.starts[-1])).tolist()
        assert found == [by_hand(text, 8) for text in texts]
    path = given.save(frame, tmp_path, Namespace(columns="n"))
    rows = unlabelled(path, Spec((1,), FLOAT), "n", gaps=True, copy=True)
    np.testing.assert_array_equal(rows.read(np.arange(7))[:, 0], frame.n)


def test_a_csv_that_is_loaded_as_the_page_says_has_the_texts_of_a_run(tmp_path):
    page = Path(__file__).parents[3].joinpath("docs", "python.md").read_text("utf-8")
    path, (load_it,) = tmp_path / "t.csv", re.findall(r"`pd\.read_csv\(path, .*\)`", page)
    path.write_text("text,n\nNA, 1\nNone,2\n null,\nnan,3\n007,4\n1.50,NA\n", "utf-8")
    about = Namespace(columns="text", inputs=Spec((8,), WHOLE, 256))
    frame = eval(load_it.strip("`"), {"pd": pd, "path": path})
    found, wanted = (
        unlabelled(file, about.inputs, "text").read(np.arange(6)).tolist()
        for file in (given.save(frame, tmp_path, about), path)
    )
    assert found == wanted


@pytest.mark.parametrize("length", [2, 4, 6])
def test_the_next_byte_is_predicted_in_pieces_of_each_text(tmp_path, length):
    """Nothing is filled up: what is left of a text would be zeros that are easy to predict."""
    texts = [text for text in TEXTS if text]
    path = table(tmp_path / "t.csv", texts)
    data = load(path, "", Form("", "who", "text", text_length=length, next_token=True))
    wanted = [
        (whole[at : at + length], whole[at + 1 : at + length + 1], "bbaabba"[place])
        for place, whole in enumerate([*text.encode()] for text in texts)
        for at in range(0, len(whole), length)
        if at + length < len(whole)
    ]
    found = zip(read(data), data.target_values.tolist(), data.groups.tolist(), strict=True)
    assert [*found] == wanted
    assert data.inputs == data.targets == Spec((length,), WHOLE, 256)
    with pytest.raises(RunError, match="text-length = 10: no text has so many bytes, and one more"):
        load(path, "", Form("", "who", "text", text_length=10, next_token=True))


class TestTextsThatGoOn:
    """They have no target, in whatever form they are: neither a column nor a folder is one."""

    FORM = Form("", "", "text", text_length=3, next_token=True)
    TEXTS = ("Hello", "Anna writes", "more")

    def pieces(self, texts):
        """What each token is, and the next one, by hand."""
        return [
            [[*text.encode()[at : at + 3]], [*text.encode()[at + 1 : at + 4]]]
            for text in texts
            for at in range(0, len(text) - 3, 3)
        ]

    def read(self, path, form=FORM):
        data = load(str(path), "", form)
        assert data.inputs == data.targets == Spec((3,), WHOLE, 256) and data.names == ()
        found = zip(read(data), data.target_values.tolist(), strict=True)
        return data, [*map(list, found)]

    @pytest.mark.parametrize("beside", ["nothing", "classes", "arrays"])
    def test_a_folder_of_datasets(self, beside, tmp_path):
        datasets = extra("datasets")
        datasets.disable_progress_bars()
        table = {"text": [*self.TEXTS]}
        if beside != "nothing":
            table["more"] = [0, 1, 0] if beside == "classes" else [[0.5, 1.0]] * 3
        whole = datasets.Dataset.from_dict(table)
        if beside == "classes":  # as imdb has them
            whole = whole.cast_column("more", datasets.ClassLabel(names=["neg", "pos"]))
        whole.save_to_disk(tmp_path / "d")
        assert self.read(tmp_path / "d")[1] == self.pieces(self.TEXTS)

    @pytest.mark.parametrize("target", ["", "text", "mood"])
    def test_a_folder_for_each_client(self, target, tmp_path):
        """Also with a target-column, which is not read."""
        for who, text in zip(("anna", "ben", "cy"), self.TEXTS, strict=True):
            (tmp_path / who).mkdir()
            table(tmp_path / who / "notes.csv", [text])
        data, found = self.read(tmp_path, replace(self.FORM, target_column=target))
        assert found == self.pieces(self.TEXTS)
        assert data.groups.tolist() == ["anna", "ben", "ben", "ben", "cy"]

    def test_a_folder_with_parts_for_each_client(self, tmp_path):
        (tmp_path / "anna").mkdir()
        for part, text in zip(("train", "test"), self.TEXTS, strict=False):
            table(tmp_path / "anna" / f"{part}.csv", [text])
        data, found = self.read(tmp_path)
        assert found == self.pieces(self.TEXTS[:2]) and data.num_train == 1
        assert data.groups.tolist() == ["anna"] * 4


@pytest.mark.parametrize("cells", [(0, 1, 1), (0, 0.5, 7)])
def test_as_many_targets_as_tokens_are_no_tokens(cells, tmp_path):
    """Labels, or numbers, that are a sample's, though they have the shape of its tokens."""
    path = table(tmp_path / "t.csv", TEXTS[:3], u=cells, v=cells[::-1])
    data = load(path, "", Form("u,v", "who", "text", text_length=2))
    assert data.target_values.tolist() == [[u, v] for u, v in zip(cells, cells[::-1], strict=True)]
    labels = max(cells) == 1
    assert data.inputs == Spec((2,), WHOLE, 256)
    assert data.targets == (Spec((2,), WHOLE, 2) if labels else Spec((2,), FLOAT))
    assert data.names == (("u", "v") if labels else ())
    task = task_for("auto", data.inputs, data.targets, "own", data.names)
    assert task.name == ("multilabel" if labels else "regression")


@pytest.mark.parametrize(("form", "told"), [
    ({"columns": ""}, r"name the column of texts in columns; there are text$"),
    ({"columns": "text,who"}, r'reads one column of texts; set columns="text"'),
    ({"columns": "text=a|b"}, r'reads one column of texts; set columns="text"'),
    ({"window": 5}, r"reads one column of texts; leave window out"),
    ({"columns": "txt"}, r"no column txt \(columns\), did you mean text\?"),
])  # fmt: skip
def test_what_is_no_column_of_texts_is_refused(tmp_path, form, told):
    given = {"columns": "text", "text_length": 6} | form
    with pytest.raises(RunError, match=told):
        load(table(tmp_path / "t.csv", TEXTS[:5]), "", Form("mood", "who", **given))


@pytest.mark.parametrize(("columns", "texts", "cure"), [
    ("text", ["it was good, really", "I did not like it"], "sentences? to learn from these, set"),
    ("age,text", ["it was good, really", "I did not like it"], "sentences? to learn from these"),
    ("text", ["good", "bad"],
     "of texts, set text-length to read them as sentences, or name the values in columns: text=bad|"
     "good"),
    ("age,text", ["good", "bad"], "of texts, name the values in columns: text=bad|good"),
])  # fmt: skip
def test_a_column_of_sentences_needs_a_length(columns, texts, cure, tmp_path):
    """Categories do not; a run with `text-length` reads one column alone."""
    pd.DataFrame({"age": 1.0, "text": texts, "ill": [0, 1]}).to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(RunError) as error:
        load(str(tmp_path / "t.csv"), "", Form(columns=columns))
    assert f"must be a finite number; {cure}" in str(error.value)


def test_sentences_among_the_inputs_are_recognized(tmp_path):
    texts = ["It is a fine day, I said", "It is a bad day, I said"] * 4
    with pytest.raises(RunError, match=r"sentences\? to learn from these, set text-length, and"):
        load(table(tmp_path / "t.csv", texts), "", Form("mood", "who"))


@pytest.mark.parametrize("task", ["auto", "tokens"])
def test_devices_know_the_tokens_without_a_list(task):
    keys = f'dataset="device" columns="text" text-length=6 num-classes=3 task="{task}"'
    inputs, targets = specs_of_devices(config.read(config.parse([keys])))
    assert inputs == Spec((6,), WHOLE, 256)
    assert targets == (inputs if task == "tokens" else Spec((), WHOLE, 3))


def test_several_columns_of_texts_are_refused_before_a_device_reads_them():
    keys = 'dataset="device" columns="text,mood" text-length=6 num-classes=3'
    with pytest.raises(RunError) as error:
        specs_of_devices(config.read(config.parse([keys])))
    rule = "text-length = 6 reads one column of texts; name this one alone"
    assert str(error.value) == f'columns = "text,mood": {rule}'


def test_a_run_on_texts_predicts_texts(tmp_path, monkeypatch, no_plots, caplog):
    """In a simulation; a table to predict has no target. It says how many texts are cut."""
    texts = [f"{word} {number}" for number in range(40) for word in ("lovely", "awful", "?")]
    moods = ["good", "bad", "bad"] * 40
    frame = pd.DataFrame({"text": texts, "mood": moods, "who": ["a", "a", "a", "b", "b", "b"] * 20})
    frame.to_csv(tmp_path / "t.csv", index=False)
    monkeypatch.chdir(tmp_path)
    run = fedapps.run(
        dataset=tmp_path / "t.csv", target_column="mood", client_column="who", columns="text",
        text_length=8, model="transformer-tiny", partitioner="natural", num_clients=0,
        strategy="fedavg", fraction_train=1.0, num_rounds=4, optimizer="adam", lr=0.003,
        threads=1, runs_dir=tmp_path / "runs", progress=False, plots=False,
    )  # fmt: skip
    assert run.summary["accuracy_personalized"] > 0.9
    asked = pd.DataFrame({"text": ["lovely 41", "awful 41", "?"]})
    caplog.clear()
    names = [run.class_names[label] for label in run.predict("a", asked)]
    assert names == ["good", "bad", "bad"]
    assert caplog.messages == ["1 of 3 texts are longer than 8 bytes (text-length), and cut"]
    run.predict("a", asked[1:])
    assert len(caplog.messages) == 1
    x, y = run.samples("a")
    assert (run.predict("a", x) == y).mean() > 0.9
