"""The figures of a comparison, printed and as CSV, against pandas and SciPy on rounds.csv."""

import dataclasses
import json
import re
import tomllib

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import fedapps
from fedapps.compare import table as printing
from fedapps.compare.comparison import compared
from fedapps.compare.groups import grouped
from fedapps.compare.pairs import Pair, pairs
from fedapps.compare.runs import read
from fedapps.tasks import CLASSIFICATION
from tests.support.made_runs import COSTS, scored_run

RESULT = "accuracy_personalized"
METHODS = {"A": "fedavg", "B": "fedper", "C": "fedrep"}
SEEDS = {"A": [0, 1, 2, 5], "B": [1, 2, 5, 7], "C": [2, 9]}


@pytest.fixture(scope="module")
def grid(tmp_path_factory):
    """Run directories of three methods, with seeds that they have in part in common."""
    draws = np.random.default_rng(4)
    folder = tmp_path_factory.mktemp("grid")
    return [
        scored_run(
            folder,
            f"{method}-{seed}",
            f'strategy="{method}" seed={seed}',
            scores=[None, *draws.uniform(0.1, 0.9, (2, 2))],
            costs=1000 * (seed + 1),
        )
        for letter, method in METHODS.items()
        for seed in SEEDS[letter]
    ]


def table_of(folders):
    """Return a row for each run: its last figures and the sums of its costs."""
    rows = []
    for folder in folders:
        rounds = pd.read_csv(folder / "rounds.csv")
        last = rounds.iloc[-1].drop(["round", "phase", "clients", "evaluated", "seconds", *COSTS])
        summary = json.loads((folder / "summary.json").read_text("utf-8"))
        settings = tomllib.loads((folder / "config.toml").read_text("utf-8"))
        told = {"run": str(folder), "strategy": settings["strategy"], "seed": settings["seed"]}
        costs = rounds[[*COSTS]].sum()
        rows.append({**told, **last, **costs, "seconds": summary["seconds"]})
    return pd.DataFrame(rows).set_index("run")


def equal(ours, theirs):
    """Compare two columns of numbers, in which some may be missing."""
    pd.testing.assert_series_equal(
        ours.astype(float), theirs.astype(float), check_names=False, rtol=1e-12
    )


def test_each_run_has_its_last_figures_and_all_its_costs(grid, compare):
    expected = table_of(grid)
    ours = compare(*grid).runs.set_index("run")
    assert ours.index.tolist() == expected.index.tolist()
    for name in expected.columns.drop("strategy"):
        equal(ours[name], expected[name])
    assert ours["strategy"].tolist() == expected["strategy"].tolist()
    assert ours["finished"].all() and ours["counts"].all() and set(ours["round"]) == {3}


def test_runs_that_differ_only_in_the_seed_are_mean_and_standard_deviation(grid, compare):
    figures = table_of(grid).set_index("strategy").drop(columns="seed").astype(float)
    compared = compare(*reversed(grid))
    ours = compared.groups.reset_index().set_index("strategy")
    assert ours["group"].to_dict() == {"fedrep": "A", "fedper": "B", "fedavg": "C"}
    grouped = figures.groupby(level=0)
    for name in figures:
        equal(ours[f"{name}_mean"].sort_index(), grouped[name].mean())
        equal(ours[f"{name}_std"].sort_index(), grouped[name].std(ddof=1))
    assert ours["n"].to_dict() == {"fedavg": 4, "fedper": 4, "fedrep": 2}
    assert ours["seeds"].to_dict() == {"fedavg": "0-2,5", "fedper": "1-2,5,7", "fedrep": "2,9"}

    percent = 100 * figures
    printed = compared.cells("accuracies on test samples, ± standard deviation over seeds")
    assert printed.pop("") == ["strategy", "seeds", "n", "initial %", "personalized %"]
    for letter, method in zip("ABC", ("fedrep", "fedper", "fedavg"), strict=True):
        row = [method, ours["seeds"][method], str(ours["n"][method])]
        for name in ("accuracy_initial", RESULT):
            values = percent.loc[method, name].to_numpy()
            row.append(f"{np.mean(values):.2f} ± {np.std(values, ddof=1):.2f}")
        assert printed[letter] == row


def test_the_costs_are_means_over_seeds(made, compare):
    scores = [(0.1, 0.2)] * 3
    for seed, costs in ((0, 10**6), (1, 3 * 10**6)):
        made(f"a{seed}", f"seed={seed}", scores=scores, costs=costs)
    folder = made("b", "lr=0.5", scores=scores[:2], costs=10**9).parent
    printed = compare(folder).cells("mean costs of a run")
    head = ["rounds", "down", "up", "evaluation", "training MACs", "paper cost", "time"]
    assert printed[""] == [*head, "failures"]
    # of each round (place + round) x costs, the place in COSTS: over 3 rounds 3 x place + 6
    means = {name: 2 * (3 * place + 6) for place, name in enumerate(COSTS)}
    row = printed["A"]
    assert row[:4] == ["3", *(f"{means[name]} MB" for name in COSTS[1:4])]
    assert row[4:6] == [f"{means[name]} M" for name in COSTS[4:]]
    assert float(row[7]) == means["failures"] * 10**6
    assert printed["B"][:2] == ["2", "5 GB"]


def test_of_a_round_with_two_phases_the_last_is_scored_and_both_cost(made, compare):
    scores = [(0.1, 0.2), (0.3, 0.4)]
    folders = [made("a", scores=scores, phases=[2]), made("b", "lr=0.5", scores=scores)]
    runs = compare(*folders).runs.set_index("group")
    assert runs.loc["A", "accuracy_initial"] == 0.9 and runs.loc["A", RESULT] == 0.95
    for letter, folder, lines in zip("AB", folders, (3, 2), strict=True):
        rounds = pd.read_csv(folder / "rounds.csv")
        assert len(rounds) == lines
        assert runs.loc[letter, "bytes_up"] == rounds["bytes_up"].sum()


def test_costs_end_with_the_last_round_that_was_scored(made, compare):
    """In the last round every evaluation has failed."""
    folders = [made("a", scores=[(0.1, 0.2), (0.3, 0.4), None]), made("b", "lr=0.5")]
    first = compare(*folders).runs.loc[0]
    rounds = pd.read_csv(folders[0] / "rounds.csv")[:2]
    assert first["round"] == 2
    for name in (*COSTS, "seconds"):
        assert first[name] == rounds[name].sum()


def test_a_curve_is_over_the_rounds_that_all_runs_of_a_group_have_scored(made):
    scores = {0: [0.2, 0.4, None, 0.6], 1: [0.3, None, 0.5, 0.9]}
    folders = [
        made(f"a{seed}", f"seed={seed}", scores=[score and (0.1, score) for score in own])
        for seed, own in scores.items()
    ]
    (group,) = grouped([*map(read, folders)])
    curve = group.curve(RESULT)
    assert curve.index.tolist() == [1, 4]
    for round_, row in curve.iterrows():
        values = [own[round_ - 1] for own in scores.values()]
        assert row["mean"] == pytest.approx(np.mean(values))
        assert row["std"] == pytest.approx(np.std(values, ddof=1))


def expected_difference(folders, first, second):
    """Return the cells of a difference: n, points, interval, p."""
    table = 100 * table_of(folders).pivot(index="seed", columns="strategy", values=RESULT)
    values = (table[second] - table[first]).dropna().to_numpy(float)
    cells = [str(len(values)), f"{values.mean():+.2f}"]
    if len(values) > 1:
        cells[1] += f" ± {values.std(ddof=1):.2f}"
    if len(values) < 3:
        return [*cells, f"{len(values)} seed{'s' * (len(values) > 1)}: no finding"]
    half = stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / len(values) ** 0.5
    p = stats.ttest_1samp(values, 0).pvalue
    return [*cells, f"{values.mean() - half:+.2f} to {values.mean() + half:+.2f}", f"{p:.2g}"]


def test_differences_are_of_common_seeds_with_a_paired_t_test(grid, compare):
    compared = compare(*grid)
    printed = compared.cells("personalized accuracy, difference seed by seed")
    assert printed.pop("") == ["n", "points", "95 % interval", "p of a paired t-test"]
    assert printed.keys() == {"B - A", "C - A", "C - B"}
    for name, cells in printed.items():
        second, first = (METHODS[letter] for letter in name.split(" - "))
        assert cells == expected_difference(grid, first, second), name
    assert [cells[0] for cells in printed.values()] == ["3", "1", "1"]
    assert "compare each p" not in compared.out  # of one test only


def test_several_tests_are_told_and_equal_differences_are_no_test(made, compare):
    draws = np.random.default_rng(0)
    accuracies = draws.uniform(0.2, 0.5, (3, 4))
    accuracies[2] = accuracies[0] + 0.25
    for method, values in zip(METHODS.values(), accuracies, strict=True):
        for seed, value in enumerate(values):
            keys = f"strategy={method} seed={seed}"
            folder = made(f"{method}{seed}", keys, scores=[(0.1, value)])
    compared = compare(folder.parent)
    printed = compared.cells("personalized accuracy, difference seed by seed")
    assert printed["C - A"] == ["4", "+25.00 ± 0.00", "the same difference in all"]
    runs = [*folder.parent.iterdir()]
    assert printed["B - A"] == expected_difference(runs, "fedavg", "fedper")
    assert "2 tests: compare each p with 0.05 / 2 = 0.025\n" in compared.out


@pytest.mark.parametrize(("values", "told", "bound"), [
    ((0.01653, 0.3, 0.04), ["0.0165", "0.3", "0.04"], "0.0167"),
    ((0.01668, 0.016661, 0.04), ["0.01668", "0.01666", "0.04"], "0.01667"),
    ((0.0153, 0.3, 0.04), ["0.015", "0.3", "0.04"], "0.017"),
    ((0.05 / 3, 0.3, 0.04), ["0.017", "0.3", "0.04"], "0.017"),  # it is equal
    ((0.0498,), ["0.0498"], None),
])  # fmt: skip
def test_it_can_be_seen_which_p_are_below_their_bound(values, told, bound, made, capsys):
    those = [Pair("A", "B", (0, 1, 2), 1.0, 0.5, (0.1, 1.9), p) for p in values]
    whole = compared([read(made(f"lr{lr}", f"lr={lr}")) for lr in (1, 2)])
    capsys.readouterr()
    printing.show(dataclasses.replace(whole, pairs=those))
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in lines if "0.10 to" in line] == told
    line = f"{len(values)} tests: compare each p with 0.05 / {len(values)} = {bound}"
    assert (line in lines) == bool(bound)


@pytest.mark.parametrize("unit", [1e-12, 1, 1e9])
def test_whether_differences_are_equal_does_not_depend_on_the_unit(made, unit):
    first, second = np.random.default_rng(0).uniform(0.2, 0.5, (2, 4))
    runs = []
    for method, values in zip(METHODS.values(), (first, second, first + 0.1), strict=True):
        for seed, value in enumerate(unit * values):
            keys = f"strategy={method} seed={seed}"
            runs.append(read(made(f"{method}{seed}", keys, scores=[(0.1, value)])))
    other, same, _ = pairs(grouped(runs), CLASSIFICATION.lead)
    assert other.p == pytest.approx(stats.ttest_rel(second, first).pvalue)
    assert same.p is None and same.mean == pytest.approx(10 * unit)


def test_more_than_four_groups_are_held_against_the_first(made, compare):
    folders = [made(f"run{place}", f"lr=0.{place}") for place in range(1, 6)]
    compared = compare(folders[2], *folders)
    assert compared.out.startswith("fedcmd on digits, seed 0, 1 round\n")
    printed = compared.cells("personalized accuracy, difference seed by seed")
    assert printed.keys() == {"", "B - A", "C - A", "D - A", "E - A"}
    assert compared.groups["lr"].tolist() == [0.3, 0.1, 0.2, 0.4, 0.5]
    told = "groups are compared with A, the first; to change this, name another run first\n"
    assert told in compared.out
    of_four = compare(*folders[:4]).cells("personalized accuracy, difference seed by seed")
    assert of_four.keys() == {"", "B - A", "C - A", "D - A", "C - B", "D - B", "D - C"}


@pytest.mark.parametrize(
    ("key", "value", "other"),
    [("alpha", 0.3, 0.4), ("num-clients", 5, 6), ("evaluate-clients", 3, 4)],
)
def test_what_is_scored_on_other_samples_has_no_difference(made, compare, key, value, other):
    folders = [made("a", f"{key}={value}"), made("b", f"{key}={other}")]
    compared = compare(*folders)
    assert "difference seed by seed" not in compared.out
    assert f"not the same samples: {key} is {value} (A), {other} (B)\n" in compared.out


def test_groups_of_different_seeds_are_named(made, compare):
    """Each seed draws its own partition, so a better mean can be one over easier clients."""
    folders = [made(f"a{seed}", f"strategy=fedavg seed={seed}") for seed in (0, 1, 2)]
    folders += [made("b5", "strategy=fedper seed=5"), made("c5", "strategy=fedrep seed=5")]
    told = "different seeds: 0-2 (A), 5 (B, C)"
    alone, among, alike = compare(*folders[:3]), compare(*folders), compare(*folders[3:])
    assert told in among.out and "different seeds" not in alone.out + alike.out
    (note,) = fedapps.compare(folders).notes
    assert note == f"{told}; other seeds can mean other samples"
    assert f"\n% {note}\n" in fedapps.compare(folders).to_latex()


def test_data_and_methods_that_have_changed_are_named(made, compare):
    folders = [made("a"), made("b", "lr=0.5")]
    for folder, data in zip(folders, "xy", strict=True):
        text = json.dumps({"fingerprints": {"data": data, "code": data}})
        (folder / "run.json").write_text(text)
    compared = compare(*folders)
    assert "difference seed by seed" not in compared.out
    assert "not the same data: digits was other in a than in b" in compared.out
    assert "not the same code: fedcmd was other in a than in b" in compared.out
    (folders[0] / "run.json").unlink()
    assert "difference seed by seed" in (out := compare(*folders).out) and "not the same" not in out


def test_a_program_has_the_differences_and_their_tests(grid, made):
    """In the points that are printed; without a test, its figures are missing."""
    both, figures = fedapps.compare(grid), table_of(grid).set_index(["strategy", "seed"])[RESULT]
    found = both.differences.set_index(["first", "second"])
    assert [*found] == ["n", "mean", "std", "low", "high", "p"]
    assert [*found.index] == [("A", "B"), ("A", "C"), ("B", "C")] and [*found["n"]] == [3, 1, 1]
    before, after = (100 * figures[METHODS[name]].loc[[1, 2, 5]].astype(float) for name in "AB")
    test = stats.ttest_rel(after, before)
    rise = after - before
    wanted = rise.mean(), rise.std(), *test.confidence_interval(), test.pvalue
    np.testing.assert_allclose([*found.loc["A", "B"]][1:], wanted)
    assert found.loc["A", "C"].notna().tolist() == [True, True, False, False, False, False]
    rows = re.findall(r"<t[hd]>(.+)</t[hd]>\s+<td>([1-3])</td>", both._repr_html_())
    assert rows == [("B - A", "3"), ("C - A", "1"), ("C - B", "1")]
    assert f"<td>{test.pvalue:.2g}</td>" in both._repr_html_()
    alone = fedapps.compare([made("a", "seed=0"), made("b", "seed=1")])
    assert alone.differences.empty and [*alone.differences.columns[2:]] == [*found]
    assert alone._repr_html_().count("<table") == 1


def test_what_an_edited_file_of_a_model_has_made_is_a_group_of_its_own(made, compare):
    """Of an earlier version, nobody knows; models of one's own differ in code, not in seed."""
    known = {"a0": "old", "a1": "old", "b0": "new", "b1": "new", "c2": ""}
    for name, code in known.items():
        folder = made(name, f'model="/mine/m.py" seed={name[1]}')
        model = {"own-model": name, "sketch": f"{name[1]}.5 1e-3 {code}"} if code else {}
        (folder / "run.json").write_text(json.dumps({"fingerprints": {"data": "x"} | model}))
    runs = sorted(folder.parent.iterdir())
    edited, rest = compare(*runs), compare(*runs[2:], runs[0])
    assert edited.groups["model"].to_dict() == {"A": "/mine/m.py", "B": "/mine/m.py (2)"}
    assert [*edited.groups["seeds"]] == ["0-2", "0-1"] and "is without" not in edited.out
    assert "not the same model: /mine/m.py was other in a0, a1 than in b0, b1\n" in edited.out
    assert [*rest.groups["seeds"]] == ["0-2", "0"]
    assert "not the same model: /mine/m.py was other in b0, b1 than in a0\n" in rest.out
    assert "not the same" not in compare(*runs[2:]).out


def test_the_same_data_at_two_paths_are_the_same_samples(made, compare):
    """As after a move, or on two machines; the same path is not needed, nor is it enough."""
    at = {
        "a": ("/old/mine.npz", "lr=0.1 seed=0"), "b": ("/new/mine.npz", "lr=0.1 seed=1"),
        "c": ("/new/mine.npz", "lr=0.5 seed=0"), "d": ("/else/mine.npz", "lr=0.5 seed=0"),
    }  # fmt: skip
    folders = [made(name, f'dataset="{path}" {keys}') for name, (path, keys) in at.items()]
    for folder, data in zip(folders, "xxxy", strict=True):
        (folder / "run.json").write_text(json.dumps({"fingerprints": {"data": data}}))
    compared = compare(*folders[:3])
    assert [*compared.groups["seeds"]] == ["0-1", "0"]
    assert compared.cells("personalized accuracy, difference").keys() == {"", "B - A"}
    assert "not the same" not in compared.out
    told = "not the same samples: dataset is /old/mine.npz (A, B), /else/mine.npz (C)\n"
    assert told in compare(*folders).out


def test_seeds_left_out_of_a_difference_are_told_also_of_groups_with_other_data(made, compare):
    first = made("other", "alpha=0.4")
    for strategy, clients in (("fedavg", 5), ("fedper", 4)):
        for seed, evaluated in ((0, 5), (1, clients)):
            keys = f"alpha=0.3 strategy={strategy} seed={seed}"
            made(f"{strategy}-{seed}", keys, evaluated=evaluated)
    runs = sorted(first.parent.glob("fed*"))
    compared = compare(first, *runs)
    printed = compared.cells("personalized accuracy, difference seed by seed")
    assert printed.keys() == {"", "C - B"} and printed["C - B"][0] == "1"
    assert compared.out.count("not the same clients") == 1
    assert "not the same clients: seed 1 is scored on 5 (B), 4 (C)\n" in compared.out


def test_keys_that_the_partitioner_does_not_read_tell_no_data_apart(made, compare):
    folder = made("a", "partitioner=iid alpha=0.1 lr=0.1").parent
    made("b", "partitioner=iid alpha=0.5 lr=0.2 classes-per-client=0/1/2/3/4")
    compared = compare(folder)
    assert "not the same" not in compared.out
    assert compared.cells("accuracies on test samples")[""][:2] == ["lr", "seeds"]
    assert compared.cells("personalized accuracy, difference").keys() == {"", "B - A"}
    made("c", "partitioner=dirichlet alpha=0.5 lr=0.2")
    told = [line for line in compare(folder).out.splitlines() if line.startswith("not the same")]
    assert told == ["not the same samples: partitioner is iid (A, B), dirichlet (C)"]


def test_as_many_but_other_clients_give_no_difference(made, compare):
    """Which five are drawn depends on who is an attacker, as these are not scored."""
    keys = "num-clients=20 evaluate-clients=5 seed="
    those, others = (4, 5, 11, 14, 18), (3, 4, 10, 11, 15)
    for seed, scored in enumerate((those, others)):
        made(f"a{seed}", f"{keys}{seed}", evaluated=scored)
        folder = made(f"b{seed}", f"{keys}{seed} attackers=0.2", evaluated=those).parent
    compared = compare(folder)
    told = "not the same clients: seed 1 is scored on 5 with 3,10,15 (A), 5 with 5,14,18 (B)\n"
    assert told in compared.out and compared.out.count("not the same clients") == 1
    assert compared.cells("personalized accuracy, difference")["B - A"][0] == "1"
    made("d1", f"{keys}1 attackers=0.4", evaluated=[*those[1:], *range(30, 50, 2)])
    compared = compare(*sorted(folder.glob("[bd]1")))
    assert "seed 1 is scored on 5 (A), 14 (B)\n" in compared.out
    assert "difference" not in compared.out


def test_the_clients_are_those_of_the_round_that_is_compared(made):
    """Another client fails in the second round; the rows of many clients are read from the end."""
    folder = made("a", scores=[(0.1, 0.2), (0.2, 0.4), None], evaluated=range(3))
    text = (folder / "clients.csv").read_text()
    (folder / "clients.csv").write_text(text.replace("2,1\n", "2,4\n").replace("3,0\n", ""))
    run = read(folder)
    assert [run.evaluated(round_) for round_ in (1, 2)] == [{0, 1, 2}, {0, 4, 2}]
    (folder / "clients.csv").unlink()
    assert run.evaluated(2) == {0, 1, 2}


def test_the_settings_that_differ_are_columns_and_nothing_else(made, compare):
    folder = made("a", "strategy=fedavg lr=0.1 momentum=0.5").parent
    made("b", "strategy=fedavg lr=0.2 momentum=0.5 threads=1 seed=3")
    made("c", "strategy=fedper lr=0.1 momentum=0.5 fedcmd.selection-fraction=0.5")
    compared = compare(folder)
    printed = compared.cells("accuracies on test samples")
    assert printed[""][:3] == ["strategy", "lr", "seeds"]
    assert [printed[letter][:3] for letter in "ABC"] == [
        ["fedavg", "0.1", "0"], ["fedavg", "0.2", "3"], ["fedper", "0.1", "0"],
    ]  # fmt: skip
    assert compared.groups["lr"].tolist() == [0.1, 0.2, 0.1]
    assert not {"momentum", "threads"} & set(compared.groups)


def test_a_key_that_a_method_does_not_read_is_not_told_of_it(made, compare):
    """FedALA never fine-tunes, and pFedMe with `local-rounds` has no epochs either."""
    both = "finetune-epochs=2 local-epochs=3"
    runs = [
        made("a", f"strategy=fedavg {both}"),
        made("b", f"strategy=fedala {both}"),
        made("c", "strategy=fedala local-epochs=3 seed=1"),
        made("d", f"strategy=pfedme {both} pfedme.local-rounds=3"),
    ]
    gone = made("e", "strategy=fedavg seed=2")  # a method that is not on this machine
    about = gone / "config.toml"
    about.write_text(about.read_text("utf-8").replace('"fedavg"', '"nobodys"'), "utf-8")
    groups = compare(*runs, gone).groups
    assert [*groups["strategy"]] == ["fedavg", "fedala", "pfedme", "nobodys"]
    assert [*groups["seeds"]] == ["0", "0-1", "0", "2"]  # nothing that b and c read differs
    assert [*groups["finetune-epochs"].fillna(-1)] == [2, -1, -1, 5]
    assert [*groups["local-epochs"].fillna(-1)] == [3, 3, -1, 5]


def test_where_many_settings_and_accuracies_differ_every_word_can_be_read(made, compare):
    further = dict.fromkeys(
        ("accuracy_last_local", "accuracy_without_head", "accuracy_global"), 0.25
    )
    keys = "alpha=0.{0} lr=0.{0} momentum=0.{0} batch-size={0} local-epochs={0} num-clients={0}"
    for seed in (0, 1):
        for number in (3, 4):
            folder = made(
                f"{number}-{seed}", f"{keys.format(number)} seed={seed}", **further
            ).parent
    compared = compare(folder)
    for number in (3, 4):
        for setting in keys.format(number).split():
            assert setting in compared.out
    assert compared.out.count("25.00 ± 0.00") == 6
    printed = compared.cells("accuracies on test samples")
    assert printed["A"][:2] == ["0-1", "2"] and len(printed["A"]) == 7


def test_newcomers_stand_beside_the_clients_that_trained(tmp_path):
    """The means of unseen.csv and the difference are in summary.json; a run without has none."""
    folders = [scored_run(tmp_path, name, f"seed={k}") for k, name in enumerate("ab")]
    path = folders[0] / "summary.json"
    summary = json.loads(path.read_text("utf-8"))
    seen, unseen = summary[RESULT], 0.25
    summary |= {f"{RESULT}_unseen": unseen, "accuracy_difference_unseen": unseen - seen}
    path.write_text(json.dumps(summary), "utf-8")
    one, two = (read(folder).scored.iloc[-1] for folder in folders)
    assert one[f"{RESULT}_unseen"] == unseen
    assert one["accuracy_difference_unseen"] == pytest.approx(unseen - one[RESULT])
    assert f"{RESULT}_unseen" not in two
