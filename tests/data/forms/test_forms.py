"""Own data in other forms than .npz: sample for sample the same as an .npz written by NumPy."""

import errno
import os
import re
import shutil
import struct
import unicodedata
import zlib
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import get_args, get_type_hints

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from fedapps.core.config import parse, read
from fedapps.core.errors import RunError
from fedapps.core.settings import Settings
from fedapps.data import Form, clients_in, load, of_device, unlabelled
from fedapps.data.spec import FILLS, FLOAT, Spec, image_spec, label_spec
from fedapps.training.workspace import Workspace
from tests.support.marks import extra
from tests.support.tables import save

N = 60
WHO = np.array(["anna", "ben", "carl"])[np.arange(N) % 3]
SEX = np.array(["f", "m"])[np.arange(N) // 2 % 2]
AGE = np.round(np.random.default_rng(0).normal(50, 10, N), 1)
ILL = np.array(["no", "yes"])[(AGE > 50).astype(int)]
INPUTS = np.stack([AGE, SEX == "f", SEX == "m"], axis=1).astype(np.float32)


@pytest.fixture
def frame():
    return pd.DataFrame({"age": AGE, "sex": SEX, "who": WHO, "ill": ILL})


def tensors(data, rows=None):
    inputs, targets = data.tensors(np.arange(len(data.target_values)) if rows is None else rows)
    return inputs.numpy(), targets.numpy()


def same(data, inputs, targets, groups=None, num_train=None):
    """Compare a data set with arrays; inputs are not normalized."""
    found = tensors(data)
    np.testing.assert_array_equal(found[0], inputs)
    np.testing.assert_array_equal(found[1], targets)
    assert data.num_train == (len(targets) if num_train is None else num_train)
    if groups is not None:
        assert data.groups.tolist() == groups.tolist()


def test_a_csv_holds_what_an_npz_with_its_features_holds(frame, tmp_path):
    frame.to_csv(tmp_path / "t.csv", index=False)
    data = load(str(tmp_path / "t.csv"), "", Form(client_column="who"))
    same(data, INPUTS, ILL == "yes", WHO)
    assert data.names == ("no", "yes")
    assert data.columns == "age,sex=f|m"
    np.savez(tmp_path / "t.npz", inputs=INPUTS, targets=(ILL == "yes").astype(int), groups=WHO)
    common = 'partitioner="natural" num-clients=0 model="mlp" device="cpu" dataset='
    spaces = [
        Workspace(read(parse([f'{common}"{tmp_path}/{name}" {more}'])))
        for name, more in (("t.csv", 'client-column="who"'), ("t.npz", ""))
    ]
    assert [space.settings.num_clients for space in spaces] == [3, 3]
    for client in range(3):
        for part in ("train", "test"):
            one, other = (space.samples(client, part) for space in spaces)
            assert all((a == b).all() for a, b in zip(one, other, strict=True))


def test_parquet_is_read_like_csv(frame, tmp_path):
    extra("pyarrow")
    for table in (frame, frame.set_index("who")):
        table.to_parquet(tmp_path / "t.parquet")
        data = load(str(tmp_path / "t.parquet"), "", Form(client_column="who"))
        same(data, INPUTS, ILL == "yes", WHO)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_blanks_around_the_name_of_a_client_do_not_count(suffix, frame, tmp_path):
    """Neither for whose a row is, nor for windows, which have rows of one client."""
    frame["who"] = [f"{who}{' ' * (row // 3 % 2)}" for row, who in enumerate(WHO)]
    path = save(frame, tmp_path, suffix)
    form = Form(client_column="who", target_column="age", columns="sex=f|m")
    same(load(str(path), "", form), INPUTS[:, 1:], np.float32(AGE), WHO)
    windows = load(str(path), "", replace(form, window=20))
    assert sorted(windows.groups) == ["anna", "ben", "carl"]
    assert clients_in(path, "who", "sex=f|m") == 3
    frame.sort_values("who", key=lambda who: who.str.strip()).to_csv(tmp_path / "x.csv")
    asked = unlabelled(tmp_path / "x.csv", Spec((20, 2)), "sex=f|m", client_column="who")
    assert asked.arrays[0].shape == (3, 20, 2)


def test_files_train_and_test_are_the_official_parts(frame, tmp_path):
    frame[:40].to_csv(tmp_path / "train.csv", index=False)
    frame[40:].to_csv(tmp_path / "test.csv", index=False)
    data = load(str(tmp_path), "", Form(target_column="ill", columns="age", client_column="who"))
    order = np.r_[40:60, 0:40]  # files in the order of their names, parts in the order of training
    assert sorted(order) == [*range(N)]
    same(data, INPUTS[:, :1], ILL == "yes", WHO, num_train=40)


def test_npz_files_of_clients_are_joined(tmp_path):
    for who in ("ben", "anna"):
        there = who == WHO
        members = {"train_inputs": INPUTS[there][:12], "train_targets": AGE[there][:12]}
        members |= {"test_inputs": INPUTS[there][12:], "test_targets": AGE[there][12:]}
        np.savez(tmp_path / f"{who}.npz", **members)
    rows = [np.flatnonzero(who == WHO) for who in ("anna", "ben")]
    order = np.concatenate([rows[0][:12], rows[1][:12], rows[0][12:], rows[1][12:]])
    same(load(str(tmp_path), ""), INPUTS[order], np.float32(AGE[order]), WHO[order], 24)


@pytest.mark.parametrize("place", ["{part}/{who}", "{who}/{part}", "{part}/{who}/1"])
@pytest.mark.parametrize("suffix", [".npz", ".csv"])
def test_parts_in_folders_keep_each_clients_own_split(place, suffix, frame, tmp_path):
    """A file in the folder of a part, and in no folder of a client, is a client."""
    owner = np.array(["anna", "ben"])[np.arange(N) % 2]
    order = np.r_[0:40:2, 1:40:2, 40:60:2, 41:60:2]  # the parts, with anna's rows first
    for rows in np.split(order, [20, 40, 50]):
        part = "train" if rows[0] < 40 else "test"
        path = tmp_path / f"{place.format(part=part, who=owner[rows[0]])}{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        if suffix == ".csv":
            frame.loc[rows, ["age", "ill"]].to_csv(path, index=False)
        else:
            np.savez(path, inputs=INPUTS[rows, :1], targets=(ILL == "yes")[rows].astype(int))
    target = "ill" if "/1" in place or place[1] == "w" else ""  # else, the last column
    data = load(str(tmp_path), "", Form(target_column=target if suffix == ".csv" else ""))
    same(data, INPUTS[order, :1], (ILL == "yes")[order], owner[order], num_train=40)


def test_a_class_can_have_the_name_of_a_part(frame, tmp_path):
    """Those who go by train are no training part, if others go by bus."""
    for number, place in enumerate(("bus/1.csv", "train/1.csv")):
        (tmp_path / place).parent.mkdir()
        frame.loc[[number, number + 2], ["age"]].to_csv(tmp_path / place, index=False)
    data = load(str(tmp_path), "", Form())
    assert (data.names, data.num_train, data.shape) == (("bus", "train"), 2, (2, 1))


WHICH = r"cat/.\.png: its place .* say which "


@pytest.mark.parametrize(("places", "told"), [
    (("train/cat/1.png", "cat/2.png"), f"{WHICH}train or test$"),
    (("cat/1.png", "zoe/cat/2.png"), f"{WHICH}client$"),
    (("train/1.png", "test/1.png"), r"test/1\.png: must be in the folder of its class"),
])  # fmt: skip
def test_a_picture_whose_place_does_not_say_what_it_is_is_named(places, told, tmp_path):
    for place in places:
        (tmp_path / place).parent.mkdir(parents=True)
        Image.new("L", (2, 2)).save(tmp_path / place)
    with pytest.raises(RunError, match=f"^{tmp_path}/{told}"):
        load(str(tmp_path), "")


@pytest.mark.parametrize("file", ["0.npz", ""])
def test_a_pickle_is_refused_with_what_to_do(file, tmp_path):
    """As PFLlib saves its clients."""
    np.savez_compressed(tmp_path / "0.npz", data={"x": INPUTS, "y": AGE})
    with pytest.raises(RunError) as error:
        load(str(tmp_path / file), "")
    assert str(error.value) == (
        f"{tmp_path / '0.npz'}: data holds Python objects; save each array under a name of its own,"
        " such as images and labels (PFLlib's files: docs/coming-from-pfllib.md)"
    )


GOOD = {"inputs": INPUTS[:4], "targets": np.arange(4)}


@pytest.mark.parametrize(("members", "message"), [
    ({"x": INPUTS, "y": AGE}, "eve.npz: holds x, y; must hold inputs and targets, or images and"),
    ({}, "eve.npz: holds nothing; must hold inputs and targets"),
    ({"inputs": INPUTS, "labels": AGE}, "eve.npz: holds inputs, labels; must hold inputs and targ"),
    (GOOD | {"train_inputs": INPUTS}, "eve.npz: holds inputs, targets, train_inputs; must hold"),
    (GOOD | {"groups": WHO[:4]}, "eve.npz: groups has shape [4], but the file is one client"),
    (GOOD | {"targets": WHO[:4]}, "eve.npz: targets has dtype <U4; must be numbers"),
    (GOOD | {"targets": AGE[:4]}, "eve.npz: holds targets [], floats; anna.npz holds targets [], "),
    (GOOD | {"targets": AGE}, "eve.npz: targets has shape [60] and inputs [4, 3]; must be one for"),
    ({"images": np.zeros((4, 2, 2)), "labels": np.arange(4)}, "eve.npz: holds images, labels; "),
])  # fmt: skip
def test_an_npz_file_of_a_client_that_cannot_be_joined_is_named(members, message, tmp_path):
    np.savez(tmp_path / "anna.npz", **GOOD)
    np.savez(tmp_path / "eve.npz", **members)
    with pytest.raises(RunError) as error:
        load(str(tmp_path), "")
    assert message in str(error.value)


NAMES = np.array(["no", "yes", "unknown"])


@pytest.mark.parametrize("places", [("a.npz",), ("own/a.npz", "own/b.npz")])
def test_an_npz_can_name_its_classes_or_labels(places, tmp_path):
    """Also a class that nobody has: its name counts."""
    (tmp_path / "own").mkdir()
    name = str(tmp_path / places[0].partition("/")[0])
    inputs, classes = np.eye(4), np.array([0, 1, 1, 0])
    for place in places:
        np.savez(tmp_path / place, inputs=inputs, targets=classes, class_names=NAMES)
    data = load(name, "")
    assert data.names == ("no", "yes", "unknown")
    assert data.classes == 3
    assert data.told == ("the classes are 0 = no, 1 = yes, 2 = unknown",)
    for place in places:
        np.savez(tmp_path / place, inputs=inputs, targets=inputs[:, :3] > 0, class_names=NAMES)
    data = load(name, "")
    assert data.names == ("no", "yes", "unknown")
    assert not data.told
    for targets, names, needed in (
        (classes + 2, NAMES, 4), (classes, ["no", "no"], 2), (inputs > 0, NAMES, 4),
        (inputs.astype(int) + 3, NAMES, 5),
    ):  # fmt: skip
        for place in places:
            np.savez(tmp_path / place, inputs=inputs, targets=targets, class_names=names)
        rule = f"must be {needed} different names, one for each class, label or token"
        with pytest.raises(RunError, match=f"class_names are no, .*; {rule}"):
            load(name, "")


@pytest.mark.parametrize("place", ["a.npz", ""])
def test_a_device_has_its_columns_of_labels_in_the_order_of_the_run(place, tmp_path):
    """Also in a folder of files, whose columns would be swapped."""
    labels, kinds = np.arange(20).reshape(10, 2) % 3 > 0, ["cough", "fever"]
    for name in ("a.npz", "b.npz"):
        np.savez(tmp_path / name, inputs=np.ones((10, 3)), targets=labels, class_names=kinds)
    about = tmp_path / place, Spec((3,)), Spec((2,), "int64", 2)
    mine = of_device(*about, Form(names=("cough", "fever")))
    np.testing.assert_array_equal(mine.tensors(np.arange(10))[1], labels)
    with pytest.raises(RunError, match="class_names are cough,fever; the run has fever,cough"):
        of_device(*about, Form(names=("fever", "cough")))


@pytest.mark.parametrize("count", [20, 21])
def test_an_npz_can_name_its_tokens(count, tmp_path):
    """All of the vocabulary, of which a text may lack some; not one for each step."""
    text, names = np.arange(36).reshape(4, 9) % 20, [f"w{token}" for token in range(count)]
    inputs, targets = text[:, :-1], text[:, 1:]
    np.savez(tmp_path / "t.npz", inputs=inputs, targets=targets, class_names=names)
    data = load(str(tmp_path / "t.npz"), "")
    assert data.targets.choices == 20
    assert data.names == tuple(names)


def test_files_that_name_their_classes_differently_are_refused(tmp_path):
    for place, names in (("a.npz", NAMES), ("b.npz", NAMES[::-1])):
        np.savez(tmp_path / place, inputs=np.eye(4), targets=np.arange(4) % 3, class_names=names)
    line = "b.npz: class_names are unknown, yes, no; a.npz has no, yes, unknown"
    with pytest.raises(RunError, match=line):
        load(str(tmp_path), "")


@pytest.fixture
def recordings(tmp_path):
    """Six files of 25 steps and three axes: two people, three exercises."""
    rng, found = np.random.default_rng(1), {}
    for who in ("p1", "p2"):
        for exercise in ("curl", "lift", "press"):
            values = np.float32(rng.normal(size=(25, 3)).round(3))
            folder = tmp_path / who / exercise
            folder.mkdir(parents=True)
            pd.DataFrame(values, columns=[*"xyz"]).to_csv(folder / "1.csv", index=False)
            found[who, exercise] = values
    return tmp_path, found


@pytest.mark.parametrize(("window", "step"), [(0, 0), (10, 0), (10, 4), (25, 1)])
def test_recordings_in_folders_of_classes_are_cut_into_windows(recordings, window, step):
    folder, found = recordings
    size = window or 25
    starts = range(0, 25 - size + 1, step or size)
    data = load(str(folder), "", Form(window=window, window_step=step))
    inputs = np.stack([rows[s : s + size] for rows in found.values() for s in starts])
    names = [key for key in found for _ in starts]
    labels = np.array([("curl", "lift", "press").index(name) for _, name in names])
    same(data, inputs, labels, np.array([who for who, _ in names]))
    assert data.names == ("curl", "lift", "press")
    assert any("overlap" in line for line in data.told) == (0 < step < size)
    assert 'the inputs are columns="x,y,z"' in data.told


def test_recordings_of_different_lengths_need_a_window(recordings):
    folder, found = recordings
    table = pd.DataFrame(found["p2", "lift"][:24], columns=[*"xyz"])
    table.to_csv(folder / "p2" / "lift" / "1.csv", index=False)
    with pytest.raises(RunError, match="files have different numbers of rows; set window=100 for"):
        load(str(folder), "")


def test_windows_of_rows_with_labels_have_one_label_and_one_client(tmp_path):
    label = np.repeat(["walk", "run", "walk"], [7, 5, 8])
    x = np.arange(20.0)
    pd.DataFrame({"x": x, "label": label}).to_csv(tmp_path / "anna.csv", index=False)
    pd.DataFrame({"x": -x, "label": "run"}).to_csv(tmp_path / "ben.csv", index=False)
    data = load(str(tmp_path), "", Form(window=3, target_column="label"))
    starts = [0, 3, 7, 12, 15]  # in anna's file; ben's has six windows
    first = [x[s] for s in starts] + [-x[s] for s in range(0, 18, 3)]
    assert tensors(data)[0][:, 0, 0].tolist() == first
    assert tensors(data)[1].tolist() == [1, 1, 0, 1, 1] + 6 * [0]  # run, walk
    assert data.groups.tolist() == 5 * ["anna"] + 6 * ["ben"]


@pytest.mark.parametrize("kind", ["csv", "npz"])
def test_rows_of_other_clients_may_be_between_those_of_a_window(kind, tmp_path):
    """As in a table that is sorted by time: the samples are those of the table sorted by client."""
    rng = np.random.default_rng(8)
    who, x = rng.choice(["zoe", "abe", "ida"], 60), np.arange(60.0)
    who[:3] = "zoe", "abe", "ida"  # clients come in the order of their first rows
    y = np.array([0, 1, 0])[x.astype(int) // 20]
    by_client = np.concatenate([np.flatnonzero(who == name) for name in ("zoe", "abe", "ida")])
    found = []
    for name, rows in (("mixed", np.arange(60)), ("sorted", by_client)):
        path = tmp_path / f"{name}.{kind}"
        if kind == "csv":
            pd.DataFrame({"who": who, "x": x, "y": y}).iloc[rows].to_csv(path, index=False)
        else:
            np.savez(path, inputs=x[rows, None], targets=y[rows], groups=who[rows])
        form = Form("y", "who" * (kind == "csv"), window=4, window_step=1)
        data = load(str(path), "", form)
        found.append((tensors(data)[0][..., 0].tolist(), data.groups.tolist()))
    assert found[0] == found[1]
    expected = []
    for name in ("zoe", "abe", "ida"):
        rows = np.flatnonzero(who == name)
        for at in range(len(rows) - 3):
            if len({*y[rows[at : at + 4]]}) == 1:
                expected.append(rows[at : at + 4].tolist())
    assert found[0][0] == expected


def test_a_row_that_is_left_out_ends_a_window_of_its_client_alone(tmp_path):
    lines = ["a,0,1", "b,10,1", "a,1,1", "b,,1", "a,2,1", "b,12,1", "a,3,", "b,13,1", "a,4,1"]
    (tmp_path / "t.csv").write_text("\n".join(["who,x,y", *lines, "a,5,1", ",9,", "a,6,1"]))
    form = Form("y", "who", missing="drop", window=2, window_step=1)
    data = load(str(tmp_path / "t.csv"), "", form)
    assert tensors(data)[0][..., 0].tolist() == [[0, 1], [1, 2], [4, 5], [12, 13]]
    assert data.groups.tolist() == ["a", "a", "a", "b"]


@pytest.mark.parametrize("step", [0, 2])
def test_recordings_in_npz_files_are_cut_like_tables(step, tmp_path):
    rng, folders = np.random.default_rng(6), [tmp_path / "csv", tmp_path / "npz"]
    for folder in folders:
        folder.mkdir()
    for who, rows in (("anna", 20), ("ben", 11), ("zoe", 2)):
        values, label = np.float32(rng.normal(size=(rows, 3))), np.arange(rows) // 7 % 2
        frame = pd.DataFrame(values, columns=[*"xyz"]).assign(label=label)
        frame.to_csv(folders[0] / f"{who}.csv", index=False)
        np.savez(folders[1] / f"{who}.npz", inputs=values, targets=label)
    form = Form(window=3, window_step=step)
    table, arrays = (load(str(folder), "", form) for folder in folders)
    np.testing.assert_allclose(tensors(arrays)[0], tensors(table)[0], rtol=1e-6)
    assert tensors(arrays)[1].tolist() == tensors(table)[1].tolist()
    assert arrays.groups.tolist() == table.groups.tolist()
    assert {*arrays.groups} == {"anna", "ben"}
    spans = [7, 7, 6, 7, 4]  # rows with one label; zoe's two are no window
    used = sum((rows - 3) // (step or 3) * (step or 3) + 3 for rows in spans)
    for data in (table, arrays):
        assert f"; {33 - used} of 33 rows are in no window; 1 of 6 stretches" in data.told[0]
        assert "zoe: no sample is left, so not a client" in data.told
    with pytest.raises(RunError, match=r"window = 3 cuts floats .*of shape \[4, 2\]: leave"):
        np.savez(tmp_path / "cut.npz", inputs=np.zeros((5, 4, 2)), targets=np.arange(5))
        load(str(tmp_path / "cut.npz"), "", form)


@pytest.mark.parametrize(("places", "num_train", "groups"), [
    ("train/{c}/{n}.png test/{c}/{n}.png", 6, None),
    ("{c}/{n}.png", 6, None),
    ("zoe/{c}/{n}.png abe/{c}/{n}.png", 12, ["abe"] * 6 + ["zoe"] * 6),
])  # fmt: skip
def test_pictures_in_folders(places, num_train, groups, tmp_path):
    rng, by_place = np.random.default_rng(2), {}
    for place in places.split():
        for c in ("cat", "dog"):
            for n in range(3):
                path = tmp_path / place.format(c=c, n=n)
                path.parent.mkdir(parents=True, exist_ok=True)
                pixels = rng.integers(0, 256, (6, 5), np.uint8)
                Image.fromarray(pixels).save(path)
                by_place[str(path.relative_to(tmp_path))] = pixels
    data = load(str(tmp_path), "")
    names = sorted(by_place)
    if num_train < len(names):
        names.sort(key=lambda name: not name.startswith("train"))
    images = np.stack([by_place[name] for name in names])[:, None].astype(np.float32)
    labels = np.array(["dog/" in name for name in names])
    same(data, (images / np.float32(255) - 0.5) / 0.5, labels, None, num_train)
    assert (data.groups is None) if groups is None else (data.groups.tolist() == groups)
    assert data.names == ("cat", "dog")


def test_names_that_a_mac_writes_in_two_characters_are_the_same(tmp_path):
    """In Müller, the ü is one character, or the two of "u" and "combining diaeresis"."""
    one, two = "M\u00fcller", "Mu\u0308ller"
    for place in (f"train/{two}", f"test/{one}", "train/Mzyk"):
        (tmp_path / "pictures" / place).mkdir(parents=True)
        Image.fromarray(np.zeros((6, 5), np.uint8)).save(tmp_path / "pictures" / place / "1.png")
    data = load(str(tmp_path / "pictures"), "")
    assert data.names == ("Mzyk", one) and data.target_values.tolist() == [0, 1, 1]
    known = load(str(tmp_path / "pictures"), "", Form(names=(two, "Mzyk")))
    assert known.target_values.tolist() == [0, 1, 0]

    spelt = np.array([one, two])[np.arange(N) % 2]
    columns = {"age": AGE, "sex": spelt, two: WHO, "ill": ILL}
    (tmp_path / "clients").mkdir()
    for who in (one, two):
        table = pd.DataFrame({**columns, two: who})
        table.to_csv(tmp_path / "clients" / f"{who[:-1]}-.csv", index=False)
    settings = read(parse([f'client-column="{one}" columns="age,sex={two}"']))
    data = load(str(tmp_path / "clients"), "", Form.of(settings))
    assert {*data.groups} == {one} and data.columns == f"age,sex={one}"
    assert tensors(data)[0][:, 1].all()


def test_a_copy_from_a_mac_is_the_same_data_set(tmp_path):
    """Names of clients, classes and files come apart there; composed ones keep their order."""
    places = [
        (client, label, name)
        for client in ("zo\u00eb", "zof")
        for label in ("\u00f6l", "oz")
        for name in ("\u00fc", "u", "v")
    ]
    found = []
    for form in ("NFC", "NFD"):
        for number, place in enumerate(places):
            path = tmp_path / form / unicodedata.normalize(form, "/".join(place) + ".png")
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((4, 4), 20 * number, np.uint8)).save(path)
        found.append(load(str(tmp_path / form), ""))
    assert len({data.digest for data in found}) == 1
    order = sorted(range(len(places)), key=places.__getitem__)
    for data, form in zip(found, ("NFC", "NFD"), strict=True):
        same(data, *tensors(found[0]), np.array([places[n][0] for n in order]))
        there = unlabelled(tmp_path / form, image_spec((1, 4, 4)))
        (pixels,) = there.blocks()
        assert pixels[:, 0, 0, 0].tolist() == [20 * number for number in order]


@pytest.mark.parametrize(("place", "shown"), [
    (b"caf\xe9/1.png", "caf\\xe9/1.png"),
    (b"anna/caf\xe9/1.png", "anna/caf\\xe9/1.png"),
    (b"caf\xe9/cat/1.png", "caf\\xe9/cat/1.png"),
    (b"caf\xe9.npz", "caf\\xe9.npz"),
])  # fmt: skip
def test_names_of_classes_and_clients_that_are_no_texts_are_refused(place, shown, tmp_path):
    """As an archive in Latin-1 leaves them; no table can hold them."""
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + place))
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".npz":
        np.savez(path, inputs=np.ones((4, 2)), targets=np.arange(4) % 2)
    else:
        Image.fromarray(np.zeros((4, 4), np.uint8)).save(path)
    with pytest.raises(RunError) as caught:
        load(str(tmp_path), "")
    line = f"{tmp_path}/{shown}: names a class or client, and is not UTF-8; rename it"
    assert str(caught.value) == line


def test_a_pictures_own_name_need_not_be_a_text(tmp_path):
    (tmp_path / "cat").mkdir()
    name = os.fsdecode(os.fsencode(tmp_path) + b"/cat/caf\xe9.png")
    Image.fromarray(np.zeros((4, 4), np.uint8)).save(name)
    assert load(str(tmp_path), "").names == ("cat",)


def test_pictures_that_lose_their_colors_and_files_that_are_left_out_are_counted(tmp_path):
    colors = np.random.default_rng(3).integers(0, 256, (5, 6, 5, 3), np.uint8)
    for number, pixels in enumerate(colors):
        path = tmp_path / ("cat" if number < 3 else "dog") / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(pixels).save(path)
    (tmp_path / "README.md").write_text("who they are")  # beside the classes, so no sample
    assert load(str(tmp_path), "").told == ("the classes are 0 = cat, 1 = dog",)
    Image.fromarray(colors[0]).convert("L").save(tmp_path / "cat" / "0.png")
    Image.fromarray(colors[1]).convert("L").save(tmp_path / "cat" / "1.png")
    for name in ("dog/5.bmp", "dog/6.bmp", "cat/notes"):
        Image.fromarray(colors[0]).save(tmp_path / name, "bmp")
    data = load(str(tmp_path), "")
    assert data.shape == (1, 6, 5) and len(data.labels) == 5
    assert data.told[:2] == (
        f"{tmp_path}: files are left out: 2 .bmp, 1 without an ending; read are .png, .jpg, .jpeg",
        f"{tmp_path}/cat/0.png is gray, so all pictures become gray: 3 of 5 lose their colors;"
        " save this one as RGB to keep them",
    )


def test_a_folder_that_may_not_be_read_is_refused_and_not_left_out(frame, tmp_path, monkeypatch):
    for who in ("anna", "ben"):
        (tmp_path / who).mkdir()
        frame.to_csv(tmp_path / who / "rows.csv", index=False)
    (tmp_path / "~$a.csv").write_text("of a program that has the table open")
    for name in (".hidden", "lost+found"):  # the system's own
        (tmp_path / name).mkdir()
    closed, listed = [tmp_path / ".hidden", tmp_path / "lost+found"], os.scandir

    def scandir(path):
        if Path(path) in closed:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(os, "scandir", scandir)
    form = Form(target_column="ill")
    assert {*load(str(tmp_path), "", form).groups} == {"anna", "ben"}
    closed.append(tmp_path / "ben")
    (tmp_path / "ben").chmod(0o700)  # whoever closes a folder changes its stamp
    with pytest.raises(RunError, match=rf"^{tmp_path}/ben: cannot be read \(Permission denied\)$"):
        load(str(tmp_path), "", form)


def huge() -> bytes:
    """A small PNG that claims to be a huge picture."""
    file = BytesIO()
    Image.fromarray(np.zeros((4, 4), np.uint8)).save(file, "png")
    whole = bytearray(file.getvalue())
    whole[16:24] = struct.pack(">II", 30_000, 30_000)  # the header's width and height,
    whole[29:33] = struct.pack(">I", zlib.crc32(whole[12:29]))  # and its checksum
    return bytes(whole)


def test_a_small_file_that_claims_to_be_a_huge_picture_is_one_line(tmp_path):
    (tmp_path / "all" / "cat").mkdir(parents=True)
    path = tmp_path / "all" / "cat" / "0.png"
    path.write_bytes(huge())
    with pytest.raises(RunError, match=rf"{path}: cannot be read as a picture \("):
        load(str(tmp_path / "all"), "")


def test_whole_numbers_of_a_table_can_be_predicted(tmp_path, serial_run, capfd):
    """Negative or large, and also if all could be labels; a window has the one of its last row."""
    y = np.random.default_rng(4).integers(-30, 90_000, N)
    pd.DataFrame({"age": AGE, "y": y, "z": y % 2}).to_csv(tmp_path / "t.csv", index=False)
    regression = Form.of(read(parse(['task="regression"'])))
    for form in (Form(numbers=True), replace(regression, target_column="y")):
        data = load(str(tmp_path / "t.csv"), "", replace(form, target_column="y", columns="age"))
        same(data, INPUTS[:, :1], y.astype(np.float32))
    data = load(str(tmp_path / "t.csv"), "", Form(target_column="y,z", numbers=True))
    np.testing.assert_array_equal(data.target_values, np.float32(np.stack([y, y % 2], 1)))
    data = load(str(tmp_path / "t.csv"), "", Form(numbers=True, window=5))
    assert data.target_values.tolist() == (y % 2)[4::5].tolist()
    with pytest.raises(RunError, match=r'label -?\d+; must be .* table with task="regression"'):
        load(str(tmp_path / "t.csv"), "", Form(target_column="y", columns="age"))
    options = f'dataset="{tmp_path / "t.csv"}" model="mlp" partitioner="iid" num-clients=2'
    serial_run(options, 'task="regression" target-column="z" num-rounds=1 strategy="fedavg"')
    assert "save integers" not in "".join(capfd.readouterr())


@pytest.mark.parametrize(("y", "task", "hint"), [
    (range(25), "auto", True),
    (range(25), "classification", False),
    ([*range(15), *range(10)], "auto", False),  # few enough to be labels
    ([f"level {row}" for row in range(25)], "auto", False),
])  # fmt: skip
def test_many_whole_numbers_without_a_window_may_be_numbers_to_predict(tmp_path, y, task, hint):
    frame = pd.DataFrame({"x": np.arange(25) / 8, "y": y})
    frame.to_csv(tmp_path / "t.csv", index=False)
    form = Form.of(read(parse([f'task="{task}" window=12'])))
    end = ", or set task=regression if they are numbers" * hint
    with pytest.raises(RunError, match=f"and one label; must be at most 1{end}$"):
        load(str(tmp_path / "t.csv"), "", form)
    if hint:
        data = load(str(tmp_path / "t.csv"), "", replace(form, numbers=True))
        assert data.target_values.tolist() == [y[11], y[23]]


def test_whole_numbers_of_recordings_in_npz_files_are_those_of_tables(tmp_path):
    """A window ends where a label changes, but not where a number does."""
    y = np.random.default_rng(4).integers(-30, 90_000, 25)
    for folder in (tmp_path / "csv", tmp_path / "npz"):
        folder.mkdir()
    for who in ("anna", "ben"):
        x = np.float32(np.arange(25) / 8)
        pd.DataFrame({"x": x, "y": y}).to_csv(tmp_path / "csv" / f"{who}.csv", index=False)
        np.savez(tmp_path / "npz" / f"{who}.npz", inputs=x[:, None], targets=y)
    form = Form(window=10, numbers=True)
    for folder in (tmp_path / "csv", tmp_path / "npz"):
        data = load(str(folder), "", form)
        assert data.target_values.tolist() == 2 * y[[9, 19]].tolist()
        assert data.groups.tolist() == ["anna", "anna", "ben", "ben"]
        assert not data.targets.is_whole


class TestMissing:
    @pytest.fixture
    def path(self, frame, tmp_path):
        frame.loc[[4, 9], "age"] = np.nan
        frame.loc[7, "sex"] = "?"
        frame.to_csv(tmp_path / "m.csv", index=False)
        return tmp_path / "m.csv"

    def test_it_is_refused_with_the_line_and_the_column(self, path):
        with pytest.raises(RunError, match=r"m.csv: line 6: column age is empty; missing="):
            load(str(path), "", Form(client_column="who"))

    def test_rows_are_dropped_and_counted(self, path):
        data = load(str(path), "", Form(client_column="who", missing="drop"))
        left = np.setdiff1d(np.arange(N), [4, 7, 9])
        same(data, INPUTS[left], ILL[left] == "yes", WHO[left])
        assert data.told[0] == "3 of 60 rows have missing values and are left out"

    def test_if_no_row_is_left_the_column_with_most_gaps_is_named(self, frame, path):
        frame.loc[: N - 3, "age"], frame.loc[N - 3 :, "sex"] = np.nan, np.nan
        frame.to_csv(path, index=False)
        line = "so none is left; most are missing in column age$"
        with pytest.raises(RunError, match=f"m.csv: line 2: every row has a missing value, {line}"):
            load(str(path), "", Form(client_column="who", missing="drop"))

    @pytest.mark.parametrize(("missing", "left", "told"), [
        ("drop", N - 5, "3 of 58 rows have missing values and are left out"),
        ("mean", N - 2, '3 of 58 rows have missing values; missing = "mean" fills 3 values'),
    ])  # fmt: skip
    def test_rows_without_a_target_are_left_out(self, missing, left, told, frame, path):
        frame.loc[[20, 21], "ill"] = np.nan
        frame.to_csv(path, index=False)
        data = load(str(path), "", Form(client_column="who", missing=missing))
        assert data.told[:2] == ("2 of 60 rows have no target, left out", told)
        assert len(data.target_values) == left

    def test_the_mean_of_the_training_samples_stands_for_it(self, path):
        options = f'dataset="{path}" client-column="who" missing="mean" partitioner="natural"'
        space = Workspace(read(parse([options + ' num-clients=0 model="mlp" device="cpu"'])))
        values = INPUTS.astype(float)
        values[[4, 9], 0] = values[7, 1:] = np.nan
        shares = [space.population.share(client) for client in range(3)]
        train = np.concatenate([share.train for share in shares])
        mean, std = np.nanmean(values[train], axis=0), np.nanstd(values[train], axis=0)
        wanted = np.where(np.isnan(values), 0.0, (values - mean) / std)
        np.testing.assert_allclose(tensors(space.dataset)[0], wanted, atol=1e-5)

    def test_series_in_an_npz_may_have_gaps_too(self, tmp_path):
        inputs = np.random.default_rng(3).normal(size=(20, 4, 2))
        inputs[3, 1, 0] = np.nan
        np.savez(tmp_path / "s.npz", inputs=inputs, targets=np.arange(20) % 2)
        with pytest.raises(RunError, match=r'inputs\[3\] holds NaN .*missing="mean" fills it'):
            tensors(load(str(tmp_path / "s.npz"), ""))
        data = load(str(tmp_path / "s.npz"), "", Form(missing="mean")).normalized(np.arange(20))
        assert tensors(data)[0][3, 1, 0] == 0.0

    def test_a_rule_more_is_a_line_in_a_table(self, path, monkeypatch):
        def largest(blocks, mean):
            return np.nanmax(np.concatenate([*blocks()]), axis=0)

        monkeypatch.setitem(FILLS, "largest", largest)
        data = load(str(path), "", Form(client_column="who", missing="largest"))
        values = INPUTS.astype(float)
        values[[4, 9], 0] = values[7, 1:] = np.nan
        filled = np.where(np.isnan(values), np.nanmax(values, axis=0), values)
        wanted = (filled - np.nanmean(values, axis=0)) / np.nanstd(values, axis=0)
        found = data.normalized(np.arange(N))
        np.testing.assert_allclose(tensors(found)[0], wanted, atol=1e-5)

    def test_the_setting_allows_all_rules(self):
        allowed = {*get_args(get_args(get_type_hints(Settings, include_extras=True)["missing"])[0])}
        assert allowed == {"refuse", "drop", *FILLS}


@pytest.mark.parametrize(("change", "form", "message"), [
    ({"age": "x"}, {}, 't.csv: line 5: column age holds "x", not a number'),
    ({"age": np.inf}, {}, 't.csv: line 5: column age holds "inf"; must be a finite number'),
    ({"age": -1e39}, {}, "line 5: column age holds -1e+39; must be between -3.4e38 and 3.4e38"),
    ({"age": 1e39}, {"target_column": "age"}, "line 5: column age holds 1e+39; must be between -3"),
    ({"age": np.inf}, {"target_column": "age"}, "line 5: column age holds inf; must be between -3"),
    ({"ill": np.nan}, {},
     't.csv: line 5: column ill is empty (the last one, as target-column is not set); missing='),
    ({"who": np.nan}, {"client_column": "who"}, "t.csv: line 5: column who is empty (client-col"),
    ({"who": "NA"}, {"client_column": "who"}, "(client-column); fill it; NA, NaN, nan and ? are"),
    ({"sex": np.nan}, {"columns": "age,sex"},
     't.csv: line 2: column sex holds "f"; must be a finite number; of texts, name the values in'
     " columns: sex=f|m"),
    ({"who": "a, b"}, {}, 't.csv: line 5: column who: "a, b" has a comma, = or |; rename it, or'
     ' if it tells the clients, name it in client-column; columns="age,sex=f|m" leaves it out'),
    ({"sex": "1,5"}, {}, '"1,5" has a comma, = or |; a decimal comma? write 1.5, otherwise rename'),
    ({"age": "1,5"}, {}, 'age holds "1,5", not a number; a decimal comma? write 1.5'),
    ({"age": "unknown"}, {}, "for a missing value, leave the cell empty, or write NA, NaN or ?"),
    ({"sex": "d"}, {"columns": "age,sex=f|m"}, 't.csv: line 5: column sex holds "d"; must be f|m'),
    ({"sex": "d"}, {"columns": "sex=f|m", "missing": "mean"}, "be f|m; or leave the cell empty"),
    ({"sex": "d" * 500}, {"columns": "sex=f|m"}, f'column sex holds "{"d" * 59}…"; must be f|m'),
    ({}, {"columns": "age,sexx"}, "t.csv: no column sexx, did you mean sex?; there are age, sex,"),
    ({"ill": "sick"}, {"names": ("no", "yes")}, "t.csv: line 5: class sick; the run has no, yes"),
    ({}, {"target_column": "il"}, "t.csv: no column il (target-column), did you mean ill?; there"),
    ({}, {"client_column": "ill", "target_column": "ill"}, 'client-column = "ill": is the target'),
    ({}, {"columns": "age,age"}, 'columns = "age,age": must be different names'),
    ({}, {"window": 100}, "no file has so many rows of one client and one label; must be at most"),
    ({}, {"target_column": "age,ill"}, "t.csv: line 2: column ill holds texts; of several targets"),
])  # fmt: skip
def test_what_cannot_be_used_is_named_in_one_line(change, form, message, frame, tmp_path):
    for column, value in change.items():
        frame[column] = frame[column].astype(object)
        frame.loc[3, column] = value
    frame.to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(RunError) as error:
        load(str(tmp_path / "t.csv"), "", Form(**form))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("text", "cure"), [
    ("18,5", "a decimal comma? write 18.5"), ("1,250,000", "thousands? write 1250000"),
    ("2026-11-30", "dates? turn them into numbers, such as days, or leave them out"),
])  # fmt: skip
@pytest.mark.parametrize("before", [[], ["18"], ["18", "19"]])
def test_a_number_or_date_that_is_written_otherwise_is_told(before, text, cure, tmp_path):
    """Be it in all rows of a named column, or in some; a rule cannot name values with commas."""
    cells = [*before, text, text]
    table = pd.DataFrame({"bmi": cells, "ill": np.arange(len(cells)) % 2})
    table.to_csv(tmp_path / "t.csv", index=False)
    line = f'line {2 + len(before)}: column bmi holds "{text}"; must be a finite number; {cure}'
    for asked in (
        lambda: load(str(tmp_path / "t.csv"), "", Form(columns="bmi")),
        lambda: load(str(tmp_path / "t.csv"), "", Form(columns="bmi", missing="mean")),
        lambda: unlabelled(tmp_path / "t.csv", Spec((1,), FLOAT), "bmi"),
    ):
        with pytest.raises(RunError, match=f"{re.escape(line)}$"):
            asked()


def test_all_columns_of_texts_in_a_rule_of_ones_own_are_named_at_once(tmp_path):
    """Not those with values, slips among numbers, dates, or nothing; what it says can be pasted."""
    rows = np.arange(30)
    table = pd.DataFrame({
        "age": rows * 1.5, "sex": np.array(["f", "m"])[rows % 2], "none": np.nan,
        "day": [f"2026-11-{1 + row:02}" for row in rows], "drug": np.array([*"xyz"])[rows % 3],
        "known": np.array(["b", "a"])[rows % 2], "ill": rows % 2,
    })  # fmt: skip
    table.to_csv(tmp_path / "t.csv", index=False)
    form = Form(columns="age,sex,none,drug,known=a|b", missing="mean", target_column="ill")
    with pytest.raises(RunError) as error:
        load(str(tmp_path / "t.csv"), "", replace(form, columns=form.columns + ",day"))
    told = 't.csv: line 2: column sex holds "f"; must be a finite number; of texts, name the values'
    assert told in str(error.value)
    rule = str(error.value).partition(" in columns: ")[2]
    assert rule == "sex=f|m,drug=x|y|z"
    pasted = replace(form, columns=f"age,none,known=a|b,{rule}")
    assert load(str(tmp_path / "t.csv"), "", pasted).shape == (1 + 1 + 2 + 2 + 3,)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize("label", [2**63 - 1, 2**63 + 5, 2**64 - 1])
def test_a_class_that_is_too_high_is_named_as_it_is(suffix, label, frame, tmp_path):
    """Also one that only integers without a sign can hold."""
    frame["ill"] = np.where(np.arange(N) == 3, np.uint64(label), np.arange(N, dtype=np.uint64) % 2)
    path = save(frame, tmp_path, suffix)
    with pytest.raises(RunError, match=f"targets holds label {label}; must be 0..65535"):
        load(str(path), "", Form(target_column="ill"))
    frame["ill"] = np.where(np.arange(N) == 3, float(label) * 4, np.arange(N) % 2)
    path = save(frame, tmp_path, "csv")
    data = load(str(path), "", Form(target_column="ill", labels=True))
    assert not data.targets.is_whole  # so a run of labels refuses it


def test_columns_and_classes_that_are_probably_a_mistake_are_noted(frame, tmp_path):
    frame.insert(0, "id", np.arange(N) + 100)
    frame.insert(1, "day", [f"2026-11-0{1 + row % 2}" for row in range(N)])
    frame["none"] = np.nan
    frame["ill"] = np.where(np.arange(N) < 30, frame.ill, frame.ill.str.upper())
    frame.to_csv(tmp_path / "t.csv", index=False)
    form = Form(client_column="who", target_column="ill", missing="mean")
    told = load(str(tmp_path / "t.csv"), "", form).told
    day = "day=2026-11-01|2026-11-02"
    assert told[:3] == (
        'column id has another whole number in each row, as an id has; columns="'
        f'{day},age,sex=f|m,none" leaves it out',
        'column day holds dates: each of its 2 texts is a category of its own; columns="'
        'id,age,sex=f|m,none" leaves it out',
        f'column none is empty in all rows; columns="id,{day},age,sex=f|m" leaves it out',
    )
    assert told[-1].startswith("classes NO, YES, no, yes differ only in case or blanks; if")


def test_the_rule_without_columns_that_are_no_inputs_can_be_pasted(frame, tmp_path):
    """All of them are named at once, and the rule is that of the other columns alone."""
    table = pd.concat([frame] * 2, ignore_index=True)
    plain = tmp_path / "plain.csv"
    table.to_csv(plain, index=False)
    form = Form(client_column="who", target_column="ill")
    wanted = load(str(plain), "", form)
    table.insert(1, "name", [f"p{row}" for row in range(2 * N)])
    table.insert(0, "day", [f"{row % 28 + 1}.{row // 28 + 1}.2026" for row in range(2 * N)])
    table["nr"] = table.age.astype(object).where(table.index != 4, "n.d.")
    whys = [
        "column day holds 120 different texts; dates? turn them into numbers, such as days,",
        "column name holds 120 different texts; if it tells the clients, name it in client-column;"
        " if it is a category, name its values in columns (a .toml holds many);",
        't.csv: line 6: column nr holds "n.d.", not a number; if it stands for a missing value, ',
    ]  # fmt: skip
    for odd in (["name"], ["day", "name"], ["day", "name", "nr"]):
        table.drop(columns={"day", "name", "nr"} - {*odd}).to_csv(tmp_path / "t.csv", index=False)
        with pytest.raises(RunError) as error:
            load(str(tmp_path / "t.csv"), "", form)
        line = str(error.value)
        assert line.startswith(f"{tmp_path}/t.csv: line 2: column {odd[0]} holds 120 different ")
        for why in whys:
            name = re.search("column (\\w+)", why)[1]
            assert (why in line) == (name in odd)
        rest = re.search('; columns="(.*)" leaves (it|them) out$', line)
        assert read(parse(rest[0].split()[1:2])).columns == rest[1]  # as it is written for -c
        assert rest[2] == ("it" if len(odd) == 1 else "them")
        same(load(str(tmp_path / "t.csv"), "", replace(form, columns=rest[1])), *same_as(wanted))
    many = table.assign(name2=table.name, name3=table.name)
    many.to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(RunError, match=r'; likewise name2, name3; columns="age,sex=f\|m" leaves'):
        load(str(tmp_path / "t.csv"), "", form)


def same_as(data):
    return *tensors(data), data.groups


def test_no_rule_is_proposed_if_no_column_is_left(tmp_path):
    """columns = "" stands for all columns but the target."""
    rows = [f"{row},{row % 2}\n" for row in range(30)]
    (tmp_path / "t.csv").write_text("age,ill\n" + "".join(rows))
    note, *_ = load(str(tmp_path / "t.csv"), "").told
    assert note == "column age has another whole number in each row, as an id has"
    (tmp_path / "t.csv").write_text("name,ill\n" + "".join(f"p{row},0\n" for row in range(101)))
    with pytest.raises(RunError, match=r"holds 101 different texts; .* values in columns \(a"):
        load(str(tmp_path / "t.csv"), "")


def test_an_unknown_category_may_be_left_empty_where_gaps_are_filled(tmp_path):
    (tmp_path / "t.csv").write_text("sex\nf\nd\n")
    later = "; to allow others later, train with missing=mean, or name them in columns"
    for gaps, end in ((True, "; or leave the cell empty"), (False, later)):
        with pytest.raises(RunError) as error:
            unlabelled(tmp_path / "t.csv", Spec((2,)), "sex=f|m", gaps)
        assert str(error.value).endswith(f't.csv: line 3: column sex holds "d"; must be f|m{end}')
    with pytest.raises(RunError, match=r"t\.csv: no column age; there are sex$"):
        unlabelled(tmp_path / "t.csv", Spec((1,)), "age")


@pytest.mark.parametrize(("text", "message"), [
    ("age,ill\n1,né\n", "t.csv: is not UTF-8; save it as UTF-8"),
    ("age;ill\n1,5;no\n3;yes\n", "t.csv: has no comma in line 1; separate columns"),
    ("day,ill\n" + "".join(f"2024-{day // 28 + 1}-{day % 28},no\n" for day in range(101)),
     "column day holds 101 different texts; dates? turn them into numbers"),
    ("note,ill\n" + "".join(f"he coughs {day} times,no\n" for day in range(101)),
     "column note holds 101 different texts; sentences? to learn from these, set text-length"),
    ("bmi,ill\n" + "".join(f'"26,{day + 100}",no\n' for day in range(101)),
     "column bmi holds 101 different texts; a decimal comma? write 26.100, or 26100 if it marks"),
    ("ill\nno\nyes\n", "t.csv: line 2: no column is left for the inputs"),
])  # fmt: skip
def test_a_csv_that_is_not_regular(text, message, tmp_path):
    (tmp_path / "t.csv").write_text(text, "latin-1")
    with pytest.raises(RunError, match=re.escape(message)):
        load(str(tmp_path / "t.csv"), "")


def test_to_predict_a_recording_needs_a_window(tmp_path):
    pd.DataFrame({"y": np.arange(7.0), "x": -np.arange(7.0)}).to_csv(tmp_path / "t.csv")
    rows = unlabelled(tmp_path / "t.csv", Spec((3, 2)), "x,y")
    wanted = [[[-t, t] for t in (0, 1, 2)], [[-t, t] for t in (3, 4, 5)]]
    np.testing.assert_array_equal(rows.read(np.arange(2)), wanted)
    with pytest.raises(RunError, match=r"t\.csv: has 7 rows; a window has 8"):
        unlabelled(tmp_path / "t.csv", Spec((8, 2)), "x,y")


def test_a_window_to_predict_is_of_one_client(tmp_path):
    """Training takes rows by time; end to end, they would make series that nobody has lived."""
    table = pd.DataFrame({"who": [7, 8] * 6, "x": np.arange(12.0), "y": 0.0})
    table.to_csv(tmp_path / "mixed.csv", index=False)
    table.sort_values("who", kind="stable").to_csv(tmp_path / "sorted.csv", index=False)
    asked = {"inputs": Spec((4, 1)), "columns": "x", "client_column": "who"}
    with pytest.raises(RunError) as error:
        unlabelled(tmp_path / "mixed.csv", **asked)
    assert str(error.value).endswith(
        "mixed.csv: line 2: the window of sample 0 begins with 7 and goes on with 8 (client-column"
        " = who); sort the rows by who, and give each a multiple of 4 rows"
    )
    line = r"sorted\.csv: line 6: the window of sample 1 begins with 7"
    with pytest.raises(RunError, match=line):
        unlabelled(tmp_path / "sorted.csv", **asked)  # six rows of each
    rows = unlabelled(tmp_path / "sorted.csv", **asked | {"inputs": Spec((3, 1))})
    wanted = [[0, 2, 4], [6, 8, 10], [1, 3, 5], [7, 9, 11]]
    assert rows.read(np.arange(4))[..., 0].tolist() == wanted
    table[["x"]].to_csv(tmp_path / "mixed.csv", index=False)
    assert unlabelled(tmp_path / "mixed.csv", **asked).starts[-1] == 3


@pytest.mark.parametrize(("file", "inputs", "columns", "line"), [
    ("x.npz", Spec((3,), "int64", 9), "", "x.npz: float32 samples of shape [3]; the model takes"
     " integers (tokens) [3]"),
    ("i.npz", Spec((3,)), "", "i.npz: int64 samples of shape [3]; the model takes floats [3]"),
    ("x.npz", Spec((4,)), "", "x.npz: float32 samples of shape [3]; the model takes [4]"),
    ("cat.png", image_spec((1, 5, 4)), "", "cat.png: 4x4 pixels; the run has 4x5"),
    ("cat.png", image_spec((2, 4, 4)), "", "cat.png: a picture has 1 or 3 channels; the run has 2"),
    ("cat.png", Spec((3,)), "", "cat.png: must be an .npz with the array inputs or test_inputs"),
    ("t.csv", image_spec((1, 4, 4)), "", "test_images, or a picture, or a folder of such"),
    ("none", image_spec((1, 4, 4)), "", "none: holds no .png, .jpg, .jpeg files; give pictures"),
    ("none", Spec((3,)), "", "none: is a folder; give one file, an .npz or a table"),
    ("t.csv", Spec((3,)), "", "t.csv: must be an .npz with the array inputs or test_inputs"),
    ("cat.png", Spec((3,)), "a,b,c", "test_inputs, or a table (.csv, .parquet, .npy)"),
    ("gone.png", Spec((3,)), "", "gone.png: no such file"),
    ("bad.npz", Spec((3,)), "", "bad.npz: cannot be read as .npz"),
])  # fmt: skip
def test_samples_to_predict_that_no_model_takes(file, inputs, columns, line, tmp_path):
    np.savez(tmp_path / "x.npz", inputs=np.ones((2, 3), np.float32))
    np.savez(tmp_path / "i.npz", inputs=np.ones((2, 3), np.int64))
    Image.fromarray(np.zeros((4, 4), np.uint8)).save(tmp_path / "cat.png")
    (tmp_path / "none").mkdir()
    for name in ("t.csv", "bad.npz"):
        (tmp_path / name).write_text("a,b,c\n1,2,3\n")
    with pytest.raises(RunError) as error:
        unlabelled(tmp_path / file, inputs, columns)
    assert line in str(error.value)
    assert "the model takes" not in line or str(error.value).endswith(line)


@pytest.mark.parametrize("channels", [1, 3])
def test_pictures_to_predict_are_rows_sorted_by_name(channels, tmp_path):
    """As the model's, gray or in color, whatever their folders are called."""
    colors = np.random.default_rng(3).integers(0, 256, (4, 6, 5, 3), np.uint8)
    places = ["b/2.png", "b/10.png", "a/z.PNG", "c.png"]
    for place, pixels in zip(places, colors, strict=True):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        Image.fromarray(pixels).save(tmp_path / place)
    (tmp_path / "README.md").write_text("who they are")
    if channels == 1:
        colors = np.stack([np.asarray(Image.fromarray(p).convert("L"))[..., None] for p in colors])
    for place, order in ((".", [2, 1, 0, 3]), ("b", [1, 0]), ("c.png", [3])):
        rows = unlabelled(tmp_path / place, image_spec((channels, 6, 5)))
        np.testing.assert_array_equal(rows.read(np.arange(len(order))), colors[order])
        assert rows.starts[-1] == len(order)


def test_files_that_do_not_belong_together(frame, tmp_path):
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.rename(columns={"age": "years"}).to_csv(tmp_path / "b.csv", index=False)
    with pytest.raises(RunError, match=r"b.csv: column age is not in all files"):
        load(str(tmp_path), "")
    np.savez(tmp_path / "c.npz", inputs=INPUTS, targets=AGE)
    with pytest.raises(RunError, match=r"holds .npz files \(c.npz\) and tables \(b.csv\)"):
        load(str(tmp_path), "")
    with pytest.raises(RunError, match=r"no such file or folder"):
        load(str(tmp_path / "none.csv"), "")


def test_a_name_with_a_comma_can_be_a_target_and_a_client_but_no_input(frame, tmp_path):
    """What a rule of columns cannot say would train, but not predict."""
    odd = {"age": "bmi, kg/m2", "who": "ward=, room", "ill": "ill, now"}
    renamed = frame.rename(columns={name: odd[name] for name in ("who", "ill")})
    renamed.to_csv(tmp_path / "t.csv", index=False)
    form = Form(client_column=odd["who"], target_column=odd["ill"])
    data = load(str(tmp_path / "t.csv"), "", form)
    same(data, INPUTS, ILL == "yes", WHO)
    same(load(str(tmp_path / "t.csv"), "", Form(client_column=odd["who"])), INPUTS, ILL == "yes")
    frame.to_csv(tmp_path / "p.csv", index=False)
    assert unlabelled(tmp_path / "p.csv", data.inputs, data.columns).starts[-1] == N
    frame.rename(columns=odd).to_csv(tmp_path / "t.csv", index=False)
    line = r't.csv: line 2: column "bmi, kg/m2" has a comma or =,.*ren'
    with pytest.raises(RunError, match=line):
        load(str(tmp_path / "t.csv"), "", form)
    used = load(str(tmp_path / "t.csv"), "", Form(client_column=odd["who"], columns="sex=f|m"))
    same(used, INPUTS[:, 1:], ILL == "yes", WHO)


class TestDatasets:
    """Folders of the package `datasets`, which `flwr-datasets create` writes, too."""

    @pytest.fixture(autouse=True)
    def quiet(self):
        extra("datasets").disable_progress_bars()

    def test_a_part_without_rows_is_told(self, tmp_path):
        from datasets import Dataset, DatasetDict

        rows = Dataset.from_dict({"x": [0.5, 1.5], "y": [0, 1]})
        splits = DatasetDict({"train": rows, "validation": rows.select([])})
        for broken in (rows.select([]), splits):
            for part, chosen in enumerate((rows, broken)):
                chosen.save_to_disk(tmp_path / f"partition_{part}")
            told = r"partition_1: it, or one of its splits, has no rows$"
            with pytest.raises(RunError, match=told):
                load(str(tmp_path), "")
            shutil.rmtree(tmp_path / "partition_1")

    def test_pictures_of_clients_and_their_class_names(self, tmp_path):
        from datasets import ClassLabel, Dataset, Features
        from datasets import Image as Picture

        pixels = np.random.default_rng(4).integers(0, 256, (12, 4, 4, 3), np.uint8)
        labels = np.arange(12) % 2
        kinds = Features({"image": Picture(), "label": ClassLabel(names=["cat", "dog"])})
        values = {"image": [Image.fromarray(p) for p in pixels], "label": labels.tolist()}
        whole = Dataset.from_dict(values, features=kinds)
        for part in range(3):
            rows = whole.select(range(4 * part, 4 * part + 4))
            rows.save_to_disk(tmp_path / f"partition_{part}")
        data = load(str(tmp_path), "")
        wanted = pixels.transpose(0, 3, 1, 2).astype(np.float32) / np.float32(255)
        same(data, (wanted - 0.5) / 0.5, labels, np.repeat(["0", "1", "2"], 4))
        assert data.names == ("cat", "dog")
        shape, targets = image_spec((1, 4, 4)), label_spec(2)
        mine = of_device(tmp_path / "partition_1", shape, targets, Form(names=("cat", "dog")))
        gray = [np.asarray(Image.fromarray(p).convert("L")) for p in pixels[4:8]]
        images, found = mine.tensors(np.arange(4))
        wanted = (np.stack(gray)[:, None].astype(np.float32) / np.float32(255) - 0.5) / 0.5
        np.testing.assert_allclose(images, wanted, atol=1e-6)
        np.testing.assert_array_equal(found, labels[4:8])
        with pytest.raises(RunError, match="class_names are cat,dog; the run has dog,cat"):
            of_device(tmp_path / "partition_1", shape, targets, Form(names=("dog", "cat")))
        values["image"][5] = Image.fromarray(np.full((4, 4), 9, np.uint16))
        Dataset.from_dict(values, features=kinds).save_to_disk(tmp_path / "deep")
        with pytest.raises(RunError, match=r"deep: row 5: cannot be read .* \(more than 8"):
            load(str(tmp_path / "deep"), "")
        for place, whole in (("huge", huge()), ("none", b"no picture")):
            values["image"][5] = {"bytes": whole}
            Dataset.from_dict(values, features=kinds).save_to_disk(tmp_path / place)
            with pytest.raises(RunError, match=f"{place}: row 5: cannot be read as a picture"):
                load(str(tmp_path / place), "")

    def test_series_with_parts(self, tmp_path):
        from datasets import Dataset, DatasetDict

        series, targets = np.random.default_rng(5).normal(size=(9, 5, 2)), np.arange(9) % 3
        parts = {"train": slice(0, 4), "validation": slice(4, 6), "test": slice(6, 9)}
        DatasetDict({
            name: Dataset.from_dict({"x": series[s].tolist(), "y": targets[s].tolist()})
            for name, s in parts.items()
        }).save_to_disk(tmp_path / "d")  # fmt: skip
        data = load(str(tmp_path / "d"), "", Form(target_column="y"))
        same(data, series.astype(np.float32), targets, None, 6)

    def test_the_one_input_among_several_is_named_and_the_rest_is_told(self, tmp_path):
        from datasets import Array2D, Dataset, Features, Value

        noise, signal = np.random.default_rng(6).normal(size=(2, 6, 4, 3)).astype(np.float32)
        kinds = {"noise": Array2D((4, 3), "float32"), "signal": Array2D((4, 3), "float32")}
        kinds |= {"age": Value("int64"), "y": Value("int64")}
        targets = np.arange(6) % 2
        values = {"noise": noise, "signal": signal, "age": [*range(6)], "y": targets}
        whole = Dataset.from_dict(values, features=Features(kinds))
        whole.save_to_disk(tmp_path / "d")
        for columns, given in (("signal", signal), ("noise", noise)):
            data = load(str(tmp_path / "d"), "", Form("y", columns=columns))
            same(data, given, targets)
            rest = "noise, age" if columns == "signal" else "signal, age"
            assert f"the inputs are column {columns}; not read: {rest}" in data.told
        same(load(str(tmp_path / "d"), "", Form("y", columns="age")), np.c_[0.0:6], targets)
        rule = 'columns = "{}": must be one of noise, signal'
        both = ("", "noise,signal", "age,noise")
        for columns, told in {**{c: rule.format(c) for c in both}, "s": "no column s; "}.items():
            with pytest.raises(RunError, match=told):
                load(str(tmp_path / "d"), "", Form("y", columns=columns))
        own = of_device(tmp_path / "d", Spec((4, 3)), label_spec(2), Form("y", columns="signal"))
        np.testing.assert_array_equal(tensors(own)[0], signal)
        whole.select_columns(["signal", "y"]).save_to_disk(tmp_path / "plain")
        for columns in ("", "signal"):
            data = load(str(tmp_path / "plain"), "", Form("y", columns=columns))
            same(data, signal, targets)
            assert not any("not read" in line for line in data.told)

    def test_pictures_come_before_arrays_unless_columns_names_one(self, tmp_path):
        from datasets import Dataset, Features, Sequence, Value
        from datasets import Image as Picture

        kinds = {"code": Sequence(Value("float32")), "image": Picture(), "y": Value("int64")}
        pixels = np.random.default_rng(7).integers(0, 256, (4, 5, 5, 3), np.uint8)
        codes = np.arange(8, dtype=np.float32).reshape(4, 2)
        values = {"code": codes, "image": [Image.fromarray(p) for p in pixels], "y": [0, 1, 0, 1]}
        Dataset.from_dict(values, features=Features(kinds)).save_to_disk(tmp_path / "d")
        data = load(str(tmp_path / "d"), "", Form("y"))
        assert data.inputs.image
        assert "the inputs are column image; not read: code" in data.told
        same(load(str(tmp_path / "d"), "", Form("y", columns="code")), codes, [0, 1, 0, 1])

    @pytest.mark.parametrize(("who", "column", "line"), [
        (["a", "b"] * 2, "whom", "d: no column whom (client-column), did you mean who?; there are"),
        (["a", None] * 2, "who", "d: row 1: column who is empty (client-column); fill it"),
        ([7, 8, 8, None], "who", "d: row 3: column who is empty (client-column); fill it"),
    ])  # fmt: skip
    def test_clients_that_nobody_names_are_refused_as_in_a_table(self, who, column, line, tmp_path):
        from datasets import Dataset

        values = {"x": np.arange(8.0).reshape(4, 2).tolist(), "y": [0, 1, 0, 1]}
        Dataset.from_dict({**values, "who": who}).save_to_disk(tmp_path / "d")
        with pytest.raises(RunError) as caught:
            load(str(tmp_path / "d"), "", Form("y", column))
        assert f"{tmp_path}/{line}" in str(caught.value)

    @pytest.mark.parametrize(("column", "without"), [("who", 0), ("who", 1), ("a", 1), ("y", 1)])
    def test_a_part_without_a_column_that_is_read_is_said(self, without, column, tmp_path):
        from datasets import Dataset

        values = {"a": np.arange(4.0).reshape(2, 2).tolist(), "y": [0, 1], "who": ["b", "c"]}
        rest = {"z": [[1.0], [2.0]]} | {key: rows for key, rows in values.items() if key != column}
        for part in range(2):
            rows = rest if part == without else values
            Dataset.from_dict(rows).save_to_disk(tmp_path / "d" / f"partition_{part}")
        line = f"partition_{without}: no column {column}; partition_{1 - without} has it"
        with pytest.raises(RunError, match=line):
            load(str(tmp_path / "d"), "", Form("y", "who", "a"))

    @pytest.mark.parametrize("cells", [[0.5, 1.5], [[0.5, 1.0]] * 2])
    def test_a_client_without_parts_beside_one_with_parts_is_refused(self, cells, tmp_path):
        """It would be in no part, so the run would not have it at all."""
        from datasets import Dataset, DatasetDict

        rows = Dataset.from_dict({"x": cells, "y": [0, 1]})
        DatasetDict(train=rows, test=rows).save_to_disk(tmp_path / "partition_0")
        rows.save_to_disk(tmp_path / "partition_1")
        with pytest.raises(RunError, match="partition_1: its place does not say which train or"):
            load(str(tmp_path), "", Form("y"))

    @pytest.mark.parametrize("cells", [[0.5, 1.5, 2.5], [[0.5, 1.0]] * 3])
    def test_the_classes_of_all_parts_have_the_same_numbers(self, cells, tmp_path):
        """Each part that is encoded by itself numbers its own classes from 0."""
        from datasets import ClassLabel, Dataset, DatasetDict

        names = {"train": ["cat", "dog", "horse"], "test": ["horse", "dog", "dog"]}
        parts = {
            part: Dataset.from_dict({"x": cells, "kind": kinds}) for part, kinds in names.items()
        }
        each = DatasetDict(parts).class_encode_column("kind")
        each.save_to_disk(tmp_path / "d")
        for part, name in enumerate(("train", "test")):
            each[name].save_to_disk(tmp_path / "p" / f"partition_{part}")
        for last, first in (("d/test", "train"), ("p/partition_1", "partition_0")):
            folder = tmp_path / last.partition("/")[0]
            for form in (Form(), Form("kind"), Form("x", columns="kind")):
                if form.target_column == "x" and isinstance(cells[0], list):
                    continue
                with pytest.raises(RunError) as caught:
                    load(str(folder), "", form)
                told = f"column kind: class 0 is dog; in {first} it is cat; encode or cast the"
                assert str(caught.value).startswith(f"{tmp_path / last}: {told} column before")
        kind = ClassLabel(names=["cat", "dog", "horse"])
        DatasetDict(parts).cast_column("kind", kind).save_to_disk(tmp_path / "whole")
        data = load(str(tmp_path / "whole"), "")
        assert data.target_values.tolist() == [0, 1, 2, 2, 1, 1]
        assert data.names == ("cat", "dog", "horse")

    @pytest.mark.parametrize(("change", "told"), [
        (lambda names: names[:-1], "49 is not there; in partition_0 it is species49"),
        (lambda names: [*names, "z"], "50 is z; in partition_0 it is not there"),
        (lambda names: [*names[:-2], *names[:-3:-1]], "48 is species49; in partition_0 it is spe"),
    ])  # fmt: skip
    def test_the_first_class_that_has_two_names_is_told(self, change, told, tmp_path):
        from datasets import ClassLabel, Dataset, Features, Value

        names = [f"species{number:02}" for number in range(50)]
        for part, known in enumerate((names, change(names))):
            kinds = Features({"x": Value("float64"), "y": ClassLabel(names=known)})
            rows = Dataset.from_dict({"x": [0.5], "y": [0]}, kinds)
            rows.save_to_disk(tmp_path / f"partition_{part}")
        with pytest.raises(RunError, match=f"partition_1: column y: class {told}"):
            load(str(tmp_path), "", Form("y"))

    @pytest.mark.parametrize(("y", "who", "told"), [
        ("int32", "large_string", ""), ("int8", "int64", ""), ("int64", "string", ""),
        ("float32", "string", r"column y is Value\('float32'\); in partition_0 .*int64"),
        ("uint64", "string", r"column y is Value\('uint64'\); in partition_0 .*int64"),
    ])  # fmt: skip
    def test_labels_and_clients_of_arrays_may_have_other_sizes(self, y, who, told, tmp_path):
        """Beside floats, and beside uint64, NumPy would make floats of whole numbers."""
        from datasets import Dataset, Features, List, Value

        cells = [[0.5, 1.5], [2.5, 3.5]]
        for part, (label, client) in enumerate([("int64", "string"), (y, who)]):
            kinds = {"x": List(Value("float32")), "y": Value(label), "who": Value(client)}
            rows = {"x": cells, "y": [0, 1], "who": [3, 4] if client == "int64" else ["3", "4"]}
            Dataset.from_dict(rows, Features(kinds)).save_to_disk(tmp_path / f"partition_{part}")
        if told:
            with pytest.raises(RunError, match=told):
                load(str(tmp_path), "", Form("y", "who"))
        else:
            data = load(str(tmp_path), "", Form("y", "who"))
            same(data, cells * 2, [0, 1, 0, 1], np.array([*"3434"]))
            assert data.has_labels

    @pytest.mark.parametrize("name", [" kind", "kind\t", "gr\u00f6\u00dfe", "gro\u0308\u00dfe "])
    @pytest.mark.parametrize("cells", [[0.5, 1.5, 2.5], [[0.5, 1.0]] * 3])
    def test_blanks_and_accents_in_the_name_of_a_column_do_not_count(self, name, cells, tmp_path):
        """`datasets` keeps the blank of a .csv whose first line is `x, kind`."""
        from datasets import ClassLabel, Dataset

        plain = unicodedata.normalize("NFC", name.strip())
        decomposed = unicodedata.normalize("NFD", plain)
        for part, kinds in enumerate((["u", "v", "w"], ["w", "v", "v"])):
            rows = Dataset.from_dict({name: kinds, f"{decomposed} 2": cells})
            own, place = rows.class_encode_column(name), f"partition_{part}"
            own.save_to_disk(tmp_path / "each" / place)
            alike = rows.cast_column(name, ClassLabel(names=["u", "v", "w"]))
            alike.save_to_disk(tmp_path / "alike" / place)
        for columns in ("", f"{plain} 2", f"{decomposed} 2"):
            form = Form(plain, columns=columns)
            with pytest.raises(RunError, match=f"partition_1: column {plain}: class 0 is v;"):
                load(str(tmp_path / "each"), "", form)
            data = load(str(tmp_path / "alike"), "", form)
            assert data.names == ("u", "v", "w")
            same(data, np.reshape(cells * 2, (6, -1)), [0, 1, 2, 2, 1, 1])
        twins = Dataset.from_dict({plain: cells, f"{plain} ": [0, 1, 2]})
        twins.save_to_disk(tmp_path / "twins")
        with pytest.raises(RunError, match=f"twins: column {plain} is there twice"):
            load(str(tmp_path / "twins"), "", Form())

    @pytest.mark.parametrize("target", ["", "b", "a,b", "x,b", "whom"])
    def test_the_targets_of_a_table_are_those_of_a_csv(self, target, tmp_path):
        from datasets import Dataset

        rows = pd.DataFrame({"x": [0.5, 1.5, 2.5], "a": [0, 1, 0], "b": [1, 1, 0]})
        rows.to_csv(tmp_path / "t.csv", index=False)
        Dataset.from_pandas(rows).save_to_disk(tmp_path / "d")
        if target == "whom":
            with pytest.raises(RunError, match=r"d: no column whom \(target-column\)"):
                load(str(tmp_path / "d"), "", Form(target))
            return
        one, other = (load(str(tmp_path / name), "", Form(target)) for name in ("t.csv", "d"))
        for mine, theirs in zip(tensors(one), tensors(other), strict=True):
            np.testing.assert_array_equal(mine, theirs)
        assert (one.targets, one.names, one.columns) == (other.targets, other.names, other.columns)
        assert [*one.told] == [*other.told]

    def test_of_several_columns_of_class_labels_the_run_names_one(self, tmp_path):
        from datasets import Dataset

        rows = Dataset.from_dict({"x": [0.5, 1.5], "a": ["u", "v"], "b": ["q", "p"]})
        for column in ("a", "b"):
            rows = rows.class_encode_column(column)
        rows.save_to_disk(tmp_path / "d")
        with pytest.raises(RunError, match='target-column = "": must be one of x, a, b'):
            load(str(tmp_path / "d"), "")
        data = load(str(tmp_path / "d"), "", Form("b"))
        assert (data.names, data.columns) == (("p", "q"), "x,a")
        same(data, [[0.5, 0], [1.5, 1]], [1, 0])

    @pytest.mark.parametrize("cells", [[0.5, 1.5, 2.5], [[0.5, 1.0]] * 3])
    @pytest.mark.parametrize("target", ["", "kind"])
    def test_a_column_of_clients_is_no_target(self, target, cells, tmp_path):
        """Also if it is the only one of class labels, or one of two."""
        from datasets import Dataset

        rows = {"x": cells, "who": ["b", "a", "b"], "kind": ["v", "u", "u"]}
        both = Dataset.from_dict(rows).class_encode_column("who").class_encode_column("kind")
        both.save_to_disk(tmp_path / "d")
        data = load(str(tmp_path / "d"), "", Form(target, "who"))
        same(data, np.reshape(cells, (3, -1)), [1, 0, 0], np.array([*"101"]))
        assert data.names == ("u", "v")
        alone = Dataset.from_dict({"x": cells, "who": rows["who"], "y": [1, 0, 0]})
        alone.class_encode_column("who").save_to_disk(tmp_path / "alone")
        if target or isinstance(cells[0], float):
            data = load(str(tmp_path / "alone"), "", Form(target and "y", "who"))
            same(data, np.reshape(cells, (3, -1)), [1, 0, 0], np.array([*"101"]))
            assert data.names == ()

    @pytest.mark.parametrize("labels", [False, True])
    def test_a_row_without_a_class_is_no_class(self, labels, tmp_path):
        """It has -1, as in the test part of data of a competition."""
        from datasets import ClassLabel, Dataset, Features, Value

        kinds = Features({"x": Value("float64"), "y": ClassLabel(names=["cat", "dog"])})
        Dataset.from_dict({"x": [0.5, 1.5], "y": [-1, 1]}, kinds).save_to_disk(tmp_path / "d")
        with pytest.raises(RunError, match="d: row 0: class -1; the run has 0, 1"):
            load(str(tmp_path / "d"), "", Form(labels=labels))

    def test_numbers_of_a_later_part_are_not_cut_to_whole_ones(self, tmp_path):
        from datasets import Dataset

        for part, cells in enumerate(([[1, 2], [2, 3]], [[1.7, 2.2], [0.4, 0.6]])):
            rows = Dataset.from_dict({"x": cells, "y": [0, 1]})
            rows.save_to_disk(tmp_path / f"partition_{part}")
        line = "partition_1: column x is .*float64.*; in partition_0 it is .*int64"
        with pytest.raises(RunError, match=line):
            load(str(tmp_path), "", Form("y"))

    def test_a_column_names_the_clients_of_arrays(self, tmp_path):
        from datasets import Dataset

        values = np.arange(8.0).reshape(4, 2)
        for who, names in ((["b", " a", "b", "a"], "baba"), ([8, 7, 8, 7], "8787")):
            rows = {"x": values.tolist(), "y": [0, 1, 0, 1], "who": who}
            Dataset.from_dict(rows).save_to_disk(tmp_path / names)
            data = load(str(tmp_path / names), "", Form("y", "who"))
            same(data, values, [0, 1, 0, 1], np.array([*names]))

    @pytest.mark.parametrize("row", [0, 2])
    def test_the_row_without_a_picture_is_said(self, row, tmp_path):
        from datasets import Dataset, Features, Value
        from datasets import Image as Picture

        pictures = [Image.fromarray(np.zeros((4, 4, 3), np.uint8))] * 4
        pictures[row] = None
        kinds = Features({"image": Picture(), "y": Value("int64")})
        values = {"image": pictures, "y": [0, 1, 0, 1]}
        Dataset.from_dict(values, features=kinds).save_to_disk(tmp_path / "d")
        line = rf"d: row {row}: cannot be read as a picture \(there is none\)$"
        with pytest.raises(RunError, match=line):
            load(str(tmp_path / "d"), "", Form("y"))

    @pytest.mark.parametrize(("cells", "line"), [
        ([[1, 2], [1]], "row 1: shape [1]; must be [2] like {}: row 0"),
        ([[[1, 2, 3]], [[1, 2]]], "row 1: shape [1, 2]; must be [1, 3] like {}: row 0"),
        ([[1, 2], None], "row 1: shape []; must be [2] like {}: row 0"),
        ([[[1, 2], [1]]] * 2, "column x holds no arrays of numbers (setting an array element"),
        ([[1, 2], [1, None]], "column x holds no arrays of numbers (int() argument must be"),
    ])  # fmt: skip
    def test_arrays_of_different_shapes_are_no_pictures(self, cells, line, tmp_path):
        from datasets import Dataset

        path = tmp_path / "d"
        Dataset.from_dict({"x": cells, "y": [0, 1]}).save_to_disk(path)
        with pytest.raises(RunError) as caught:
            load(str(path), "", Form("y"))
        assert str(caught.value).startswith(f"{path}: {line.format(path)}")


CELLS = ["None", "null", "x", "", "NA", "?", "NaN", " x "]


def test_what_stands_for_a_missing_value_is_the_same_in_every_kind_of_file(tmp_path):
    """A category or class that is called None, or null, is one; pandas takes it for missing."""
    table = pd.DataFrame({"drug": CELLS, "dose": range(8), "ill": ["None", "null"] * 4})
    (tmp_path / "t.csv").write_text(
        "\n".join(["drug,dose,ill", *(f"{a},{b},{c}" for a, b, c in table.to_numpy())]), "utf-8"
    )
    table.to_parquet(tmp_path / "t.parquet")
    for missing, rows in (("mean", range(8)), ("drop", (0, 1, 2, 7))):
        one, other = (
            load(str(tmp_path / name), "", Form(target_column="ill", missing=missing))
            for name in ("t.csv", "t.parquet")
        )
        assert one.names == other.names == ("None", "null")
        assert one.columns == other.columns == "drug=None|null|x,dose"
        for mine, theirs in zip(tensors(one), tensors(other), strict=True):
            np.testing.assert_array_equal(mine, theirs)
        assert tensors(one)[1].tolist() == [row % 2 for row in rows]
    expected = [[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 1]]
    np.testing.assert_array_equal(tensors(one)[0][:, :3], expected)
    with pytest.raises(RunError, match=r"column drug .*row 4|line 5.* drug"):
        load(str(tmp_path / "t.csv"), "", Form(target_column="ill"))


def test_a_text_that_the_run_names_is_not_missing(tmp_path):
    (tmp_path / "t.csv").write_text("drug,ill\nNA,0\nx,1\n?,0\n", "utf-8")
    form = Form(columns="drug=NA|x", target_column="ill", missing="drop")
    inputs, targets = tensors(load(str(tmp_path / "t.csv"), "", form))
    assert inputs.tolist() == [[1, 0], [0, 1]] and targets.tolist() == [0, 1]
