"""Runs without an end, without scores or of other rounds, folders that are no runs; pictures."""

import errno
import json
import os
import shlex
import subprocess
import sys
from argparse import Namespace
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.image import imread

import fedapps
from fedapps import cli
from fedapps.cli import sweep
from fedapps.compare import curves
from fedapps.compare.comparison import compared
from fedapps.compare.groups import Group
from fedapps.compare.runs import read
from fedapps.compare.sweep import Sweep
from fedapps.core import config
from fedapps.core.options import parse_options
from fedapps.drawing import pictures
from fedapps.report.columns import SPREAD
from tests.support import ROOT

LONG = [(0.1, 0.2), (0.2, 0.3), (0.3, 0.4)]


def test_folders_that_are_no_runs_are_named(made, refused, tmp_path):
    run, empty, file = made("a"), tmp_path / "empty", tmp_path / "file"
    empty.mkdir()
    file.write_text("x")
    told = "is not a run directory: config.toml:"
    missing = tmp_path / "missing"
    none = f"{missing} is not a run directory: there is no such folder"
    assert refused("compare", run, missing) == none
    assert refused("compare", run, empty) == f"{empty} {told} No such file or directory"
    assert refused("compare", file, run) == f"{file} {told} Not a directory"


def test_a_config_of_another_program_makes_no_folder_a_run(made, compare, refused):
    """Beside runs, in the folder that has them, or alone."""
    run, other = made("a"), made("b", "lr=0.5")
    for place in (run.parent / "other", run.parent):
        place.mkdir(exist_ok=True)
        (place / "config.toml").write_text('[superlink]\naddress = "127.0.0.1"\n')
    assert compare(run.parent).out == compare(run, other).out
    alone = run.parent / "other"
    assert refused("compare", run, alone).startswith(f"{alone} is not a run directory: rounds.csv")


def test_a_folder_that_this_user_may_not_read(made, compare, refused, monkeypatch):
    """Among runs, such as the `lost+found` of a disk, it is none; alone, it is refused."""
    run, other, is_file = made("a"), made("b", "lr=0.5"), Path.is_file
    locked = run.parent / "lost+found"
    locked.mkdir()

    def denied(path):
        if locked in path.parents:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return is_file(path)

    monkeypatch.setattr(Path, "is_file", denied)  # the tests can be those of root, who may
    assert compare(run.parent).out == compare(run, other).out
    assert refused("compare", run, locked) == f"{locked}: cannot be read (Permission denied)"


@pytest.mark.parametrize(("name", "text"), [
    ("rounds.csv", ""), ("rounds.csv", None),
    ("summary.json", "{"), ("config.toml", "lr = "), ("config.toml", "\x00"),
])  # fmt: skip
def test_a_damaged_run_is_named(made, refused, name, text):
    run, other = made("a"), made("b", "lr=0.5")
    (run / name).unlink()
    if text is not None:
        (run / name).write_text(text)
    told = refused("compare", other, run)
    begins = f"cannot read {run / name}: ", f"{run / name}: cannot be read ("
    assert told.startswith((f"{run} is not a run directory: ", *begins))
    assert (f"(fedapps serial --resume {run})" in told) == (name == "summary.json")


@pytest.mark.parametrize(("column", "words"), [
    ("macro_f1_personalized", ["--metric", "macro_f1"]), ("phase", []), ("seconds", []),
])  # fmt: skip
def test_a_column_that_a_table_does_not_have_is_named(made, refused, column, words):
    run, other = (made(name, macro_f1_initial=0.1, macro_f1_personalized=0.2) for name in "ab")
    table = run / "rounds.csv"
    pd.read_csv(table).drop(columns=column).to_csv(table, index=False)
    told = f"{run}: rounds.csv has no column {column}; it is of an earlier version, or of another"
    assert refused("compare", other, run, *words) == (
        f"{told} task: leave it out, or name another metric"
    )


def test_a_run_of_an_earlier_version_without_the_spread_has_the_metric(made, compare):
    folders = [made(name, macro_f1_initial=0.1, macro_f1_personalized=0.2) for name in "ab"]
    before = compare(*folders, "--metric", "macro_f1").out
    table = folders[0] / "rounds.csv"
    pd.read_csv(table).drop(columns=[*SPREAD]).to_csv(table, index=False)
    assert compare(*folders, "--metric", "macro_f1").out == before


def test_one_run_is_nothing_to_compare(made, refused):
    run = made("a")
    line = "nothing to compare: give at least two run directories"
    assert refused("compare", run) == refused("compare", run, run.parent) == line


def test_a_folder_that_cannot_be_written_is_one_line(made, tmp_path, capsys):
    folder = made("a").parent
    made("b", "lr=0.5")
    (tmp_path / "file").write_text("x")
    assert cli.main(["compare", str(folder), "--output", str(tmp_path / "file" / "in")]) == 1
    line = f"error: cannot write {tmp_path}/file/in: Not a directory\n"
    assert capsys.readouterr().err == line


def test_of_an_unfinished_run_the_last_scored_round_counts_and_it_is_told(made, compare):
    folders = [
        made("a", scores=LONG),
        made("b", "lr=0.5 num-rounds=9", scores=[*LONG[:2], None], finished=False),
    ]
    compared = compare(*folders)
    printed = compared.cells("accuracies on test samples")
    assert printed["A"][-3:] == ["1", "30.00", "40.00"]
    assert printed["B"][-3:] == ["1*", "20.00", "30.00"]
    assert "* B has not finished: figures of round 2 of 9\n" in compared.out
    assert "difference seed by seed" not in compared.out  # not equally long
    assert "not equally long: 3 rounds (A), 2 rounds (B)\n" in compared.out
    runs = compared.runs.set_index("group")
    assert runs["finished"].to_dict() == {"A": True, "B": False}
    assert runs["round"].to_dict() == {"A": 3, "B": 2}
    rounds = pd.read_csv(folders[1] / "rounds.csv")
    for cost in ("bytes_up", "seconds"):
        assert runs.loc["B", cost] == rounds[cost][:2].sum()


def test_finished_runs_count_without_those_of_their_group_that_are_not(made, compare):
    folder = made("a", scores=LONG).parent
    made("b", "seed=1", scores=LONG, finished=False)
    made("c", scores=[*LONG[:2], (0.9, 0.9)])  # settings and seed of the first
    made("d", "lr=0.5", scores=LONG)
    compared = compare(folder)
    assert compared.cells("accuracies on test samples")["A"][-3:] == ["1", "30.00", "40.00"]
    assert "A is without b: not finished\n" in compared.out
    assert "A is without c: another run has that seed\n" in compared.out
    counts = {run.rpartition("/")[2]: c for run, c in compared.runs[["run", "counts"]].to_numpy()}
    assert counts == {"a": True, "b": False, "c": False, "d": True}


def test_unfinished_runs_of_a_group_are_looked_at_after_a_round_that_all_have_scored(made, compare):
    """In one of them an evaluation failed, so the earlier of their last rounds is not common."""
    folders = [
        made("a", "seed=0 num-rounds=9", scores=[*LONG[:2], None, LONG[2]], finished=False),
        made("b", "seed=1 num-rounds=9", scores=[LONG[0], *LONG[:2]], finished=False),
        made(
            "c", "seed=2 num-rounds=9", scores=[None, LONG[2], *[None] * 2, LONG[0]], finished=False
        ),
        made("d", "lr=0.5", scores=LONG),
    ]
    row = compare(*folders).groups.loc["A"]
    assert (row["n"], str(row["round"])) == (3, "2")
    values = pd.Series([0.3, 0.2, 0.4])
    assert row["accuracy_personalized_mean"] == pytest.approx(values.mean())
    assert row["accuracy_personalized_std"] == pytest.approx(values.std())


def test_unfinished_runs_without_a_common_round_are_the_furthest_alone(made, compare):
    """Of two with the same seed, one counts."""
    folders = [
        made("a", "num-rounds=9", scores=[LONG[0], None], finished=False),
        made("b", "seed=1 num-rounds=9", scores=[None, LONG[1]], finished=False),
        made("c", "seed=1 num-rounds=9", scores=[None, LONG[1]], finished=False),
        made("d", "lr=0.5", scores=LONG),
    ]
    compared = compare(*folders)
    assert compared.groups.loc["A", ["n", "seeds", "round"]].tolist() == [1, 1, 2]
    assert "A is without a: no scored round in common\n" in compared.out
    assert "A is without c: another run has that seed\n" in compared.out


@pytest.mark.parametrize("finished", [False, True])
def test_a_run_without_scores_is_told_and_not_there(made, compare, refused, finished):
    bare = made("bare", scores=[None, None], finished=finished)
    assert refused("compare", bare, bare.parent / "bare", made("none", "lr=0.5", scores=[])) == (
        "nothing to compare: no run has scored a round yet"
    )
    compared = compare(bare, made("a"))
    why = "none of its rounds was scored" if finished else "it has scored no round yet"
    assert f"bare is left out: {why}\n" in compared.out
    assert compared.groups.index.tolist() == ["A"] and len(compared.runs) == 1


def test_a_sweep_without_scores_says_so_and_what_failed(made, monkeypatch, capsys, tmp_path):
    """Such as of the R2 of clients with a single sample."""
    runs = [made(f"a{seed}", f"seed={seed}", scores=[None]) for seed in (0, 1)]
    monkeypatch.setattr(Sweep, "run", lambda own: own.failed.update({"lr=0.1": "no memory"}))
    monkeypatch.setattr(Sweep, "finished", runs)
    capsys.readouterr()
    assert cli.main(["sweep", "lr=0.1,0.2", "--output", str(tmp_path)]) == 1
    captured = capsys.readouterr()
    assert captured.out == "failed: lr=0.1: no memory\n"
    assert captured.err == "error: nothing to compare: no run has scored a round yet\n"


def test_a_line_that_is_being_written_does_not_count(made, compare):
    folders = [made("a", scores=LONG, finished=False), made("b", "lr=0.5", scores=LONG)]
    with (folders[0] / "rounds.csv").open("a") as file:
        file.write("4,train,5,0,0.2,0.3")
    assert compare(*folders).runs["round"].tolist() == [3, 3]


def test_accuracies_that_a_run_lacks_are_empty_cells(made, compare):
    folders = [made("a", accuracy_global=0.75), made("b", "lr=0.5")]
    compared = compare(*folders)
    printed = compared.cells("accuracies on test samples")
    assert printed[""][-1] == "global %"
    assert printed["A"][-3:] == ["20.00", "40.00", "75.00"]
    assert printed["B"][-2:] == ["20.00", "40.00"]
    assert compared.groups["accuracy_global_mean"].isna().to_dict() == {"A": False, "B": True}


def test_runs_made_with_other_versions_are_told(made, compare):
    folders = [made("a"), made("b", "lr=0.5")]
    path = folders[1] / "summary.json"
    summary = json.loads(path.read_text("utf-8"))
    now, summary["versions"]["torch"] = summary["versions"]["torch"], "1.0"
    path.write_text(json.dumps(summary))
    said = compare(*folders).out
    assert f"made with different versions of torch: 1.0, {now}\n" in said
    assert said.count("different versions") == 1


def test_runs_made_on_other_processors_are_told(made, compare):
    """They round differently. Earlier versions did not note on which."""
    folders = [made(name, f"seed={seed}") for seed, name in enumerate("abcd")]
    for folder, cpu in zip(folders, ("Epyc, AVX2", "Xeon, AVX512", "Epyc, AVX2", ""), strict=True):
        summary = dict(read(folder).summary)
        summary.pop("cpu", None)
        summary |= {"cpu": cpu} if cpu else {}
        (folder / "summary.json").write_text(json.dumps(summary))
    told = "made on different types of processors: Epyc, AVX2; Xeon, AVX512\n"
    assert told in compare(*folders).out
    assert "processors" not in compare(folders[0], *folders[2:]).out


def test_a_reader_that_has_read_enough_leaves_the_files_and_no_traceback(made, tmp_path):
    """As `... | head` does; that of the papers' tables has no files."""
    words = ["compare", made("a"), made("b", "lr=0.5"), "--output", tmp_path / "files"]
    for command in (words, ["experiments", "config", "fedcmd-mixed", "fc2"]):
        reader, writer = os.pipe()
        os.close(reader)
        process = [sys.executable, "-m", "fedapps", *map(str, command)]
        done = subprocess.run(process, stdout=writer, stderr=subprocess.PIPE, cwd=ROOT)
        os.close(writer)
        assert done.stderr == b""
    there = {path.name for path in (tmp_path / "files").iterdir()}
    assert there == {"runs.csv", "groups.csv", "curves.png"}


@pytest.mark.parametrize(
    ("kind", "begins"), [("png", b"\x89PNG\r\n"), ("svg", b"<?xml"), ("pdf", b"%PDF-")]
)
def test_the_curves_are_written_in_each_format(made, compare, tmp_path, kind, begins):
    """Groups have different evaluated rounds, one of them a single one."""
    folder = made("a", scores=LONG).parent
    made("b", "seed=1", scores=LONG)
    made("c", "evaluate-every=2", scores=[None, LONG[1], LONG[2]])
    made("d", "evaluate-every=0", scores=[None, None, LONG[2]])
    compared = compare(folder, "--format", kind, drawn=True)
    picture = tmp_path / "comparison" / f"curves.{kind}"
    named = [f"{tmp_path}/comparison/{name}" for name in ("runs.csv", "groups.csv", picture.name)]
    assert compared.out.splitlines()[-3:] == named
    assert picture.read_bytes().startswith(begins) and picture.stat().st_size > 5000
    if kind == "png":
        assert imread(picture)[..., :3].std() > 0.05  # something is drawn there
    if kind == "svg":
        text = picture.read_text("utf-8")
        assert all(f"<!-- {letter}: " in text for letter in "ABC")


def test_a_band_is_the_standard_deviation_about_the_mean_and_ends_at_100_percent(made):
    accuracies = np.array([[0.2, 0.9], [0.4, 1.0]])  # of two seeds
    folders = [
        made(f"a{seed}", f"seed={seed}", scores=[(0.1, value) for value in own])
        for seed, own in enumerate(accuracies)
    ]
    figure = curves.draw(compared([*map(read, [*folders, made("b", "lr=0.5", scores=LONG)])]))
    (band,) = figure.axes[1].collections
    points = band.get_paths()[0].vertices
    means, stds = 100 * accuracies.mean(0), 100 * accuracies.std(0, ddof=1)
    for round_, mean, std in zip((1, 2), means, stds, strict=True):
        ends = points[points[:, 0] == round_, 1]
        assert (ends.min(), ends.max()) == pytest.approx((mean - std, min(mean + std, 100)))


def test_both_panels_show_all_curves_and_bands_on_one_axis(made):
    """Personalized accuracies are above all initial ones here, and one band ends above 100 %."""
    values = {0: [(0.1, 0.7), (0.2, 1.0)], 1: [(0.1, 0.6), (0.3, 0.9)]}
    runs = [read(made(f"a{seed}", f"seed={seed}", scores=own)) for seed, own in values.items()]
    figure = curves.draw(compared([*runs, read(made("b", "lr=0.5", scores=[(0.2, 0.8)] * 2))]))
    drawn = [line.get_ydata() for axes in figure.axes for line in axes.lines]
    for low, high in (axes.get_ylim() for axes in figure.axes):
        assert 0 <= low < np.min(drawn) and np.max(drawn) < high == pytest.approx(101)


def test_of_runs_that_personalize_only_at_the_end_the_last_scores_are_points(made):
    """With `evaluate-rounds` there are initial scores of many rounds, and one personalized."""
    first, last = [(0.1, None), (0.2, None)], [(0.3, 0.5), (0.4, 0.8)]
    runs = [
        made(f"lr{lr}-{seed}", f"lr={lr}", f"seed={seed}", scores=[*first, last[seed]])
        for lr, seed in product((0.1, 0.2), (0, 1))
    ]
    figure = curves.draw(compared([*map(read, runs)]))
    for axes, scores in zip(figure.axes, np.transpose(last), strict=True):
        mean, std = 100 * scores.mean(), 100 * scores.std(ddof=1)
        told = [text.get_text() for text in axes.texts]
        assert told == [f"{mean:.1f} ± {std:.1f}"] * 2
        for place, bar in enumerate(axes.collections):
            (ends,) = bar.get_segments()
            assert ends == pytest.approx(np.array([[mean - std, place], [mean + std, place]]))


def test_where_a_curve_ends_before_the_last_seed_it_is_told(made):
    """With `patience`, each seed has a last round of its own; those of B have the same."""
    ends = {"fedavg": (2, 3), "fedper": (3, 3)}
    runs = [
        read(made(f"{method}{seed}", f"seed={seed}", f'strategy="{method}" num-rounds=9',
                  scores=LONG[:end]))
        for method, those in ends.items()
        for seed, end in enumerate(those)
    ]  # fmt: skip
    figure = curves.draw(compared(runs))
    assert [line.get_xdata().tolist() for line in figure.axes[0].lines] == [[1, 2], [1, 2, 3]]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "A: fedavg (n = 2 to round 2 of 3)",
        "B: fedper (n = 2)",
    ]


@pytest.mark.parametrize("panels", [1, 2])
def test_a_long_legend_with_the_end_of_a_curve_is_within_its_picture(panels, made):
    scores = [(0.1, 0.1 * panels)] * 40
    runs = [
        read(made(f"{lr}-{seed}", f"lr={lr} weight-decay={lr / 100} seed={seed} num-rounds=100",
                  f'lr-schedule="{schedule}" local-epochs={epochs}', scores=scores[:end]))
        for lr, schedule, epochs in ((0.01, "cosine", 1), (0.05, "constant", 5))
        for seed, end in enumerate((12, 40))
    ]  # fmt: skip
    with pictures.styled():
        figure = curves.draw(compared(runs))
        figure.draw_without_rendering()
        box = figure.legends[0].get_window_extent()
    assert len(figure.axes) == panels and 0 <= box.x0 < box.x1 <= figure.bbox.x1
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert all(text.endswith("… (n = 2 to round 12 of 40)") for text in texts)


@pytest.mark.parametrize("rounds", [1, 2])
def test_dollars_in_a_setting_are_no_formula(made, rounds, tmp_path):
    """Also in a picture that is saved in another style."""
    runs = [
        made(f"{place}", f"dataset=/x/t.csv target-column={column}", scores=LONG[:rounds])
        for place, column in enumerate(('"rent_$,cost_$"', "rent"))
    ]
    figure = fedapps.compare(runs).plot()
    figure.savefig(tmp_path / "x.svg", metadata={"Date": None})
    assert "A: target-column=rent_$,cost_$ (n = 1)" in (tmp_path / "x.svg").read_text("utf-8")


def suggested(runs, *axes, config="", seeds="", validation=0.2):
    """What a sweep over these axes says at its end."""
    options = Namespace(run_config=[config], seeds=seeds, validation=validation)
    return sweep._next(options, compared([*map(read, runs)]), [*axes])


def keep_first(run):
    """Let the run keep its first round as the best."""
    folder = run / "best" / "checkpoint"
    folder.mkdir(parents=True)
    (folder / "round-000001.fedapps").touch()


def test_where_best_rounds_are_kept_they_choose_the_settings(made):
    """By the last rounds, 0.6 and 0.5 against 0.55 and 0.5, the first would win."""
    chooses = "evaluate-on=validation validation-fraction=0.2"
    scores = {0.1: [(0.7, 0.6), (0.6, 0.5)], 0.2: [(0.9, 0.55), (0.7, 0.5)]}
    runs = [
        made(f"{lr}-{seed}", f"{chooses} lr={lr} seed={seed}", scores=[(0.1, s) for s in two])
        for lr, seeds in scores.items()
        for seed, two in enumerate(seeds)
    ]
    given = {"config": "keep-best=true", "seeds": "0-1"}
    assert "samples: A;" in suggested(runs, "lr", **given)
    for run in runs:
        keep_first(run)
    told, *looks = suggested(runs, "lr", **given).splitlines()
    assert told == "best on validation samples: B; score it once on test samples:"
    assert all("0.2-" in look for look in looks) and len(looks) == 3


def test_settings_without_all_seeds_are_not_the_best_on_validation(made):
    """The lucky seed of settings that diverge with the others would win."""
    runs = [
        made(f"{lr}-{seed}", f"lr={lr} seed={seed}", scores=[(0.1, score)])
        for lr, seed, score in ((0.05, 0, 0.8), (0.05, 1, 0.7), (0.05, 2, 0.6), (1.0, 0, 0.75))
    ]
    config_ = "strategy=fedcmd"
    assert suggested(runs, "lr", config=config_, seeds="0-2") == (
        "best on validation samples: A (left out, because seeds are missing: B); score it once on "
        "test samples: fedapps sweep lr=0.05 -c strategy=fedcmd --seeds 0-2"
    )
    assert suggested(runs[:3], "seed", "lr", config=config_).endswith(
        " A; score it once on test samples: fedapps sweep lr=0.05 -c strategy=fedcmd --seeds 0-2"
    )
    said = suggested([runs[1], runs[3]], "seed", "lr", config=config_)
    assert said.endswith("none, because no settings have finished with all seeds")


def test_settings_whose_mean_leaves_clients_out_are_not_the_best_on_validation(made):
    """In one of two seeds a client of the first failed; without it, the others have more."""
    chooses = "evaluate-on=validation validation-fraction=0.2"
    told = ((0.1, 0, 0.8, 5), (0.1, 1, 0.9, 4), (0.2, 0, 0.7, 5), (0.2, 1, 0.7, 5))
    runs = [
        made(f"{lr}-{s}", f"{chooses} lr={lr} seed={s}", scores=[(0.1, score)], evaluated=count)
        for lr, s, score, count in told
    ]
    said = suggested(runs, "lr", config=chooses, seeds="0-1")
    assert "samples: B (left out, because fewer clients were scored: A); score it once" in said
    assert "fedapps sweep lr=0.2 -c" in said
    runs.append(made("0.3-0", f"{chooses} lr=0.3 seed=0", evaluated=5))
    why = "because seeds are missing: C; fewer clients were scored: A"
    assert f"samples: B (left out, {why}); score it" in suggested(runs, "lr", seeds="0-1")
    few = f"{chooses} evaluate-clients=4 seed="
    runs[-1:] = [made(f"few-{s}", few + str(s), scores=[(0.1, 0.75)], evaluated=4) for s in (0, 1)]
    assert "samples: C (left out, because fewer clients were scored: A);" in suggested(runs, "lr")


@pytest.mark.parametrize(("key", "values"), [
    ("fedprox.prox-mu", (0.1, 1.0)), ("fedfomo.validation-fraction", (0.1, 0.3)),
])  # fmt: skip
def test_the_best_value_of_a_key_that_overrides_a_general_one_is_suggested(made, key, values):
    """The settings of a run have such a key under the name of the general one."""
    method = key.partition(".")[0]
    chooses = f"strategy={method} evaluate-on=validation validation-fraction=0.2"
    runs = [
        made(f"{value}", f"{chooses} {key}={value}", scores=[(0.1, 0.5 + place / 10)])
        for place, value in enumerate(values)
    ]
    said = suggested(runs, key, config=f"strategy={method}")
    told, _, command = said.partition(" once on test samples: ")
    assert told == "best on validation samples: B; score it"
    assert shlex.split(command) == [
        "fedapps", "sweep", f"{key}={values[1]}", "-c", f"strategy={method}",
    ]  # fmt: skip


@pytest.mark.parametrize(("given", "trains_by"), [
    ("strategy=fedavg", None), ("strategy=fedavg evaluate-on=validation", None),
    ("strategy=fedavg evaluate-on=validation validation-fraction=0.3", None),
    ("strategy=fedfomo", 0.3),  # whose own default is another one
    ("strategy=fedfomo evaluate-on=validation fedfomo.validation-fraction=0.3", 0.3),
    ("strategy=fedfomo evaluate-on=validation validation-fraction=0.3", 0.3),
])  # fmt: skip
def test_the_suggestion_scores_on_test_samples_whatever_the_options_say(made, given, trains_by):
    """The settings of an earlier sweep can have the keys that `--validation` sets, too."""
    both = f"{given.split()[0]} evaluate-on=validation validation-fraction=0.3"
    runs = [made(f"{lr}", f"{both} lr={lr}") for lr in (0.1, 0.2)]
    told = suggested(runs, "lr", config=given, validation=0.3)
    words = shlex.split(told.partition(" on test samples: ")[2])
    assert words[:5] == ["fedapps", "sweep", "lr=0.1", "-c", given]
    suggestion = config.effective(config.defaults() | parse_options(words[4::2]))
    assert suggestion["evaluate-on"] == "test"
    assert suggestion["validation-fraction"] == trains_by or not trains_by


@pytest.mark.parametrize("kept", [True, False])
def test_rounds_that_validation_samples_have_chosen_are_scored_and_not_trained_again(made, kept):
    """`fedapps sweep` would refuse the suggestion: test samples must not choose a round."""
    chooses = f"evaluate-on=validation validation-fraction=0.2 patience={1 - kept}"
    runs = [made(f"seed {seed}", f"{chooses} seed={seed}") for seed in (0, 1)]
    for run in runs if kept else []:
        keep_first(run)
    said = suggested(runs, "lr", config="keep-best=true patience=1", seeds="0-1")
    first, *others = said.splitlines()
    assert first == "best on validation samples: A; score it once on test samples:"
    folders = [run / "best" if kept else run for run in runs]
    words = [["fedapps", "evaluate", str(folder), "-c", "evaluate-on=test"] for folder in folders]
    tables = [str(folder / "evaluation-1.csv") for folder in folders]
    assert [*map(shlex.split, others)] == [*words, ["fedapps", "compare", *tables]]
    for table in ("evaluation-1.csv", "evaluation-2.csv"):  # somebody has scored one before
        (folders[1] / table).touch()
    tables[1] = str(folders[1] / "evaluation-3.csv")
    again = suggested(runs, "lr", config="keep-best=true patience=1", seeds="0-1")
    assert shlex.split(again.splitlines()[-1]) == ["fedapps", "compare", *tables]


@pytest.mark.parametrize("rounds", [1, 2])
def test_of_many_groups_the_plot_has_the_best(made, rounds):
    """In the order of the table, whose letters they keep; a score of a round is a point."""
    scores = np.random.default_rng(1).permutation(np.linspace(0.3, 0.9, 15))
    runs = [
        made(f"g{place}", f"lr={0.01 * (place + 1)}", scores=[(0.1, score)] * rounds)
        for place, score in enumerate(scores)
    ]
    whole = compared([*map(read, runs)])
    best = [letter for letter, score in zip("ABCDEFGHIJKLMNO", scores, strict=True) if score > 0.42]
    assert len(best) == 12
    assert "the plot has the best 12 of 15 groups; groups.csv has all" in whole.notes
    figure = curves.draw(whole)
    if rounds == 1:
        texts = [label.get_text() for label in figure.axes[0].get_yticklabels()]
        told = figure.axes[0].get_title("left")
    else:
        texts = [text.get_text() for text in figure.legends[0].get_texts()]
        told = figure.legends[0].get_title().get_text()
    assert [text.partition(":")[0] for text in texts] == best
    assert told.endswith("; the best 12 of 15 groups")
    few = compared([*map(read, runs[:12])])
    assert not few.notes and len(few.drawn) == 12


def test_figures_are_computed_once(made, monkeypatch):
    calls, real = [], Group._looked_at
    monkeypatch.setattr(Group, "_looked_at", lambda group: calls.append(group) or real(group))
    (group, _) = compared([read(made(f"lr{lr}", f"lr={lr}", scores=LONG)) for lr in (1, 2)]).groups
    calls.clear()
    assert group.figures is group.figures and group.costs is group.costs and len(calls) <= 2
