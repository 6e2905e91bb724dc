"""Clients that exist: each group of the data is a client."""

import hashlib

import numpy as np
import pytest

import fedapps
from fedapps import cli
from fedapps.core.config import parse, read
from fedapps.core.errors import RunError
from fedapps.data import Form, load, notes
from fedapps.data.partitioners.natural import clients_of
from fedapps.engine import again
from fedapps.report import directory, plots
from fedapps.training.workspace import Workspace

SIZES = {"9": 12, "10": 30, "2": 7, "33": 15}
GROUPS = np.random.default_rng(0).permutation(np.repeat([*SIZES], [*SIZES.values()]))


@pytest.fixture
def space(tmp_path):
    def make(options="", **members):
        path = tmp_path / "g.npz"
        n = len(GROUPS)
        whole = {"inputs": np.arange(2.0 * n).reshape(n, 2), "targets": np.arange(n) % 2}
        np.savez(path, **(members or whole | {"groups": GROUPS}))
        common = f'dataset="{path}" partitioner="natural" model="mlp" device="cpu"'
        return Workspace(read(parse([common, options])))

    return make


def members(share):
    return sorted([*share.train, *share.test, *share.validation])


def test_each_group_that_is_large_enough_is_a_client_in_the_order_of_numbers(space):
    found = space("num-clients=0 min-samples=8 validation-fraction=0.2")
    assert found.population.names == ("9", "10", "33")
    assert found.settings.num_clients == 3
    for client, name in enumerate(found.population.names):
        rows = np.flatnonzero(name == GROUPS).tolist()
        assert members(found.population.share(client)) == rows
    assert found.population.told == (
        "1 of 4 groups have fewer than min-samples = 8 samples and take no part: 2",
        "the clients are 0 = 9, 1 = 10, 2 = 33",
    )


@pytest.mark.parametrize(("names", "order"), [
    (("-1", "-20", "3"), ["-20", "-1", "3"]),
    (("--3", "-1", "20"), ["--3", "-1", "20"]),  # texts
])  # fmt: skip
def test_only_what_is_a_number_is_sorted_as_one(names, order, space):
    rows = {"inputs": np.arange(24.0).reshape(12, 2), "targets": np.arange(12) % 2}
    found = space("num-clients=0 min-samples=2", groups=np.repeat([*names], 4), **rows)
    assert [*found.population.names] == order


def test_some_groups_are_drawn_by_the_seed(space):
    drawn = {
        space(f"num-clients=2 min-samples=2 seed={seed}").population.names for seed in range(9)
    }
    assert len(drawn) > 1
    assert all(len(names) == 2 and int(names[0]) < int(names[1]) for names in drawn)


@pytest.mark.parametrize(("options", "said"), [
    ("num-clients=2 seed=3", "num-clients = 2 of 4 groups: seed = 3 draws them, and another seed"
     " draws others; num-clients = 0 takes all"),
    ("num-clients=4", None),
    ("num-clients=0", None),
])  # fmt: skip
def test_a_run_says_that_the_seed_draws_its_clients(options, said, space):
    found = space(f"min-samples=2 {options}").population
    first, second = found.names[:2]
    assert found.told == ((said, f"the clients are 0 = {first}, 1 = {second}") if said else ())


def test_a_run_that_goes_on_with_known_clients_draws_none(space):
    made = space("num-clients=2 min-samples=2")
    known = clients_of(made.dataset, made.settings, ["10", "2"])
    assert (known.names, known.told) == (("10", "2"), ("the clients are 0 = 10, 1 = 2",))


def test_official_parts_stay_with_their_groups(space):
    n = len(GROUPS)
    inputs, targets = np.arange(2.0 * n).reshape(n, 2), np.arange(n) % 2
    found = space(
        'num-clients=0 min-samples=2 split="official"',
        train_inputs=inputs[:44], train_targets=targets[:44], train_groups=GROUPS[:44],
        test_inputs=inputs[44:], test_targets=targets[44:], test_groups=GROUPS[44:],
    )  # fmt: skip
    for client, name in enumerate(found.population.names):
        rows = np.flatnonzero(name == GROUPS)
        share = found.population.share(client)
        assert share.train.tolist() == rows[rows < 44].tolist()
        assert share.test.tolist() == rows[rows >= 44].tolist()


@pytest.mark.parametrize(("wanted", "least", "cure"), [
    (20, 2, "num-clients = 0 takes all of them"),
    (20, 10, "num-clients = 0 takes all of them"),  # there are four at most
    (4, 10, "num-clients = 0 takes all of them; lower min-samples for more"),
    (4, 99, "lower min-samples for more"),
    (0, 99, "lower min-samples for more"),
    (20, 99, "lower min-samples for more"),
])  # fmt: skip
def test_the_cure_of_too_few_clients_helps(wanted, least, cure, space):
    with pytest.raises(RunError) as error:
        space(f"num-clients={wanted} min-samples={least}")
    assert str(error.value).partition("samples; ")[2] == cure


@pytest.mark.parametrize(("options", "members", "message"), [
    ("num-clients=5", {}, "num-clients = 5: 3 of 4 groups have min-samples = 10 samples"),
    ("num-clients=0 min-samples=99", {}, "num-clients = 0: 0 of 4 groups"),
    ('num-clients=0 split="official"', {}, 'split = "official": the data have no test set'),
    ('num-clients=0 partitioner="iid"', {}, "num-clients = 0: must be at least 1, except with"),
    ("num-clients=0", {"inputs": np.zeros((4, 2)), "targets": np.zeros(4)}, "does not say who"),
    ("num-clients=0", {"inputs": np.zeros((4, 2)), "targets": np.zeros(4), "groups": np.zeros(3)},
     "groups has shape [3] and dtype float64; must be texts or integers, one for each of 4"),
])  # fmt: skip
def test_what_is_wrong_is_said_in_one_line(options, members, message, space):
    with pytest.raises(RunError) as error:
        found = space(options, **members)
        found.population.share(0)
    assert message in str(error.value)


def test_it_is_said_if_test_samples_are_missing(space):
    """9 has 12 samples and is tested, 10 and 33 have enough and are not, 2 has too few."""
    inputs, order = np.ones((len(GROUPS), 2)), np.argsort(GROUPS != "9", kind="stable")
    parts = {"train": np.r_[order[2:], order[2:12]], "test": order[:2]}
    arrays = {
        f"{part}_{key}": values[rows]
        for part, rows in parts.items()
        for key, values in (("inputs", inputs), ("targets", inputs[:, 0]), ("groups", GROUPS))
    }
    found = space('num-clients=0 split="official"', **arrays)
    assert found.population.names == ("9",)
    assert found.population.told == (
        "1 of 4 groups have fewer than min-samples = 10 training samples and take no part: 2",
        '2 of 4 groups have no test sample and take no part (split = "merged" gives some): 10, 33',
        "the clients are 0 = 9",
    )
    cure = '; num-clients = 0 takes all of them; 2 more have no test sample: split = "merged" gives'
    with pytest.raises(RunError, match=f"2: 1 of 4 groups have min-samples = 10 samples{cure}"):
        space('num-clients=2 split="official"', **arrays)


def test_clients_that_are_probably_the_same_are_told(space):
    groups = np.array(["a", "a ", "A", "b"])[np.arange(80) % 4]
    values = {"inputs": np.ones((80, 2)), "targets": np.arange(80) % 2, "groups": groups}
    assert space("num-clients=0", **values).population.told == (
        "clients A, a, a  differ only in case or blanks; if they are the same, write them alike",
    )


def test_a_misspelled_client_that_is_left_out_is_told(space):
    groups = np.array(["Ward", "b"])[np.arange(80) % 2]
    groups[:3] = "ward"
    values = {"inputs": np.ones((80, 2)), "targets": np.arange(80) % 2, "groups": groups}
    left_out, alike, *_ = space("num-clients=0", **values).population.told
    assert left_out.startswith("1 of 3 groups have fewer than min-samples") and "ward" in left_out
    assert alike.startswith("clients Ward, ward differ only in case or blanks; ")


@pytest.mark.parametrize(("split", "partitioner", "said"), [
    ("merged", "iid", 'partitioner = "iid"; "natural" makes each of 4 a client'),
    ("merged", "natural", 'split = "merged" mixes with the training part'),
    ("last", "natural", 'split = "last" mixes with the training part'),
    ("official", "natural", ""),
])  # fmt: skip
def test_data_that_say_more_than_the_run_uses(split, partitioner, said, tmp_path):
    n, half = len(GROUPS), len(GROUPS) // 2
    values = {"inputs": np.ones((n, 2)), "targets": np.arange(n) % 2, "groups": GROUPS}
    parts = {"train": slice(0, half), "test": slice(half, n)}
    arrays = {f"{part}_{key}": values[key][s] for part, s in parts.items() for key in values}
    np.savez(tmp_path / "g.npz", **arrays)
    found = notes(load(str(tmp_path / "g.npz"), ""), split, partitioner)
    assert (said in found[0]) if said else (found == [])


def test_names_of_clients_stand_where_a_person_looks(tmp_path, serial_run, read_csv, capsys):
    """Whatever they are: markup, a formula of a spreadsheet or of a plot, a number."""
    called = ["12", "<b>North</b> & $Co$", "=1+1", "South"]
    groups = np.repeat([*called, "Far"], [20] * 4 + [7])  # the last has too few samples
    values = {"inputs": np.arange(174.0).reshape(-1, 2), "targets": np.arange(87) % 2}
    np.savez(tmp_path / "own.npz", groups=groups, **values)
    folder = serial_run(
        f'dataset="{tmp_path / "own.npz"}" partitioner="natural" num-clients=0 model="mlp"'
        ' strategy="fedper" num-rounds=1 min-samples=8 unseen-clients="3"'
    )
    assert "note: 1 of 5 groups have fewer than min-samples = 8" in capsys.readouterr().out
    names = {row["client"]: row["name"] for row in read_csv(folder, "names.csv")}
    assert names == {"0": "12", "1": called[1], "2": "'=1+1", "3": "South"}  # for spreadsheets
    again.evaluate(folder, {"finetune-epochs": 0})
    for file, clients in (("clients.csv", "012"), ("unseen.csv", "3"), ("evaluation-1.csv", "012")):
        rows = read_csv(folder, file)
        assert [*rows[0]][-1] == "name" and [row["client"] for row in rows] == [*clients]
        assert all(row["name"] == names[row["client"]] for row in rows)
    assert {path.name for path in plots.draw_all(folder)} >= {"client-accuracy.png", "clients.png"}
    page = fedapps.load(folder).report().read_text()
    assert "<b>North" not in page and page.count("&lt;b&gt;North&lt;/b&gt; &amp; $Co$") > 2
    assert "=1+1" in page and "&#39;=1+1" not in page
    assert list(fedapps.load(folder).clients["name"]) == called[:3]
    np.savez(tmp_path / "asked.npz", inputs=values["inputs"])
    ask = ["predict", str(folder), "--input", str(tmp_path / "asked.npz"), "--client"]
    capsys.readouterr()
    told = {}
    for client in ("0", "12", "2", "=1+1", "3", "South"):  # 12 is a name
        assert cli.main([*ask, client]) == 0
        told[client] = capsys.readouterr().out
    assert told["0"] == told["12"] and told["2"] == told["=1+1"] and told["3"] == told["South"]
    assert len({*told.values()}) == 3
    for wrong, said in (("south", "South"), ("zzz", f"12, {called[1]}, =1+1"), ("4", "0 to 3")):
        assert cli.main([*ask, wrong]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"error: --client {wrong}: must be") and line.endswith(said)


def test_clients_of_a_table_are_called_as_in_the_file(tmp_path, serial_run, read_csv):
    """Leading zeros tell clients apart, and 001 is never client number 1."""
    called, rng = ["001", "1", "002", "08001", "8001"], np.random.default_rng(1)
    rows = [f"{who},{rng.normal():.3f},{row % 2}" for row in range(16) for who in called]
    (tmp_path / "t.csv").write_text("\n".join(["who ,x,ill", *rows, " 1 ,0.5,1"]))
    folder = serial_run(
        f'dataset="{tmp_path / "t.csv"}" client-column="who" partitioner="natural" num-clients=0'
        ' model="mlp" num-rounds=1 unseen-clients="001" strategy="fedper"'
    )
    names = [row["name"] for row in read_csv(folder, "names.csv")]
    assert sorted(names) == sorted(called) and names.index("1") == 1
    (newcomer,) = read_csv(folder, "unseen.csv")
    assert newcomer["name"] == "001"
    for number, name in enumerate(names):
        assert directory.client_of(folder, name) == number
    assert directory.client_of(folder, "3") == 3
    with pytest.raises(RunError, match="--client 0008001: must be a number or a name in "):
        directory.client_of(folder, "0008001")


NAMES = ("Zu\u0308rich", "Z\u00fcrich", "Bern", "\u0141\u00f3d\u017a")  # the first two are one


@pytest.mark.parametrize("form", ["file", "folder", "windows"])
def test_names_may_be_bytes_in_utf8(form, tmp_path):
    """As h5py gives texts; the names of classes may be, too."""
    encoded = [name.encode() for name in NAMES]
    values = np.random.default_rng(0).normal(size=(80, 2))
    groups = np.repeat(encoded, 20)
    whole = {"inputs": values, "targets": np.arange(80) // 10 % 2, "groups": groups}
    (tmp_path / "own").mkdir()
    for name in ("own.npz", "own/train.npz"):
        np.savez(tmp_path / name, **whole, class_names=[b"gr\xc3\xbcn", b"rot"])
    path = tmp_path / ("own" if form == "folder" else "own.npz")
    data = load(str(path), "", Form(window=2 * (form == "windows")))
    found = clients_of(data, read(parse(['partitioner="natural" num-clients=0 split="merged"'])))
    assert found.names == ("Bern", "Z\u00fcrich", "\u0141\u00f3d\u017a")
    assert data.names == ("gr\u00fcn", "rot")
    if form == "file":
        assert found.owners.tolist() == np.repeat([1, 1, 0, 2], 20).tolist()


def test_bytes_of_another_encoding_are_refused(space):
    bad = [name.encode("latin-1") for name in ("Z\u00fcrich", "Bern")]
    whole = {"inputs": np.ones((80, 2)), "targets": np.arange(80) % 2}
    with pytest.raises(RunError, match=r"g.npz: groups holds bytes that are not UTF-8; save texts"):
        space("num-clients=0", **whole, groups=np.repeat(bad, 40))


def test_what_data_with_bytes_in_ascii_are_known_by_stays(tmp_path):
    """A run can be resumed that began before others could be read."""
    whole = {"inputs": np.arange(6.0).reshape(3, 2), "targets": np.arange(3) % 2}
    np.savez(tmp_path / "own.npz", **whole, groups=np.array([b"anna", b"ben", b"anna"]))
    plain = [whole["targets"].tobytes(), b"annaben\0anna", whole["inputs"].tobytes()]
    digest = hashlib.sha256(b"3 " + b"".join(plain)).hexdigest()[:16]
    assert load(str(tmp_path / "own.npz"), "").digest == digest
