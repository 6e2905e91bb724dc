"""Sweeps: which runs a grid makes, and what is left of one that was killed or has failures."""

import json
import shlex
import signal
import tomllib
from collections import Counter
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from fedapps.cli import main
from fedapps.compare import progress, workers
from fedapps.compare import sweep as sweep_
from fedapps.compare.grid import Point
from fedapps.core.errors import RunError
from fedapps.core.files import held
from tests.support.clock import passing, until

pytestmark = pytest.mark.slow

TINY = (
    "num-clients=4 num-rounds=2 model=lenet5 local-epochs=1 evaluate-every=1 finetune-epochs=1 "
    "fraction-train=1.0 lr=0.05 device=cpu"
)
GRID = ["strategy=fedavg,fedper", "--seeds", "0-1"]
METHODS, SEEDS = ("fedavg", "fedper"), (0, 1)


@pytest.fixture(scope="module")
def own(tiny_npz, tmp_path_factory):
    """The options that every sweep has."""
    return ["-c", tiny_npz, "-c", f"{TINY} data-root={tmp_path_factory.mktemp('data')}"]


@pytest.fixture(scope="module")
def whole(sweep, own, tmp_path_factory):
    """(folder, what it said, its journal) of a sweep that nothing has disturbed."""
    folder = tmp_path_factory.mktemp("whole") / "out"
    journal = folder.parent / "journal"
    said = sweep([*GRID, *own, "--output", folder], journal, meet=True, drawn=True)
    return folder, said, journal.read_text().splitlines()


def runs_in(folder):
    """Return the run directories there by method and seed."""
    found = {}
    for path in folder.glob("*/config.toml"):
        settings = tomllib.loads(path.read_text("utf-8"))
        key = settings["strategy"], settings["seed"]
        assert key not in found
        found[key] = path.parent
    return found


def stored(folder):
    """Return the files of a run: their bytes, and when they were written."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def untimed(table):
    """Return a table without seconds and folders."""
    return table.drop(columns=[name for name in table if "seconds" in name or name == "run"])


def wait_until_free(folder):
    """Wait for the workers of a killed sweep: as forks of it they hold its folder until the end."""

    def is_free():
        with held(folder) as free:
            return free

    until(is_free, f"{folder} is still held")


def begun(lines):
    """Count how often each run has begun."""
    return Counter(line.split()[1] for line in lines if line.startswith("begin "))


def test_a_grid_with_seeds_makes_each_combination_once_two_at_a_time(whole):
    folder, said, journal = whole
    assert (said["status"], said["err"]) == (0, "")
    made = runs_in(folder)
    assert made.keys() == set(product(METHODS, SEEDS))
    assert begun(journal) == Counter(path.name for path in made.values())
    at_once, most = 0, 0
    for line in journal:
        at_once += 1 if line.startswith("begin ") else -1
        most = max(most, at_once)
    assert (at_once, most) == (0, 2)
    lines = said["out"].splitlines()
    assert lines[0] == f"4 runs in {folder}"
    assert [line.split()[0] for line in lines[1:5]] == ["1/4", "2/4", "3/4", "4/4"]
    assert not [*(folder / "logs").glob("*.txt")]


def test_a_sweep_ends_in_the_comparison_of_its_runs(whole):
    folder, said, _ = whole
    compared = said.compared(folder)
    last = {
        key: pd.read_csv(path / "rounds.csv").iloc[-1]["accuracy_personalized"]
        for key, path in runs_in(folder).items()
    }
    head = compared.cells("accuracies on test samples")
    for letter, method in zip("AB", METHODS, strict=True):
        values = pd.Series([last[method, seed] for seed in SEEDS])
        row = compared.groups.loc[letter]
        assert (row["strategy"], row["n"], row["seeds"]) == (method, 2, "0-1")
        assert row["accuracy_personalized_mean"] == pytest.approx(values.mean(), abs=1e-12)
        assert row["accuracy_personalized_std"] == pytest.approx(values.std(), abs=1e-12)
        assert head[letter][-1] == f"{100 * values.mean():.2f} ± {100 * values.std():.2f}"
    assert (folder / "comparison" / "curves.png").stat().st_size > 1000


def test_a_killed_sweep_goes_on_and_ends_as_if_it_had_not_been(whole, sweep, own, tmp_path):
    """It is killed when one run has finished while another stands between its two rounds."""
    folder, journal = tmp_path / "out", tmp_path / "journal"
    words = [*GRID, *own, "--output", folder]
    killed = sweep(words, journal, hold="fedper", until="1/4 ")
    assert killed["status"] == -9
    before = runs_in(folder)
    done = {key: path for key, path in before.items() if (path / "summary.json").exists()}
    (broken,) = (path for key, path in before.items() if key == ("fedper", 0))
    assert ("fedavg", 0) in done and ("fedper", 0) not in done
    assert len(pd.read_csv(broken / "rounds.csv")) == 1
    files = {key: stored(path) for key, path in done.items()}

    wait_until_free(folder / "logs")
    first = len(journal.read_text().splitlines())
    again = sweep(words, journal)
    assert (again["status"], again["err"]) == (0, "")
    counted = f", {len(done)} of them done before"
    assert again["out"].splitlines()[0] == f"4 runs in {folder}{counted}"
    after = runs_in(folder)
    assert after.keys() == set(product(METHODS, SEEDS))
    assert all(after[key] == path for key, path in before.items())
    assert {key: stored(path) for key, path in done.items()} == files
    rerun = begun(journal.read_text().splitlines()[first:])
    assert rerun == Counter(path.name for key, path in after.items() if key not in done)
    log = (broken / "log.txt").read_text("utf-8")
    assert [log.count(f" round {number}/2 ") for number in (1, 2)] == [1, 1]

    undisturbed, said, _ = whole
    ours, theirs = again.compared(folder), said.compared(undisturbed)
    for name in ("runs", "groups"):
        pd.testing.assert_frame_equal(
            untimed(getattr(ours, name)), untimed(getattr(theirs, name)), check_exact=True
        )
    for heading in ("accuracies on test samples", "personalized accuracy, difference"):
        assert ours.cells(heading) == theirs.cells(heading)


def test_a_sweep_saves_its_runs_if_all_its_processes_are_told_to_end(sweep, own, tmp_path):
    """As a batch system does at the end of a job's time; the sweep then tells its workers again."""
    folder = tmp_path / "out"
    words = [*GRID, *own, "--output", folder]
    ended = sweep(
        words, tmp_path / "journal", hold="fed", until="4 ", number=signal.SIGTERM, meet=True
    )
    assert ended["status"] == 130
    made = runs_in(folder)
    assert len(made) == 2
    for path in made.values():
        summary = json.loads((path / "summary.json").read_text("utf-8"))
        assert (summary["finished"], summary["stopped"]) == (False, "SIGTERM")


def test_parts_make_their_runs_and_the_whole_compares_them(whole, sweep, own, tmp_path):
    """As on two machines: each part makes its runs alone, in a folder that they share."""
    folder, journal = tmp_path / "out", tmp_path / "journal"
    words = [*GRID, *own, "--output", folder]
    first = sweep([*words, "--part", "1/2"], journal)
    assert (first["status"], first["err"]) == (0, "")
    assert runs_in(folder).keys() == {("fedavg", 0), ("fedper", 0)}
    lines = first["out"].splitlines()
    assert lines[0] == f"2 runs in {folder}"
    told = "runs of the whole sweep are finished; without --part, the same command"
    assert lines[-1] == f"2 of 4 {told} runs the others, and compares all"

    logs = folder / "logs"
    with held(logs, shared=True), held(logs / "part-1-of-2"):  # it goes on
        refused = sweep(words, "/dev/null")
        again = sweep([*words, "--part", "1/2"], "/dev/null")
        other = sweep([*words, "--part", "2/2"], journal)
    with held(logs):  # as the whole sweep does
        late = sweep([*words, "--part", "2/2"], "/dev/null")
    for one in (refused, again, late):
        assert one["status"] == 1 and "another sweep works there" in one["err"]
    assert other["status"] == 0 and other["out"].splitlines()[-1] == f"4 of 4 {told} compares them"
    assert not (folder / "comparison").exists()

    last = sweep(words, tmp_path / "none")
    assert last["status"] == 0 and not (tmp_path / "none").exists()
    made = last.compared(folder).runs, whole[1].compared(whole[0]).runs
    pd.testing.assert_frame_equal(*map(untimed, made))


@pytest.mark.parametrize(("combinations", "seeds"), [(2, 5), (3, 5), (4, 3), (1, 7), (6, 1)])
@pytest.mark.parametrize("parts", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("seed_first", [True, False])
def test_parts_share_out_all_runs_and_those_of_each_combination(
    combinations, seeds, parts, seed_first
):
    """Else machines of another speed, or one that fails, would concern one method alone."""
    grid = [
        Point(f"{lr} {seed}", {"lr": lr, "seed": seed})
        for lr, seed in product(range(combinations), range(seeds))
    ]
    if seed_first:  # --seeds; else seed is the last axis
        grid.sort(key=lambda point: point.flat["seed"])
    mine = [sweep_.Sweep(Path(), grid, 1, (k + 1, parts)).mine for k in range(parts)]
    assert sorted(point.name for part in mine for point in part) == sorted(p.name for p in grid)
    assert all(part == sorted(part, key=grid.index) for part in mine)
    each = [[p for p in grid if p.flat["lr"] == lr] for lr in range(combinations)]
    for all_or_one in (grid, *each):
        counts = [sum(point in all_or_one for point in part) for part in mine]
        assert max(counts) - min(counts) <= 1


def test_a_part_says_which_of_its_runs_failed(tmp_path, monkeypatch, capsys):
    def run(own):
        own.failed = {"lr=0.1 seed=0": "no memory"}

    monkeypatch.setattr(sweep_.Sweep, "run", run)
    words = ["lr=0.1,0.2,0.3", "--part", "1/2", "--output", str(tmp_path)]
    assert main(["sweep", *words]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "0 of 3 runs of the whole sweep are finished, 1 of this part failed; without --part, the"
        " same command runs the others, and compares all",
        "failed: lr=0.1 seed=0: no memory",
    ]


def test_a_part_that_is_none_is_refused(refused):
    for part in ("0/2", "3/2", "2", "a/b", "1/2/3"):
        line = refused("sweep", "lr=0.1,0.2", "--part", part)
        assert line == f"--part {part}: must be K/N with K from 1 to N, such as 1/4"
    line = refused("sweep", "lr=0.1,0.2", "--part", "3/4")
    assert line == "--part 3/4: the sweep has only 2 runs"


def test_a_finished_sweep_runs_nothing_again(whole, sweep, own, tmp_path):
    folder, said, _ = whole
    before = {key: stored(path) for key, path in runs_in(folder).items()}
    words = [*GRID, *own, "--output", folder, "--format", "svg"]
    again = sweep(words, tmp_path / "journal", drawn=True)
    assert again["status"] == 0 and not (tmp_path / "journal").exists()
    assert again["out"].splitlines()[0] == f"4 runs in {folder}, 4 of them done before"
    assert {key: stored(path) for key, path in runs_in(folder).items()} == before
    pd.testing.assert_frame_equal(again.compared(folder).runs, said.compared(folder).runs)
    assert "<svg" in (folder / "comparison" / "curves.svg").read_text("utf-8")


def test_the_comparison_of_another_sweep_in_the_same_folder_stays(whole, sweep, own, tmp_path):
    folder, _, _ = whole
    before = stored(folder / "comparison")
    words = ["strategy=fedper", "--seeds", "0-1", *own, "--output", folder]
    for _ in range(2):  # the second time it is its own
        assert sweep(words, tmp_path / "journal", drawn=True)["status"] == 0
        assert stored(folder / "comparison") == before
        table = pd.read_csv(folder / "comparison-2" / "runs.csv")
        assert {Path(run) for run in table["run"]} == {
            path for (method, _), path in runs_in(folder).items() if method == "fedper"
        }
    assert not (folder / "comparison-3").exists()


@pytest.fixture
def told(tmp_path, monkeypatch, capsys):
    """Two runs, `a` and `b`, of ten rounds, which begin at second 0; `put` writes a table."""
    clock = passing(monkeypatch, progress)
    todo = [Point(name, {"num-rounds": 10, "seed": name}) for name in ("a", "b")]

    def put(name, rounds, head="round", value="1"):
        (tmp_path / name).mkdir(exist_ok=True)
        table = tmp_path / name / "rounds.csv"
        table.write_text(f"{head}\n" + f"{value}\n" * rounds)
        return table

    shown = progress.Progress(tmp_path, todo, started=0.0)
    labels = [point.label for point in todo]
    lines = lambda: capsys.readouterr().out.splitlines()  # noqa: E731
    return SimpleNamespace(clock=clock, todo=todo, put=put, shown=shown, labels=labels, lines=lines)


def test_without_a_terminal_a_line_a_minute_says_how_far_runs_are(told):
    with told.shown as shown:
        shown.begin(3)
        told.lines()
        for seconds, rounds in ((59, 1), (60, 2), (119, 3), (120, 4)):
            told.clock.now = seconds
            told.put("a", rounds)
            shown.look()
    a, lines = told.labels[0], told.lines()
    assert lines == [f"1/3 done, {a} in round 3, left 9:00", f"1/3 done, {a} in round 5, left 8:00"]


def test_rounds_before_an_interruption_do_not_shorten_the_rest(told):
    told.put("a", 4)
    with told.shown as shown:
        shown.begin(2)
        told.clock.now = 60
        told.put("a", 6)
        shown.look()
    _, line = told.lines()
    assert line.endswith(" in round 7, left 7:00"), "2 rounds took a minute, 14 are left"


def test_how_far_a_run_came_is_not_read_again_once_it_has_ended(told):
    with told.shown as shown:
        shown.begin(2)
        table = told.put("a", 10, "accuracy_personalized", "0.5")
        told.put("b", 2, "accuracy_personalized", "0.5")
        shown.end(told.todo[0], "")
        table.unlink()
        told.clock.now = 60
        shown.look()
    a, b = told.labels
    assert told.lines()[1:] == [
        f"1/2 {a}: personalized 50.00 %, left 0:00",
        f"1/2 done, {b} in round 3, left 0:40",
    ]


def test_the_folder_of_a_sweep_is_refused_to_another_one_and_to_other_settings(whole, sweep, own):
    folder, _, _ = whole
    with held(folder / "logs"):
        other = sweep([*GRID, *own, "--output", folder], "/dev/null")
    assert (other["status"], other["out"]) == (1, "")
    told = "another sweep works there; wait for it or use another --output"
    assert other["err"] == f"error: {folder}: {told}\n"

    changed = runs_in(folder)["fedper", 1] / "config.toml"
    settings = changed.read_text("utf-8")
    changed.write_text(settings.replace("lr = 0.05", "lr = 0.06"))
    other = sweep([*GRID, *own, "--output", folder], "/dev/null")
    changed.write_text(settings)
    assert (other["status"], other["out"]) == (1, "")
    told = "has a run with other settings: lr is 0.06 there and 0.05 here; use another --output"
    assert other["err"] == f"error: {changed.parent} {told}\n"


@pytest.mark.parametrize(("what", "told"), [
    ("data", "the samples have"),
    ("code", "the method's code has"),
    ("own-model", "the model's code or initial values have"),
])  # fmt: skip
def test_a_finished_run_of_other_data_or_code_is_not_taken(
    what, told, serial_run, flat_config, tmp_path, monkeypatch
):
    """It would be compared with runs that were made with what is there now."""
    monkeypatch.setattr(workers, "SPAWN", None)  # nothing is run
    model = tmp_path / "mine.py"
    build = "Sequential(nn.Flatten(), nn.Linear(64, 5), nn.Linear(5, *outputs.shape))"
    model.write_text(f"from torch import nn\n\ndef make(inputs, outputs):\n    return nn.{build}\n")
    keys = f'model="{model}"'
    point = Point("mine", flat_config(keys))
    folder = serial_run(keys, 'run-name="mine"')
    sweep_.Sweep(folder.parent, [point], jobs=1).run()

    about = folder / "run.json"
    then = json.loads(about.read_text("utf-8"))
    then["fingerprints"] |= {what: "another"} | ({"sketch": ""} if what == "own-model" else {})
    about.write_text(json.dumps(then))
    line = f"^{folder}: {told} changed since this run; put back what was there, or use another --o"
    with pytest.raises(RunError, match=line):
        sweep_.Sweep(folder.parent, [point], jobs=1).run()


def test_a_finished_run_whose_data_are_gone_counts_as_it_is(
    serial_run, flat_config, make_npz, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(workers, "SPAWN", None)
    data = make_npz(tmp_path / "gone.npz")
    keys = f'dataset="{data}"'
    folder, point = serial_run(keys, 'run-name="mine"'), Point("mine", flat_config(keys))
    Path(data).unlink()
    sweep_.Sweep(folder.parent, [point], jobs=1).run()
    line = f"warning: {folder}: counts as it is, as samples and code cannot be checked: {data}: "
    assert line in capsys.readouterr().out


def test_a_run_of_another_process_is_not_deleted(tmp_path, monkeypatch):
    """Where it has no checkpoint yet, and the other process is no sweep, or on another machine."""

    def run(*_, **__):
        raise AssertionError("the other run goes on")

    monkeypatch.setattr(workers.Worker, "run", run)
    point = Point("a", {"num-rounds": 1, "seed": 0})
    mine = tmp_path / point.name / ".theirs"
    mine.parent.mkdir()
    mine.touch()
    own = sweep_.Sweep(tmp_path, [point], jobs=1)
    with held(mine.parent):
        own.run()
    assert "this run is going on in another process" in own.failed[point.label]
    assert mine.exists()


def test_a_run_that_another_sweep_is_making_is_left_to_it(tmp_path, monkeypatch):
    """A part of another number, or of another grid; a run that has just begun has no folder yet."""
    point, told = Point("a", {"num-rounds": 1, "seed": 0}), []

    def run(*_, **__):
        monkeypatch.setattr(workers.Worker, "run", None)
        other = sweep_.Sweep(tmp_path, [point], jobs=1, part=(1, 3))
        other.run()
        told.append(other.failed)

    monkeypatch.setattr(workers.Worker, "run", run)
    own = sweep_.Sweep(tmp_path, [point], jobs=1, part=(1, 2))
    own.run()
    line = "another sweep is making this run; once it is done, start the same command again"
    assert (told, own.failed) == ([{point.label: line}], {})


def test_a_point_that_fails_costs_that_point_only(sweep, own, tmp_path):
    """One run dies with its worker, one cannot be made, and the last one is as it should be."""
    folder, journal = tmp_path / "out", tmp_path / "journal"
    words = ["num-clients=5,1000,4", *own, "--output", folder, "--jobs", 1]
    said = sweep(words, journal, die="num-clients=5")
    assert (said["status"], said["err"]) == (1, "")
    lines = said["out"].splitlines()
    assert [line[:3] for line in lines[1:4]] == ["1/3", "2/3", "3/3"]
    assert [": failed: " in line for line in lines[1:4]] == [True, True, False]
    died, refused = (line for line in lines if line.startswith("failed: "))
    assert died.startswith(
        "failed: num-clients=5 seed=0: the worker died (exit -9, out of memory?); see "
    )
    assert refused.startswith("failed: num-clients=1000 seed=0: ")
    for line in (died, refused):
        assert (folder / "logs" / line.rpartition("/")[2]).is_file()
    assert sum(begun(journal.read_text().splitlines()).values()) == 3

    journal.unlink()
    again = sweep(words, journal)  # nobody dies: only what cannot be is left
    assert again["status"] == 1 and sum(begun(journal.read_text().splitlines()).values()) == 2
    assert len([line for line in again["out"].splitlines() if line.startswith("failed: ")]) == 1
    compared = again.compared(folder)
    assert sorted(compared.groups["num-clients"]) == [4, 5]
    assert all(pd.read_csv(path / "rounds.csv")["round"].tolist() == [1, 2]
               for path in compared.runs["run"].map(type(folder)))  # fmt: skip


def test_settings_are_chosen_on_validation_samples(sweep, own, tmp_path):
    folder = tmp_path / "out"
    words = ["lr=0.2,0.00001", "--validation", 0.25, *own, "--output", folder]
    said = sweep(words, tmp_path / "journal")
    assert (said["status"], said["err"]) == (0, "")
    compared = said.compared(folder)
    assert compared.cells("accuracies on validation samples").keys() == {"", "A", "B"}
    assert set(compared.runs["evaluate-on"]) == {"validation"}
    for path in compared.runs["run"]:
        settings = tomllib.loads((folder / path / "config.toml").read_text("utf-8"))
        assert (settings["evaluate-on"], settings["validation-fraction"]) == ("validation", 0.25)
        clients = pd.read_csv(folder / path / "clients.csv")
        held = clients[clients["round"] == 2]
        trained = pd.read_csv(folder / path / "samples.csv").groupby("client")["num_train"].sum()
        assert (held["num_test"].to_numpy() < trained.to_numpy()).all()
    means = compared.groups["accuracy_personalized_mean"]
    best, lr = means.idxmax(), compared.groups["lr"][means.idxmax()]
    (line,) = (line for line in said["out"].splitlines() if line.startswith("best "))
    told, _, command = line.partition(" once on test samples: ")
    assert told == f"best on validation samples: {best}; score it"
    assert shlex.split(command) == ["fedapps", "sweep", f"lr={lr}", *own]
    again = sweep([*words, "-c", "metric=macro_f1"], tmp_path / "again")
    assert not (tmp_path / "again").exists()  # nothing runs again
    by = again.compared(folder).groups["macro_f1_personalized_mean"]
    assert f"best on validation samples: {by.idxmax()};" in again["out"]
