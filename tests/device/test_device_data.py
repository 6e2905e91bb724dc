"""A device's own data and its node-config: what fits, and one line for what does not."""

import itertools
import shutil
from functools import partial

import numpy as np
import pandas as pd
import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from PIL import Image

from fedapps import data
from fedapps.core import config
from fedapps.core.errors import RunError
from fedapps.data.dataset import Dataset
from fedapps.data.npz import Rows, held
from fedapps.data.partition import Share
from fedapps.data.spec import Spec, image_spec, label_spec
from fedapps.device import trained
from fedapps.device.device import Device, device_workspace
from fedapps.wire.hello import unpack_hello
from fedapps.wire.requests import RoundInfo
from tests.device.helpers import RUN, put
from tests.support.tables import save

# The changed node-config of device 1, by what makes a file or folder of data, and what is said.
BAD_NODES = {
    "shape": (
        {"data": lambda npz, _: npz(side=9)},
        "images of [C, H, W] = [1, 9, 9]; the run has images of [C, H, W] = [1, 8, 8] (",
    ),
    "label": (
        {"data": lambda npz, _: npz(classes=4, train_labels=np.full(96, 3))},
        "label 3 found; the run has 0..2 (num-classes)",
    ),
    "names": (
        {"data": lambda npz, _: npz(class_names=np.array(["0", "2", "1"]))},
        "class_names are 0,2,1; the run has 0,1,2 (class-names)",
    ),
    "folder": (
        {"data": lambda _, put: put("013")},
        "class 3; the run has 0, 1, 2 (class-names)",
    ),
    "picture": ({"data": lambda _, put: put("012", size=(7, 8))}, "pixels; the run has 8x8"),
    "file": ({"data": lambda *_: "/gone.npz"}, "/gone.npz: no such file"),
    "number": ({"client-id": 3}, "client-id = 3: must be 0 to 2 (num-clients)"),
    "double": ({"client-id": 0}, "client-id = 0 is also that of SuperNode 1; change one"),
    "none": (
        dict.fromkeys(("client-id", "data", "state-dir")),
        "it has no data, but the run has da",
    ),
}

# What the server hears, where the reason says something of the data themselves.
UNKNOWN = "its data cannot be used; why is in the output of its SuperNode (journalctl, docker logs)"
TOLD = dict.fromkeys(("folder", "picture", "file"), UNKNOWN) | {
    "label": "it has other labels; the run has 0..2 (num-classes)",
    "names": "it has other class_names; the run has 0,1,2 (class-names)",
}


HEAD = ",".join([*(f"x{k}" for k in range(4)), "label"])
ROWS = [",".join([*(str(k * n % 7) for k in range(4)), str(n % 3)]) for n in range(45)]
TABLE = 'strategy="fedper" model="mlp" input-shape="4" target-column="label" columns="x0,x1,x2,x3"'


def write_table(path, rows):
    path.write_text("\n".join([HEAD, *rows]), "utf-8")


def give_tables(nodes, folder, parts):
    """Give all devices a table of 40 rows for each part; with one part, the file itself."""
    folder.mkdir()
    for part in parts:
        write_table(folder / f"{part}.csv", ROWS[:40])
    for node in nodes:
        node["data"] = str(folder / "train.csv" if parts == ["train"] else folder)


def opened(path, shape, names):
    """A device's data in a run of images of this shape and these classes."""
    form = data.Form(names=tuple(names))
    return data.of_device(path, image_spec(shape), label_spec(len(names)), form)


@pytest.mark.parametrize("kind", BAD_NODES)
def test_a_misfit_is_one_line(kind, nodes, make_npz, tmp_path, device_run, read_csv, capsys):
    changes, expected = BAD_NODES[kind]
    made = partial(make_npz, tmp_path / "bad.npz"), partial(put, tmp_path / "pictures")
    node = nodes[1] | changes
    if callable(node["data"]):
        node["data"] = str(node["data"](*made))
    nodes[1] = {key: value for key, value in node.items() if value is not None}
    folder = device_run('strategy="fedper" num-rounds=1')
    assert {row["client"] for row in read_csv(folder, "clients.csv")} == {"0", "2"}
    lines = capsys.readouterr().out.splitlines()
    (line,) = [line for line in lines if line.startswith("left out: SuperNode 2")]
    told = TOLD.get(kind, expected)
    assert told in line
    assert any(told in row["detail"] for row in read_csv(folder, "events.csv"))
    if kind in TOLD:
        assert expected not in line + (folder / "events.csv").read_text()
    if kind != "double":  # this the node cannot know
        assert any(expected in line for line in lines if "SuperNode 2" not in line)


@pytest.mark.parametrize("part", ["train", "test"])
@pytest.mark.parametrize(("value", "why"), [(7.7e300, "holds 7.7e+300"), (np.nan, "holds NaN or")])
def test_a_float_that_cannot_be_used_is_found_before_the_run_and_not_told(
    part, value, why, nodes, tmp_path, device_run, read_csv, capsys
):
    """Neither which sample it is nor what it holds, also if only an evaluation would read it."""
    draws = np.random.default_rng(0)
    for client, node in enumerate(nodes):
        arrays = {}
        for each, size in (("train", 24), ("test", 8)):
            arrays[f"{each}_inputs"] = draws.normal(size=(size, 4))
            arrays[f"{each}_targets"] = np.arange(size) % 3
        if client == 1:
            arrays[f"{part}_inputs"][5, 2] = value
        node["data"] = str(tmp_path / f"ward{client}.npz")
        np.savez(node["data"], **arrays)
    folder = device_run('strategy="fedper" model="mlp" input-shape="4" num-rounds=1')
    (event,) = read_csv(folder, "events.csv")
    assert (event["kind"], event["detail"]) == ("left-out", f"SuperNode 2, client 1: {UNKNOWN}")
    assert f"client 1: {nodes[1]['data']}: {part}_inputs[5] {why}" in capsys.readouterr().out


def test_too_few_devices_end_the_run_with_a_line(device_run, nodes):
    """At once: in this process nobody else will come."""
    nodes[1]["data"] = "/nowhere/x.npz"
    nodes[2]["client-id"] = 0
    with pytest.raises(RunError) as caught:
        device_run('strategy="fedper" min-available=3 round-timeout=3600.0')
    assert str(caught.value) == (
        f"1 of 3 SuperNodes (min-available); left out: SuperNode 2, client 1: {UNKNOWN}; "
        "SuperNode 3, client 0: client-id = 0 is also that of SuperNode 1; change one"
    )


def test_more_devices_than_clients_are_not_waited_for(flat_config):
    line = "min-available = 4: each device is a client, so it must be at most num-clients = 3"
    with pytest.raises(RunError, match=line):
        config.read(flat_config(RUN, "min-available=4"))


def test_devices_that_are_held_out_are_not_waited_for(device_run):
    """They take part in no round."""
    with pytest.raises(RunError) as caught:
        device_run('strategy="fedper" min-available=3 unseen-clients="2"')
    told = "min-available = 3: 2 clients can train (unseen-clients); use at most that"
    assert str(caught.value) == told


@pytest.mark.parametrize(("option", "line"), [
    ('input-shape="1,a,8"', 'input-shape = "1,a,8": must be channels,height,width of images'),
    ('input-shape="1,0,8"', 'input-shape = "1,0,8": must be channels,height,width of images'),
    ('class-names="a,b"', 'class-names = "a,b": must be 3 different names (num-classes)'),
    ('class-names="a,b,b"', 'class-names = "a,b,b": must be 3 different names (num-classes)'),
])  # fmt: skip
def test_keys_of_devices_are_checked(device_run, option, line):
    with pytest.raises(RunError) as caught:
        device_run(option)
    assert str(caught.value).startswith(line)


def test_a_folder_of_pictures_is_data(tmp_path):
    folder = put(tmp_path / "own", ["cat", "dog", "owl"])
    own = opened(folder, (1, 8, 8), ["cat", "dog", "owl"])
    assert (own.num_train, own.labels.tolist()) == (6, [0, 0, 1, 1, 2, 2] * 2)
    images, labels = own.tensors(np.array([0, 3]))
    assert labels.tolist() == [0, 1]
    np.testing.assert_allclose(images[:, 0, 0, 0], [-1.0, 61 / 255 * 2 - 1], rtol=1e-6)
    colored = opened(folder, (3, 8, 8), ["cat", "dog", "owl"])
    assert colored.tensors(np.arange(2))[0].shape == (2, 3, 8, 8)
    shutil.rmtree(folder / "train" / "dog")
    fewer = opened(folder, (1, 8, 8), ["cat", "dog", "owl"])
    assert (fewer.num_train, fewer.labels.tolist()) == (4, [0, 0, 2, 2, 0, 0, 1, 1, 2, 2])
    shutil.rmtree(folder / "test")
    only = opened(folder, (1, 8, 8), ["owl", "dog", "cat"])
    assert (only.num_train, only.labels.tolist()) == (4, [0, 0, 2, 2]), "to be split"
    with pytest.raises(RunError, match=r"class owl; the run has cat, dog \(class-names\)"):
        opened(folder, (1, 8, 8), ["cat", "dog"])


def test_pictures_have_the_height_and_width_of_the_run(tmp_path):
    folder = put(tmp_path / "own", ["cat", "dog"], size=(6, 8))
    own = opened(folder, (1, 8, 6), ["cat", "dog"])
    assert own.tensors(np.arange(8))[0].shape == (8, 1, 8, 6)
    with pytest.raises(RunError, match=r"0.png: 6x8 pixels; the run has 8x6$"):
        opened(folder, (1, 6, 8), ["cat", "dog"])


@pytest.mark.parametrize("kind", [np.uint16, np.int32, np.float32])
def test_pictures_of_more_than_8_bits_are_refused(tmp_path, kind):
    """Pillow would cut them off at 255: an X-ray becomes almost white."""
    folder = put(tmp_path / "own", ["cat", "dog"])
    suffix = "png" if kind == np.uint16 else "tiff"
    deep = folder / "train" / "cat" / "0.png"
    Image.fromarray(np.full((8, 8), 4000, kind)).save(deep, format=suffix)
    for shape in ((1, 8, 8), (3, 8, 8)):
        with pytest.raises(RunError, match=r"0.png: cannot be read .*more than 8 bits a pixel"):
            opened(folder, shape, ["cat", "dog"])


@pytest.mark.parametrize(("low", "high"), [(0.0, 240.0), (-0.5, 1.0), (0.0, 1.0), (0.25, 0.5)])
def test_float_pixels_are_from_0_to_1(tmp_path, low, high):
    """Mean and deviation 0.5 make -1..1 of these; with pixels up to 255 training diverges."""
    images = np.linspace(low, high, 3000 * 4, dtype=np.float32).reshape(3000, 2, 2)
    labels = np.arange(3000) % 2
    path = tmp_path / "own.npz"
    kinds = {"train_images": images, "test_images": images[-2:], "images": images}
    np.savez(path, train_labels=labels, test_labels=labels[:2], **kinds)
    fits = (low, high) in ((0.0, 1.0), (0.25, 0.5))
    told = f"{path}: images: float pixels from {low:g} to {high:g} are used as they are, but models"
    asked = data.unlabelled(path, image_spec((1, 2, 2)))  # what a simulation learns, it predicts
    assert [line.startswith(told) for line in asked.told] == [True] * (not fits)
    if fits:
        opened(path, (1, 2, 2), ["a", "b"])
        return
    with pytest.raises(RunError, match=r"own\.npz: float pixels .*; must be 0\.\.1, or uint8"):
        opened(path, (1, 2, 2), ["a", "b"])


@pytest.mark.parametrize(
    "answer", [{"client": -1.5}, {"client": "7"}, {"client": 1, "train": -2}, {"train": "many"}]
)
def test_a_broken_greeting_is_a_problem_of_its_node(answer):
    question = Message(RecordDict(), 5, "query.hello")
    reply = Message(RecordDict({"hello": ConfigRecord(answer)}), reply_to=question)
    assert unpack_hello(reply).problem.startswith("its answer is broken: ")
    assert unpack_hello(Message(RecordDict(), reply_to=question)).problem


@pytest.mark.parametrize("dataset", ["digits", "/nowhere/own.npz"])
def test_a_device_runs_no_file_that_the_settings_of_another_run_name(
    dataset, nodes, flat_config, tmp_path
):
    """Only a device's greeting refused the data set, and a server can leave that out."""
    model, trace = tmp_path / "model.py", tmp_path / "trace"
    model.write_text(f"open({str(trace)!r}, 'w')\n", "utf-8")
    settings = config.read(flat_config(f'dataset="{dataset}" model="{model}"'))
    with pytest.raises(RunError, match=r'it has its own data, which needs dataset = "device"'):
        device_workspace(settings, Device.of(nodes[0]))
    assert not trace.exists()


def test_a_device_cuts_windows_at_the_same_places_as_a_simulation(tmp_path):
    """At those where the rows of another person begin, although all are one client's here."""
    who = ["anna"] * 30 + ["ben"] * 30
    lines = [f"{row},{name},{row % 2 * 0}" for row, name in enumerate(who)]
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["a,person,label", *lines]), "utf-8")
    form = data.Form(
        target_column="label", client_column="person", columns="a", window=20, names=("0", "1")
    )
    simulated = data.load(str(path), "~", form)
    own = data.of_device(path, Spec((20, 1)), label_spec(2), form)
    assert own.groups is None and len(simulated.groups) == 2
    for one, other in zip(own.tensors(np.arange(2)), simulated.tensors(np.arange(2)), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("kind", ["folder", "parquet", "datasets"])
@pytest.mark.parametrize("column", ["person", ""])
def test_data_of_any_kind_are_cut_where_another_person_begins(kind, column, tmp_path):
    """A device whose table does not have the column has one person's rows."""
    rows = {"a": range(60), "label": [0] * 60}
    rows |= {column: ["anna"] * 30 + ["ben"] * 30} if column else {}
    path = save(pd.DataFrame(rows), tmp_path, "csv" if kind == "folder" else kind, "train")
    path = tmp_path if kind == "folder" else path
    form = data.Form("label", "person", "a", window=20, names=("0", "1"))
    own = data.of_device(path, Spec((20, 1)), label_spec(2), form)
    begin = own.tensors(np.arange(len(own.target_values)))[0][:, 0, 0].tolist()
    assert begin == ([0, 30] if column else [0, 20, 40])


def test_a_device_says_what_it_did_with_its_data_and_when_its_split_is_a_new_one(
    nodes, tmp_path, capsys, device_run
):
    """Only its own log says it. A second run finds the state of a run that had other data."""
    path, rows, keys = tmp_path / "own.csv", ROWS[:40], f'{TABLE} missing="drop" num-rounds=1'
    for node in nodes:
        node["data"] = str(path)
    write_table(path, [*rows, ",,,,1"])
    device_run(keys)
    first, told = capsys.readouterr().out, []
    assert "note: 1 of 41 rows" in first and "have changed" not in first
    write_table(path, [*rows, *rows[:5]])
    device_run(keys)
    line = "warning: client 0: its data, or the split, have changed since its last run"
    assert line in capsys.readouterr().out
    for last, new in ((True, 9), (True, 13), (False, 13), (False, 13)):
        write_table(path, [*rows, *rows[:new]])
        device_run(keys, f'split="{"last" if last else "merged"}"')
        told.append(capsys.readouterr().out)
    # the first one tests on what a draw has trained on; then what is new comes last
    assert [line in text for text in told] == [True, False, True, False]
    assert "split" not in told[1]


@pytest.mark.parametrize(("parts", "changes"), [
    (["train"], {"": 0, "seed=1": 1, "seed=1 test-fraction=0.3": 1, "split=last": 1,
                 "split=last seed=2": 0, "split=last test-fraction=0.4": 1, "num-clients=4": 1}),
    (["train", "test"], {"seed=1": 0, "test-fraction=0.3": 0}),
])  # fmt: skip
def test_another_draw_of_the_same_data_is_a_new_split_too(
    parts, changes, nodes, tmp_path, capsys, device_run
):
    """Where samples are drawn, the draw is a function of seed, client and `test-fraction`."""
    give_tables(nodes, tmp_path / "own", parts)
    told = []
    for change in ("", *changes):
        if "clients" in change:  # as client 3
            nodes[0]["client-id"] = 3
        device_run(TABLE, "num-rounds=1 seed=0 test-fraction=0.25", change)
        client = nodes[0]["client-id"]
        line = f"warning: client {client}: its data, or the split, have changed since its last run"
        told.append(capsys.readouterr().out.count(line))
    assert told == [0, *changes.values()]


@pytest.mark.parametrize(("before", "after", "warned"), [
    (range(10), range(16), True),  # 10.csv comes before 2.csv
    (range(10), range(7), True),  # the newest are lost
    (range(10, 20), range(10, 23), False),
    (range(10, 20), range(14, 22), False),  # and the oldest are gone
])  # fmt: skip
def test_with_the_last_samples_a_device_says_when_it_tests_on_what_it_trained_on(
    before, after, warned, flat_config, nodes, tmp_path, capsys
):
    """Recordings of two classes, one window each; each night in its own process."""
    keys = 'strategy="fedper" model="mlp" columns="x" window=4 input-shape="4,1" split="last"'
    keys += ' class-names="idle,walking" num-classes=2'
    settings, folder = config.read(flat_config(RUN, keys)), tmp_path / "own"
    device = Device.of(nodes[0] | {"data": str(folder)})

    def night(run, numbers):
        shutil.rmtree(folder, ignore_errors=True)
        for name, of in itertools.product(("idle", "walking"), numbers):
            path = folder / name / f"{of}.csv"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"x\n{of}\n{len(name)}\n0\n0\n")
        space = device_workspace(settings, device)
        share, values = space.population.share(0), space.dataset.rows.read
        store = device.store(space, RoundInfo("/runs/x", "", run_id=run))
        told = "it is scored on now may have been trained on then" in capsys.readouterr().out
        samples = ({row.tobytes() for row in values(rows)} for rows in (share.train, share.test))
        return *samples, told, store.folder

    seen, *_ = night("a", before)
    _, tested, told, state = night("b", after)
    assert (bool(seen & tested), told) == (warned, warned)
    night("c", before)
    (state / "trained").unlink()  # as an earlier version left it
    assert not night("d", after)[2]


@pytest.mark.parametrize(("parts", "split", "mixed"), [
    (["train"], "merged", True),
    (["train"], "last", False),
    (["train", "test"], "merged", False),
])  # fmt: skip
def test_a_new_split_within_a_run_is_told_by_the_device_and_at_the_server(
    parts, split, mixed, nodes, tmp_path, capsys, device_run, read_csv
):
    keys, own = f'{TABLE} split="{split}" client-state="reset"', tmp_path / "own"
    give_tables(nodes, own, parts)
    folder = device_run(keys, "num-rounds=1")
    write_table(own / "train.csv", ROWS)
    device_run(keys, f'num-rounds=2 resume="{folder}"')
    told = "its data have changed since the run began"
    if mixed:
        told += (
            ", and samples that it is scored on now may have been trained on then; give it a test"
            " part of its own, or set split=last in all runs and append new samples, in files whose"
            " names come last"
        )
    lines = capsys.readouterr().out.splitlines()
    assert f"warning: client 0: {told}" in lines
    assert f"warning: round 2: client 0: {told}" in lines
    events = [[*row.values()] for row in read_csv(folder, "events.csv")]
    assert ["2", "0", "data-changed", told] in events


def one_class(folder, values):
    rows = Rows((held(folder, "inputs", np.array(values, np.float32)[:, None]),))
    return Dataset("x", Spec((1,)), label_spec(2), np.zeros(len(values)), 0, rows=rows)


@pytest.mark.parametrize(("before", "train", "test", "moved"), [
    ([1, 2, 3], [1, 2, 3, 4], [5, 6], False),
    ([1, 2, 3], [1, 2, 4], [3, 5], True),
    ([0, 0, 1], [0, 0, 1], [0], False),  # as in the old ones, there was no motion in the new one
    ([0, 0, 1], [0, 1], [0], False),  # the oldest has gone, and there is a new one like it
    ([0, 1, 0, 2], [0, 1, 2], [0], True),
    ([0, 1, 0, 2], [0, 1, 2], [3], False),
    ([1, 2, 3, 4], [4], [3], True),  # all but the newest have gone, so nothing shows an order
])  # fmt: skip
def test_of_equal_samples_as_many_stay_in_the_training_part(before, train, test, moved, tmp_path):
    def noted(train, test):
        parts = np.split(np.arange(len(train) + len(test)), [len(train)])
        return one_class(tmp_path, [*train, *test]), Share(*parts)

    trained.note(tmp_path, *noted(before, [9]))
    assert trained.tests(tmp_path, *noted(train, test)) == moved
    assert not trained.tests(tmp_path / "none", *noted(train, test))


def test_windows_between_the_parts_have_not_gone(tmp_path):
    """Windows that overlap with training and validation are in neither, and each night others."""
    then, added = [0, 1, 2, 3, 7, 5, 6, 0, 1, 2], [7, 3]
    share = Share(*map(np.array, ([0, 1], [8, 9], [4, 5])))
    trained.note(tmp_path, one_class(tmp_path, then), share)
    later = Share(np.arange(4), np.array([10, 11]), np.array([6, 7]))
    assert not trained.tests(tmp_path, one_class(tmp_path, then + added), later)
