"""The words of a sweep: which run-configs they mean, and what is refused before anything runs."""

import shlex
from itertools import product

import pytest

from fedapps import cli, serial
from fedapps.compare.grid import ITSELF, read_seeds
from fedapps.compare.sweep import Sweep
from fedapps.core import changes, config


@pytest.fixture
def points(tmp_path, monkeypatch):
    """Return points(*words) -> (name, run-config) of what `fedapps sweep WORDS` would run."""
    seen = []
    monkeypatch.setattr(Sweep, "run", lambda sweep: seen.extend(sweep.points))

    def call(*words):
        seen.clear()
        assert cli.main(["sweep", *words, "--output", str(tmp_path / "out")]) == 0
        return [(point.name, dict(point.flat)) for point in seen]

    return call


def test_a_grid_is_the_product_of_its_axes_and_seeds(points):
    axes = {"strategy": ["fedavg", "fedper"], "lr": [0.1, 0.2, 0.3], "score-last": [True, False]}
    found = points(
        "strategy=fedavg,fedper", "lr=0.1,0.2,3e-1", "score-last=true,false",
        "--seeds", "0-1,7", "-c", "batch-size=4 lr=0.9",
    )  # fmt: skip
    wanted = {(seed, *values) for seed in (0, 1, 7) for values in product(*axes.values())}
    assert len(found) == len(wanted) == 36
    assert {(flat["seed"], *(flat[key] for key in axes)) for _, flat in found} == wanted
    assert len({name for name, _ in found}) == 36
    base = serial.absolute(config.defaults()) | {"batch-size": 4, "threads": 1}
    for _, flat in found:
        assert {key: v for key, v in flat.items() if base[key] != v}.keys() <= {*axes, "seed"}
    # the first seed first, so that a grid that is not finished can be compared
    assert [flat["seed"] for _, flat in found] == [0] * 12 + [1] * 12 + [7] * 12


def test_texts_with_commas_numbers_and_words_are_values(points):
    found = points('sizes="0.6,0.4","0.5,0.5"', "-c", "partitioner=sizes num-clients=2")
    assert [flat["sizes"] for _, flat in found] == ["0.6,0.4", "0.5,0.5"]
    found = points("seed=3,5")
    assert [(flat["seed"], flat["strategy"]) for _, flat in found] == [
        (3, config.defaults()["strategy"]), (5, config.defaults()["strategy"]),
    ]  # fmt: skip


def test_without_axes_and_seeds_there_is_one_run(points):
    ((_, flat),) = points("-c", "seed=4 lr=0.5")
    assert (flat["seed"], flat["lr"]) == (4, 0.5)


def test_what_is_the_same_run_is_run_once(points):
    found = points("strategy=fedavg,fedcmd", "fedcmd.selection-fraction=0.5,0.75")
    assert [(flat["strategy"], flat["fedcmd.selection-fraction"]) for _, flat in found] == [
        ("fedavg", 0.5), ("fedcmd", 0.5), ("fedcmd", 0.75),
    ]  # fmt: skip
    assert len(points("lr=0.1,0.10,1e-1", "--seeds", "0,0-1")) == 2


@pytest.mark.parametrize(("words", "runs", "told"), [
    ("strategy=fedavg,fedper,fedcmd fedcmd.selection-fraction=0.5,0.75 --seeds 0-1", 8, [
        "fedcmd.selection-fraction=0.5,0.75 makes no difference with fedavg, fedper",
    ]),
    ("fedprox.prox-mu=0.1,1.0 lr=0.1,0.2 -c strategy=fedavg", 2, [
        "fedprox.prox-mu=0.1,1.0 makes no difference with fedavg",
    ]),
    ("prox-mu=0.1,1.0 -c strategy=fedprox -c fedprox.prox-mu=0.5", 1, [
        "prox-mu=0.1,1.0 makes no difference with fedprox",
    ]),
    ("alpha=0.1,0.5 -c partitioner=iid", 1, [
        "alpha=0.1,0.5 makes no difference with partitioner=iid",
    ]),
    ("partitioner=iid,dirichlet alpha=0.1,0.5 lr=0.1,0.2", 6, [
        "alpha=0.1,0.5 makes no difference with partitioner=iid",
    ]),
    ("fedprox.prox-mu=0.1,1.0,1e0 -c strategy=fedprox", 2, []),  # the same value has the same run
])  # fmt: skip
def test_values_that_make_no_difference_are_named(points, capsys, words, runs, told):
    assert len(points(*words.split())) == runs
    assert capsys.readouterr().out.splitlines() == told


def test_a_sweep_can_have_a_thousand_seeds():
    assert read_seeds("1000,1-999,1-999") == [1000, *range(1, 1000)]


def test_validation_holds_out_and_scores_on_it(points):
    for _, flat in points("lr=0.1,0.2", "--validation", "0.25", "-c", "evaluate-on=test"):
        assert (flat["validation-fraction"], flat["evaluate-on"]) == (0.25, "validation")


def test_the_folder_is_sweep_in_runs_dir(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(Sweep, "run", lambda sweep: seen.append((sweep.folder, sweep.jobs)))
    assert cli.main(["sweep", "lr=0.1", "-c", f"runs-dir={tmp_path}/runs"]) == 0
    assert seen == [(tmp_path / "runs" / "sweep", 2)]


def test_relative_folders_begin_at_the_working_directory(points, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ((_, flat),) = points("lr=0.1", "-c", "data-root=data runs-dir=runs")
    assert (flat["data-root"], flat["runs-dir"]) == (f"{tmp_path}/data", f"{tmp_path}/runs")


@pytest.mark.parametrize(("words", "told"), [
    ("lrr=0.1,0.2", "axis lrr=0.1,0.2: unknown key lrr, did you mean lr?"),
    ("0.1", "axis 0.1: unknown key 0.1"),
    ("lr=", "axis lr=: cannot read its values"),
    ("lr=0.1,,0.2", "axis lr=0.1,,0.2: cannot read its values"),
    ("lr=[1],[2]", "axis lr=[1],[2]: cannot read its values"),
    ("lr=0.1,0", "lr = 0: must be float > 0"),
    ("strategy=fedavg,fedpr", 'strategy = "fedpr": unknown, did you mean fedper?; must be one of '),
    ("lr=0.1 lr=0.2", "axis lr: given 2 times; give all its values at once"),
    ("runs-dir=/a,/b", "axis runs-dir=/a,/b: the sweep sets runs-dir itself"),
    ("metric=accuracy,macro_f1 -c patience=10",
     "axis metric=accuracy,macro_f1: it says by what runs are compared; make a sweep for each"),
    ("resume=/a,/b", "axis resume=/a,/b: the sweep sets resume itself; the same command goes on"),
    ("lr=0.1 -c resume=latest", 'resume = "latest": the sweep sets resume itself; leave it out'),
    ("lr=0.1 -c run-name=mine", 'run-name = "mine": the sweep sets run-name itself; leave it out'),
    ("lr=0.1 -c lrr=1", "unknown key lrr, did you mean lr?"),
    ("lr=0.1 -c alpha=0", "alpha = 0: must be float > 0"),
    ("lr=0.1 --seeds 2-0", "--seeds 2-0: must be numbers, for example 0-2 or 0,3,7"),
    ("lr=0.1 --seeds 0,1-1000", "--seeds 0,1-1000: at most 1000 seeds; give fewer"),
    ("lr=0.1 --seeds 0-99999999999", "--seeds 0-99999999999: at most 1000 seeds; give fewer"),
    ("seed=0,1 --seeds 0-2", "axis seed: give seeds only once, here or with --seeds"),
    ("seed=-1", "seed = -1: must be int >= 0"),
    ("lr=0.1 --jobs 0", "--jobs 0: must be at least 1"),
    ("lr=0.1 --validation 1", "--validation 1.0: must be a share between 0 and 1, such as 0.2"),
    ("evaluate-on=test,validation", 'evaluate-on = "validation": needs validation-fraction'),
])  # fmt: skip
def test_bad_words_end_a_sweep_before_anything_runs(refused, words, told):
    """`refused` sees to it that it is one line, and that no folder is made."""
    assert refused("sweep", *words.split()).startswith(told)


def test_the_name_in_a_runs_settings_is_refused_until_it_is_unset(points, refused, tmp_path):
    file = tmp_path / "config.toml"
    file.write_text('lr = 0.5\nrun-name = "mine"\n')
    unset = """-c 'run-name=""'"""
    assert unset in refused("sweep", "alpha=1,2", "-c", file)
    found = points("alpha=1,2", "-c", str(file), *shlex.split(unset))
    assert [(flat["lr"], flat["alpha"]) for _, flat in found] == [(0.5, 1), (0.5, 2)]


@pytest.mark.parametrize("key", sorted(changes.INCIDENTAL - {"metric", *ITSELF}))
def test_axes_on_which_no_run_depends_are_refused(refused, key):
    """All its values would be one run."""
    last = key in {"cache-limit", "device", "group", "presum", "secure-sum", "threads"}
    much = "only the last digits of results depend" if last else "no result depends"
    axis = f"{key}=1,2"
    assert refused("sweep", axis) == f"axis {axis}: {much} on {key}; give it one value with -c"


@pytest.mark.parametrize("axis", [
    "evaluate-on=test,validation", "validation-fraction=0.1,0.3",
    "fedfomo.validation-fraction=0.1,0.3",
])  # fmt: skip
def test_axes_of_what_validation_sets_are_refused(refused, axis):
    """Else what is told to be chosen on validation samples could be chosen on test samples."""
    line = f"axis {axis.partition('=')[0]}: --validation sets this key, too; leave one out"
    assert refused("sweep", axis, "--validation", "0.2") == line


@pytest.mark.parametrize(("given", "wanted"), [
    ("validation-fraction=0.1", "0.2"), ("fedfomo.validation-fraction=0.1", "0.2"),
])  # fmt: skip
def test_other_values_of_what_validation_sets_are_refused(refused, given, wanted):
    key, value = given.split("=")
    line = f"-c: {key} = {value}: --validation sets this key, too ({wanted}); leave one out"
    same = ("-c", "validation-fraction=0.2", "-c", "evaluate-on=validation")
    words = ("sweep", "lr=0.1", "--validation", "0.2")
    assert refused(*words, *same, "-c", f"strategy=fedfomo {given}") == line
