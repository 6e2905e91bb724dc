"""Evaluations of saved runs, held against each other and against runs."""

import csv
import os
import subprocess
import sys

import numpy as np
import pytest

from fedapps.compare import curves
from fedapps.compare.comparison import compared
from fedapps.compare.runs import read, read_evaluation
from tests.support import ROOT

LONG = [(0.1, 0.5), (0.2, 0.6), (0.3, 0.7)]  # initial and personalized, of three rounds
COLUMNS = ("evaluation", "round", "settings", "accuracy_initial", "accuracy_personalized")


@pytest.fixture
def evaluated():
    """Return evaluated(folder, *lines) -> its tables; lines are values of COLUMNS but the first."""

    def call(folder, *lines, clients=5, further=()):
        tables = [folder / f"evaluation-{number}.csv" for number in range(1, 1 + len(lines))]
        with (folder / "evaluations.csv").open("w", newline="") as file:
            rows = ([number, *line] for number, line in enumerate(lines, 1))
            csv.writer(file).writerows([(*COLUMNS, *further), *rows])
        for table in tables:
            rows = [f"{lines[0][0]},{client}" for client in range(clients)]
            table.write_text("\n".join(["round,client", *rows, ""]))
        return tables

    return call


def best_of(run):
    """Return the folder of a run's best round, which has its config alone."""
    (run / "best").mkdir()
    (run / "best/config.toml").write_bytes((run / "config.toml").read_bytes())
    return run / "best"


def test_best_rounds_are_compared_by_their_test_samples(made, evaluated, compare):
    """Each seed has another best round; the costs are those up to it."""
    keys = "evaluate-on=validation validation-fraction=0.2 keep-best=true"
    tables, scores = [], {0: (2, 0.55), 1: (1, 0.45)}
    for seed, (best, accuracy) in scores.items():
        run = made(f"r{seed}", f"{keys} seed={seed}", scores=LONG)
        tables += evaluated(best_of(run), (best, 'evaluate-on="test"', 0.25, accuracy))
    found = compare(*tables)
    assert "accuracies on test samples" in found.out
    (group,) = found.groups.to_dict("records")
    values = [accuracy for _, accuracy in scores.values()]
    assert group["n"] == 2 and group["seeds"] == "0-1" and group["round"] == "1-2"
    assert group["accuracy_personalized_mean"] == pytest.approx(np.mean(values))
    assert group["accuracy_personalized_std"] == pytest.approx(np.std(values, ddof=1))
    assert found.runs["accuracy_initial"].tolist() == [0.25, 0.25]
    down = [1 + np.arange(1, best + 1) for best, _ in scores.values()]  # place 1, see `scored_run`
    assert found.runs["bytes_down"].tolist() == [each.sum() for each in down]
    assert found.runs["seconds"].tolist() == [1.5, 0.5]


@pytest.fixture
def best_rounds(made, evaluated):
    """Return {method: the accuracies of its two seeds}, and the tables of their best rounds."""
    tables, scores = [], {"fedavg": (0.55, 0.45), "fedper": (0.65, 0.75)}
    for method, accuracies in scores.items():
        for seed, accuracy in enumerate(accuracies):
            run = made(f"{method}{seed}", f'strategy="{method}" seed={seed}', scores=LONG)
            tables += evaluated(best_of(run), (2 - seed, "", 0.25 + seed / 10, accuracy))
    return scores, tables


def test_seeds_whose_best_rounds_are_others_are_drawn_as_one_point(best_rounds):
    scores, tables = best_rounds
    figure = curves.draw(compared([*map(read_evaluation, tables)]))
    assert [axes.get_xlabel().split()[0] for axes in figure.axes] == ["initial", "personalized"]
    for axes, groups in zip(figure.axes, [[(0.25, 0.35)] * 2, scores.values()], strict=True):
        drawn = [bar.get_segments()[0][:, 0] for bar in axes.collections]
        means, stds = np.mean([*groups], 1), np.std([*groups], 1, ddof=1)
        assert np.array(drawn) == pytest.approx(100 * np.array([means - stds, means + stds]).T)
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert labels == [f"{letter}: {method} (n = 2, rounds 1-2)" for letter, method in
                      zip("AB", scores, strict=True)]  # fmt: skip


def test_best_rounds_are_points_beside_curves(best_rounds, made):
    """At the mean of their rounds."""
    scores, tables = best_rounds
    runs = [*map(read_evaluation, tables), read(made("long", "lr=0.5", scores=LONG))]
    axes = curves.draw(compared(runs)).axes[1]
    lines = [line for line in axes.lines if line.get_label()[:2] in ("A:", "B:")]
    for line, accuracies in zip(lines, scores.values(), strict=True):
        assert line.get_xydata() == pytest.approx(np.array([[1.5, 100 * np.mean(accuracies)]]))


def test_settings_of_an_evaluation_tell_it_from_its_run(made, evaluated, compare):
    run = made("r", "finetune-epochs=5", scores=LONG, evaluated=5)
    looks = ((3, "", 0.3, 0.7), (3, "finetune-epochs=9", 0.3, 0.8), (3, "", 0.3, 0.7))
    same, longer, again = evaluated(run, *looks)
    found = compare(run, longer)
    assert found.groups["finetune-epochs"].tolist() == [5, 9]
    assert found.cells("personalized accuracy")["B - A"][:2] == ["1", "+10.00"]
    found = compare(same, longer, again)
    assert found.groups["n"].tolist() == [1, 1]
    assert "A is without r/evaluation-3.csv: another run has that seed" in found.out


def test_the_best_round_and_the_last_are_not_put_together(made, evaluated, compare):
    tables = []
    for seed in (0, 1):
        run = made(f"r{seed}", f"seed={seed}", scores=LONG)
        place = best_of(run) if seed else run
        tables += evaluated(place, (3 - seed, "", 0.3, 0.7))
    assert compare(*tables).groups["n"].tolist() == [1, 1]


def test_means_over_other_clients_are_told(made, evaluated, compare):
    tables = []
    for lr, clients in ((0.1, 5), (0.2, 4)):
        tables += evaluated(made(f"r{lr}", f"lr={lr}"), (1, "", 0.3, 0.7), clients=clients)
    assert "not the same clients: seed 0 is scored on 5 (A), 4 (B)" in compare(*tables).out


def test_an_evaluation_has_its_own_figures_and_none_of_its_run(made, evaluated):
    run = made("r", scores=LONG, accuracy_last_local=0.9)
    (table,) = evaluated(run, (3, "finetune-epochs=9", 0.25, 0.8))
    found = read_evaluation(table)
    curves = {name: found.curve(name).to_dict() for name in COLUMNS[3:]}
    assert curves == {"accuracy_initial": {3: 0.25}, "accuracy_personalized": {3: 0.8}}
    assert found.curve("accuracy_last_local").empty


def test_the_newest_evaluation_of_a_number_counts(made, evaluated):
    """Whoever deletes a table gives its number to the next one, which adds a line of its own."""
    run = made("r", scores=LONG)
    (table,) = evaluated(run, (3, "", 0.2, 0.5))
    with (run / "evaluations.csv").open("a", newline="") as file:
        csv.writer(file).writerow([1, 3, "finetune-epochs=9", 0.3, 0.8])
    found = read_evaluation(table)
    assert found.settings["finetune-epochs"] == 9
    assert found.curve("accuracy_personalized").to_dict() == {3: 0.8}


def test_figures_of_newcomers_come_in_one_order(made, evaluated):
    """In each process; with the hashes of this one, a set has them the other way round."""
    further = ("accuracy_personalized_unseen", "accuracy_difference_unseen")
    (table,) = evaluated(made("r"), (1, "", 0.3, 0.7, 0.6, -0.1), further=further)
    code = (
        "import sys, pathlib; from fedapps.compare.runs import read_evaluation; "
        "print(*read_evaluation(pathlib.Path(sys.argv[1])).scored.dropna(axis=1))"
    )
    told = subprocess.run(
        [sys.executable, "-c", code, table], cwd=ROOT, capture_output=True, text=True, check=True,
        env=os.environ | {"PYTHONHASHSEED": "0"},
    )  # fmt: skip
    found = [name for name in told.stdout.split() if name in (*COLUMNS, *further)]
    assert found == [*COLUMNS[3:], *further]


def test_what_is_no_evaluation_is_named(made, evaluated, refused):
    run = made("r", scores=LONG)
    (table,) = evaluated(run, (7, "", 0.3, 0.7))
    assert refused("compare", table, run) == f"{table}: {run} has no round 7"
    assert refused("compare", run, run / "evaluation-2.csv").startswith("cannot read ")
    other = run / "rounds.csv"
    assert refused("compare", other, run) == (
        f"{other}: evaluations.csv next to it has no evaluation rounds"
    )
    evaluated(run, ("x", "", 0.3, 0.7))
    assert refused("compare", table, run).startswith(f"{table} is not a table of an evaluation: ")
    best = best_of(run)
    assert refused("compare", best, run).startswith(f"{best} is the best round of a run and has no")
