"""The comparison of methods, settings chosen on validation parts, claims, the page of results."""

import csv
import errno
import re
import tomllib
from dataclasses import replace
from itertools import product
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from msgspec import structs
from scipy import stats

from experiments import HERE, __main__
from experiments.figures import communication, leads
from experiments.outcomes import claims, significance, yardstick
from experiments.outcomes.cells import Figure, Outcome, outcomes
from experiments.outcomes.tidy import write_csv
from experiments.papers import files
from experiments.papers.table import Claim, Reading, Row, Scale, Table
from experiments.publish import charts, html_page, page_template, sections
from experiments.publish.markdown_page import markdown
from experiments.run import tuning
from experiments.run.dependent import settled
from experiments.run.store import Store, diverged
from fedapps.core.errors import RunError
from tests.support.browser import DARK, PRINTED, measured
from tests.support.papers import run_of

NAMES = ("fedavg-ft", "local", "better", "same")
KIND = "accuracy_personalized"


def make_table(base):
    """A table of four methods with a yardstick; `better` chooses its settings."""
    rows = tuple(
        Row(
            name,
            'strategy="fedavg"' if name != "local" else 'strategy="local"',
            published=70.0,
            note="no `server`" if name == "local" else "",
            search={"lr": [0.1, 0.2], "momentum": [0.0, 0.5]} if name == "better" else {},
        )
        for name in NAMES
    )
    scales = {"cpu": Scale(seeds="0-2", trials=3)}
    claim = Claim("<all> are better", "better", ("fedavg-ft", "local"))
    ours = Claim("ours", "local", ("same",), reads="accuracy_personalized")
    marks = {"yardstick": "fedavg-ft", "alone": "local", "claims": (claim, ours)}
    return Table("benchmark-toy", "Toy <b>", base, rows=rows, scales=scales, **marks)


def scored(cell, seed, accuracies):
    """Return a run with these accuracies of its clients."""
    clients = [*range(len(accuracies))]
    values = {"client": clients, "num_test": [30 + client for client in clients]}
    values |= {KIND: [*accuracies], "accuracy_initial": [*accuracies]}
    costs = {"bytes_up": 1e6, "bytes_down": 2e6, "train_macs": 4e9}
    return run_of(cell, seed, figures={KIND: np.mean(accuracies)}, costs=costs, clients=values)


def filled(table, store):
    """Fill a store: `better` gains about 0.1 with every client, `same` is the yardstick."""
    draws = np.random.default_rng(3)
    cells = {cell.row.name: cell for cell in table.cells("cpu")}
    for number, trial in enumerate(tuning.trials(cells["better"])):
        store.save(trial, scored(trial, 0, [0.5 + 0.1 * (number == 1)]))
    best = next(c for c in settled(store, table, "cpu") if c.row.name == "better")
    cells["better"] = best
    base = {seed: draws.uniform(0.4, 0.8, 30) for seed in range(3)}
    for seed, values in base.items():
        worse = values - draws.uniform(0.0, 0.3, 30)
        better = values + (0.1, 0.101, 0.099)[seed]
        for name, own in zip(NAMES, (values, worse, better, values), strict=True):
            store.save(cells[name], scored(cells[name], seed, own))
    return base


@pytest.fixture
def toy(base, tmp_path, monkeypatch):
    """(table, store, accuracies of the yardstick by seed)."""
    table, store = make_table(base), Store(tmp_path / "results")
    monkeypatch.setattr(html_page, "tables", lambda: {table.name: table})
    return table, store, filled(table, store)


def test_a_row_runs_with_the_best_of_its_trials(toy):
    table, store, _ = toy
    row = next(cell for cell in table.cells("cpu") if cell.row.name == "better")
    tried = tuning.combinations(row)
    assert len(tried) == 3 == len({tuple(values.values()) for values in tried})
    settings = next(c for c in settled(store, table, "cpu") if c.row.name == "better")
    flat = settings.config(1)
    assert {key: flat[key] for key in tried[1]} == tried[1], "the second trial was the best"
    assert flat["evaluate-on"] == "test" and flat["validation-fraction"] == ""
    trial = tuning.trials(row)[0].config(0)
    assert trial["evaluate-on"] == "validation" and trial["validation-fraction"] == 0.2
    also = (Reading("newcomers, few-shot 5"),)
    few = replace(row, row=structs.replace(row.row, also=also))
    read = [reading.reads for trial in tuning.trials(few) for reading in trial.row.readings]
    assert read == 3 * [KIND], "what takes time and decides nothing is not computed"
    assert tuning.untried(store, row) == []
    empty = Store(store.folder / "none")
    assert [cell.name for cell in tuning.untried(empty, row)] == [
        "better~0", "better~1", "better~2",
    ]  # fmt: skip
    assert [c.row.name for c in settled(empty, table, "cpu")] == [
        "fedavg-ft", "local", "same",
    ]  # fmt: skip


def test_rows_with_trials_of_their_own_leave_out_different_settings(toy):
    table = toy[0]
    search = {"lr": [0.1, 0.2, 0.4], "momentum": [0.0, 0.5, 0.9]}
    rows = tuple(structs.replace(row, search=search) for row in table.rows)

    def tried(own):
        cells = replace(table, rows=rows, own_trials=own).cells("cpu")
        return [[tuple(values.values()) for values in tuning.combinations(cell)] for cell in cells]

    assert len({*map(str, tried(own=False))}) == 1
    apart = tried(own=True)
    assert len({*map(str, apart)}) == len(rows) and all(len({*each}) == 3 for each in apart)
    assert {*apart[0]} <= {*product(*search.values())}


def test_both_pages_explain_their_verdicts_and_say_how_settings_were_chosen():
    (beginning,) = re.findall(r"<h1>.*?(?=\{\{ grid)", page_template.TEMPLATE, re.DOTALL)
    beginning = " ".join(beginning.split())
    page = " ".join((HERE / "RESULTS.md").read_text("utf-8").split())
    for word in (*claims.VERDICTS, claims.DIVERGED, "p (Holm)", claims.COUNTS[-1]):
        assert f"<i>{word}</i>" in beginning, word
        assert re.search(rf"[*`]{re.escape(word)}[*`]", page), word
    (told,) = re.findall(r"No setting was chosen on test data: .*?\)", page)
    assert told in beginning and "clipping by sample)" in told


def test_the_settings_that_were_chosen_are_published(toy, tmp_path):
    table, store, _ = toy
    cell = next(c for c in table.cells("cpu") if c.row.name == "better")
    *_, third = tuning.trials(cell)
    store.save(third, diverged(third, 0, "training diverged"))
    lines = [*tuning.texts(store, settled(store, table, "cpu"))]
    second = " ".join(f"{key}={value}" for key, value in tuning.combinations(cell)[1].items())
    assert lines == [["better", "personalized", "60.0", "50.0 to 60.0, 1 diverged", second]]
    page = "\n".join(markdown(sections.section(store, table)))
    assert f"| better | personalized | 60.0 | 50.0 to 60.0, 1 diverged | `{second}` |" in page
    html_page.write(store, tmp_path / "page.html")
    assert f"<td>{second}</td>" in (tmp_path / "page.html").read_text()


def outcomes_of(toy):
    table, store, _ = toy
    cells = settled(store, table, "cpu")
    return [Outcome(cell, [store.find(cell, seed) for seed in range(3)]) for cell in cells]


def test_newcomers_stand_beside_those_that_trained(toy):
    table, store, base = toy
    few = (Reading(f"newcomers, few-shot {count}") for count in (20, 5))
    also = (Reading(f"{KIND}_unseen"), *few)
    later = replace(table, rows=tuple(structs.replace(row, also=also) for row in table.rows))
    unseen = {"same": [0.5, 0.7], "local": [0.9], "fedavg-ft": [0.2, 0.4, 0.6]}
    for cell in settled(store, later, "cpu"):
        for seed, value in enumerate(unseen.get(cell.row.name, [])):
            run = store.find(cell, seed)
            few = {"newcomers, few-shot 5": value / 2} if cell.row.name == "same" else {}
            store.save(cell, replace(run, figures=run.figures | few | {f"{KIND}_unseen": value}))
    part = sections.section(store, later)
    assert part.newcomers_heads == ["method", "seen", "unseen", "difference", "few-shot 5"]
    seen = {"same": np.mean([base[0].mean(), base[1].mean()])}
    seen["fedavg-ft"] = np.mean([values.mean() for values in base.values()])
    assert [line[0] for line in part.newcomers] == ["local", "same", "fedavg-ft"]
    for name, mean, few in (("same", 0.6, "30.0"), ("fedavg-ft", 0.4, "")):
        gap = f"{100 * (mean - seen[name]):+.1f}"
        wanted = [name, f"{100 * seen[name]:.1f}", f"{100 * mean:.1f}", gap, few]
        assert wanted in part.newcomers
    assert "over seeds 0,1,2 (local: 0, same: 0,1)" in part.newcomers_said
    assert any(title.startswith("local: newcomers 90.0,") for title in titles_of(part.figures))
    page = "\n".join(markdown(part))
    assert all(f"| {' | '.join(line)} |" in page for line in part.newcomers)
    assert "unseen" not in "\n".join(markdown(sections.section(store, table)))


def titles_of(figures):
    """What stands under the mouse in some charts."""
    return [hit.title for chart in figures for hit in chart.hits]


def done_of(toy):
    table, store, _ = toy
    return [*outcomes(store, table, "cpu")]


def test_leads_are_drawn_where_the_differences_are(toy):
    table, _, base = toy
    by_seed = {"local": [], "better": []}
    for name, means in by_seed.items():
        runs = {
            run.seed: run for o in outcomes_of(toy) if o.cell.row.name == name for run in o.runs
        }
        means += [
            100 * float(np.mean(np.array(runs[seed].clients[KIND]) - values))
            for seed, values in base.items()
        ]
    found = {table.name: yardstick.compare(outcomes_of(toy), "fedavg-ft", "local")}
    methods = leads.by_method(found)
    assert [*methods] == ["better", "same", "local"], "the yardstick has no line of its own"
    figure = leads.draw(found, methods, {table.name: ("Toys", "tuned FedAvg")})
    assert "mean place" in figure.get_supxlabel(), "the order of the methods is told"
    (axes,) = figure.axes
    accuracy = 100 * np.mean([values.mean() for values in base.values()])
    told = axes.get_title(), axes.get_xlabel()
    assert told == ("Toys", f"tuned FedAvg: {accuracy:.1f} %")
    assert [label.get_text() for label in axes.get_yticklabels()] == [*methods]
    dots = {
        int(line.get_ydata()[0]): line for line in axes.get_lines() if line.get_marker() != "None"
    }
    mean = np.mean(by_seed["better"])
    assert mean > leads.HIGH and dots[0].get_xdata()[0] == leads.HIGH, "an arrow at the edge"
    assert f"{mean:+.0f}" in {text.get_text() for text in axes.texts}
    assert dots[1].get_xdata()[0] == 0 and dots[1].get_markerfacecolor() == "white"
    assert dots[2].get_xdata()[0] == pytest.approx(max(np.mean(by_seed["local"]), leads.LOW))
    assert dots[2].get_color() == leads.RED


def test_an_interval_that_goes_on_beyond_an_edge_says_so(toy):
    """By hand: 0, 0 and 9 have the mean 3 and the interval 3 ± 4.303 x 3, which is -9.9 to 15.9."""
    found = yardstick.compare(outcomes_of(toy), "fedavg-ft", "local")
    same = next(line for line in found.lines if line.name == "same")

    def arrows(*gaps):
        line = replace(same, gap=Figure(gaps, None))
        (axes,) = leads.draw({"t": found}, {"same": {"t": line}}, {"t": ("", "")}).axes
        lines = [line for line in axes.get_lines() if line.get_marker() in ("<", ">")]
        return {line.get_marker(): line.get_xdata()[0] for line in lines}

    assert arrows(0.0, 0.0, 9.0) == {">": leads.HIGH}
    assert arrows(0.0, 0.0, -9.0) == {"<": leads.LOW, ">": leads.HIGH}
    assert arrows(0.0, 0.0, 1.0) == {}


def test_methods_are_compared_client_by_client(toy):
    base = np.concatenate([*toy[2].values()])
    found = yardstick.compare(outcomes_of(toy), "fedavg-ft", "local")
    lines = {line.name: line for line in found.lines}
    better, same, local = lines["better"], lines["same"], lines["local"]
    assert better.accuracy.mean == pytest.approx(100 * base.mean() + 10)
    assert better.gap.mean == pytest.approx(10) and better.verdict == "better"
    assert better.gap.half == pytest.approx(stats.t.ppf(0.975, 2) * 0.1 / 3**0.5)
    assert same.corrected is None, "no test"
    assert same.verdict == "inconclusive" and same.gap.mean == 0
    assert local.verdict == "worse" and local.below_yardstick == 100
    assert better.below_alone == better.below_yardstick == 0
    assert local.below_alone == same.below_yardstick == 0, "as good is not worse"
    by_seed = [100 * values.mean() for values in toy[2].values()]
    low, high = stats.ttest_1samp(by_seed, 0).confidence_interval()
    assert lines["fedavg-ft"].accuracy.half == pytest.approx((high - low) / 2)
    assert better.megabytes == 3.0
    deciles = [np.percentile(values + 0.1, 10) for values in toy[2].values()]
    assert better.decile == pytest.approx(100 * np.mean(deciles))
    assert better.rank == 1.0 and same.rank == 2.5 == lines["fedavg-ft"].rank and local.rank == 4.0
    said = found.sentence()
    assert said.startswith("Better than fedavg-ft (beyond the 95 % interval): 1 of 2 methods.")
    assert "better is better by 10.0 points, with 1.00 times the bytes" in said
    holm = "After Holm's correction for 2 comparisons (that of local is one of them): "
    assert f"Worse: 0. Inconclusive: 1. {holm}1 better, 0 worse." in said, "local is in neither"
    assert "difference from fedavg-ft" in found.heads and "worse than local" in found.heads
    rows = {row[0]: dict(zip(found.heads, row, strict=True)) for row in found.rows()}
    assert [*rows] == [line.name for line in found.lines]
    assert rows["better"]["verdict"] == "better" and rows["fedavg-ft"]["verdict"] == ""


def test_equal_ranks_are_tested_over_the_seeds_and_methods_of_the_table(toy):
    found = yardstick.compare(outcomes_of(toy), "fedavg-ft", "local")
    # ranks in each of 3 seeds: 1 (better), 2.5 and 2.5 (same, fedavg-ft), 4 (local); a tie of two
    squares = 12 * (3**2 + 7.5**2 + 7.5**2 + 12**2) / (3 * 4 * 5) - 3 * 3 * 5
    corrected = squares / (1 - 3 * (2**3 - 2) / (3 * 4 * (4**2 - 1)))
    assert found.same_ranks == pytest.approx(stats.chi2.sf(corrected, 3))
    assert found.sentence().endswith(f" p = {found.same_ranks:.2g}.")
    better, *without = sorted(outcomes_of(toy), key=lambda outcome: outcome.cell.row.name)
    fewer = [*without, replace(better, runs=better.runs[:2])]  # it is not compared
    one, two = (yardstick.compare(given, "fedavg-ft", "local") for given in (fewer, without))
    assert one.same_ranks == two.same_ranks is not None


def test_before_anybody_has_trained_alone_the_other_columns_are_there(toy):
    rest = [outcome for outcome in outcomes_of(toy) if outcome.cell.row.name != "local"]
    found = yardstick.compare(rest, "fedavg-ft", "local")
    clients = {
        o.cell.row.name: np.array([r.clients[o.cell.row.reads] for r in o.runs]) for o in rest
    }
    for line in found.lines:
        gap = clients[line.name] - clients["fedavg-ft"]
        assert line.gap.mean == pytest.approx(100 * gap.mean())
        assert line.below_yardstick == pytest.approx(100 * (gap < 0).mean())
        assert dict(zip(found.heads, line.texts(), strict=True))["worse than local"] == "-"
    assert f"of {len(rest) - 1} method" in found.sentence()
    assert "After Holm's correction for 1 comparison: " in found.sentence()


def test_a_method_without_all_seeds_is_named_and_not_compared(toy, tmp_path):
    table, store, _ = toy
    (store.folder / "cpu" / table.name / "better-s2.json").unlink()
    lines = "\n".join(markdown(sections.section(Store(store.folder), table)))
    assert "0 of 1 method." in lines and "| better | 6" not in lines
    html_page.write(Store(store.folder), tmp_path / "results.html")
    said = "Not compared, because some seeds have not run: better (has seeds 0,1)."
    assert said in lines and said in (tmp_path / "results.html").read_text()


@pytest.mark.parametrize(("row", "seeds", "said"), [
    ("better", (1,), "Not compared, because training diverged: better (with seed 1)."),
    ("better", (0, 1, 2), "Not compared, because training diverged: better (with seeds 0,1,2)."),
    ("same", (0, 2), "Not compared, because training diverged: same (with seeds 0,2)."),
    ("local", (2,), "Training diverged with seeds that are not compared: local (seed 2)."),
])  # fmt: skip
def test_a_method_that_diverged_is_named_with_its_seeds(toy, row, seeds, said):
    table, store, _ = toy
    cell = next(cell for cell in settled(store, table, "cpu") if cell.row.name == row)
    for seed in seeds:
        store.save(cell, diverged(cell, seed, "training diverged"))
    part = sections.section(store, table)
    assert part.left_out == said and said in "\n".join(markdown(part))
    assert (row in [line[0] for line in part.rows]) == (row == "local")
    others = {"better": ["better - fedavg-ft", "better - local"], "same": ["local - same"]}
    told = {line[1].partition(" (")[0]: (line[2], line[-1]) for line in part.claims}
    expected = others.get(row, [*others["better"][1:], *others["same"]])
    left = 3 - len(seeds)
    assert {rows for rows, (_, ran) in told.items() if "diverged" in ran} == {*expected}
    assert {told[rows][1] for rows in expected} == {f"{left}, {len(seeds)} diverged"}
    assert all((told[rows][0] == "diverged") == (left == 0) for rows in expected)


def test_rows_without_a_seed_in_common_are_shown_and_not_compared(toy, tmp_path):
    table, store, _ = toy
    cells = {cell.row.name: cell for cell in settled(store, table, "cpu")}
    other = Store(tmp_path / "other")
    for seed, name in enumerate(("fedavg-ft", "local")):
        other.save(cells[name], store.find(cells[name], seed))
    lines = "\n".join(markdown(sections.section(other, table)))
    assert "| fedavg-ft | 0 |" in lines and "| local | 1 |" in lines and "Better than" not in lines
    part = sections.section(other, table)
    assert part.state.endswith("needs a seed that both fedavg-ft and local have run with")
    assert [(row[:2], row[3]) for row in part.rows] == [
        ([name, str(seed)], f"{100 * np.mean(store.find(cells[name], seed).clients[KIND]):.2f}")
        for name, seed in (("fedavg-ft", 0), ("local", 1), ("same", 0))  # `same` is fedavg-ft
    ]
    html_page.write(other, tmp_path / "page.html")
    assert "Not run yet" not in (tmp_path / "page.html").read_text()


def test_a_yardstick_alone_has_figures_and_no_differences(toy, tmp_path, monkeypatch, capsys):
    table, store, _ = toy
    table = replace(table, rows=table.rows[:3])  # `same` would have run, too
    other = Store(tmp_path / "other")
    (cell,) = (cell for cell in table.cells("cpu") if cell.row.name == "fedavg-ft")
    other.save(cell, store.find(cell, 0))
    part = sections.section(other, table)
    assert [row[0] for row in part.rows] == ["fedavg-ft"] and "0 of 0 methods." in part.said
    assert "Difference from" not in " ".join(chart.title for chart in part.figures)
    monkeypatch.setattr(files, "tables", lambda: {table.name: table})
    drawn = ["leads", table.name, "--plot", str(tmp_path / "leads.png")]
    assert __main__.main(["--results", str(other.folder), *drawn]) == 1
    assert "no method but the yardstick has run" in capsys.readouterr().err
    assert not (tmp_path / "leads.png").exists()


def test_commands_know_the_settings_that_were_chosen(toy, tmp_path, monkeypatch, capsys):
    table, store, _ = toy
    monkeypatch.setattr(files, "tables", lambda: {table.name: table})
    (cell,) = (cell for cell in table.cells("cpu") if cell.row.name == "better")
    for folder, told in ((store.folder, False), (tmp_path / "none", True)):
        options = ["--results", str(folder), "config", table.name, "better", "--seed", "2"]
        assert __main__.main(options) == 0
        text = capsys.readouterr().out
        assert ("whose settings depend on runs that are not done" in text) == told
        flat = tomllib.loads(text)
        best = tuning.combinations(cell)[1]
        assert ({key: flat.get(key) for key in best} == best) != told and flat["seed"] == 2
    assert set(communication.results_of(store, table, "cpu")) == set(NAMES)


def test_seeds_beyond_the_tables_own_count(toy):
    table, store, _ = toy
    plain = replace(table, yardstick="", alone="")
    (cell,) = (cell for cell in plain.cells("cpu") if cell.row.name == "same")
    store.save(cell, scored(cell, 5, [0.25]))
    (outcome,) = (o for o in outcomes(store, plain, "cpu") if o.cell.row.name == "same")
    assert [run.seed for run in outcome.runs] == [0, 1, 2, 5]
    scales = {"cpu": Scale(seeds="0", rows="same")}
    (shared,) = outcomes(store, replace(plain, name="another", scales=scales), "cpu")
    assert [run.seed for run in shared.runs] == [0, 1, 2, 5]  # though that table asks for one


def test_the_csv_has_the_figures_and_costs_of_each_run(toy):
    _, store, _ = toy
    (path,) = write_csv(store)
    with path.open(newline="") as file:
        lines = {(line["row"], int(line["seed"])): line for line in csv.DictReader(file)}
    runs = store.runs()
    assert len(lines) == len(runs)
    for run in runs:
        line = lines[run.cell, run.seed]
        told = run.figures | run.costs | {"seconds": run.seconds}
        assert {name: float(line[name]) for name in told} == told
        assert (line["strategy"], line["config"]) == (run.config["strategy"], run.digest)


def test_a_client_is_named_by_its_id_in_every_line(toy):
    table, _, base = toy
    titles = titles_of(charts.of_clients(table, done_of(toy)))
    worst_first = np.argsort(base[0])
    for name, gain in (("same", 0.0), ("better", 0.1)):
        assert [title for title in titles if title.startswith(f"{name}, ")] == [
            f"{name}, seed 0, client {client}: {100 * (base[0][client] + gain):.2f} % "
            f"of {30 + client} test samples, rank {rank} of 30"
            for rank, client in enumerate(worst_first, 1)
        ]


@pytest.mark.parametrize(("count", "main", "expected"), [
    (3, "1", ["102"]), (8, "7", ["70123456"]), (10, "3", ["30124567", "389"]),
    (9, "", ["01234567", "8"]), (1, "0", ["0"]), (0, "0", []),
])  # fmt: skip
def test_the_row_that_a_table_is_about_is_in_each_of_its_charts(count, main, expected):
    names = [str(number) for number in range(count)]
    assert charts.shared_out(names, main) == [[*names] for names in expected]


def test_charts_side_by_side_have_the_same_axis():
    """Rows r0 to r8 end at 1, 10, ..., 80 %: two charts, both up to 80."""
    table = Table("t", "T", "base")
    lines = {f"r{n}": [(1.0, 0.0), (2.0, max(10.0 * n, 1.0))] for n in range(9)}
    made = [*charts.drawn(table, lines, "accuracy", "round")]
    assert [chart.title for chart in made] == ["accuracy (1 of 2)", "accuracy (2 of 2)"]
    first, second = ([tick.label for tick in chart.y_ticks] for chart in made)
    assert first == second == ["0", "20", "40", "60", "80"]


def test_tables_that_cannot_be_written_stay_whole(toy, monkeypatch):
    _, store, _ = toy
    (path,) = write_csv(store)
    before = path.read_bytes()
    assert before.count(b"\n") == 1 + len(store.runs())
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(Path, "write_bytes", Mock(side_effect=full))
    with pytest.raises(RunError, match=r"cannot write .*cpu\.csv: No space left"):
        write_csv(store)
    assert path.read_bytes() == before


def test_claims_are_held_against_paired_seeds(toy):
    table, store, base = toy
    sure, more, less = claims.judged(store, table)
    assert sure.rows == "better - fedavg-ft" and sure.seeds == (0, 1, 2)
    assert sure.gap.text("+") == "+10.00 ± 0.25" and sure.gap.published == 0
    cells = {cell.row.name: cell for cell in settled(store, table, "cpu")}
    alone = [np.mean(store.find(cells["local"], s).clients["accuracy_personalized"]) for s in base]
    gaps = 100 * (np.array(alone) - [values.mean() for values in base.values()])
    low, high = stats.ttest_1samp(gaps, 0).confidence_interval()
    gap = less.gap
    assert (gap.mean - gap.half, gap.mean + gap.half) == pytest.approx((low, high))
    assert less.says == "ours" and high < 0
    assert less.rows == "local - same (personalized)"
    assert [line.verdict for line in (sure, more, less)] == ["yes", "yes", "no, the reverse"]
    assert [line[0] for line in claims.lines([sure, more, less])] == [
        "<all> are better", "", "ours",
    ]  # fmt: skip
    verdicts = claims.COUNTS[2:]
    assert verdicts == (
        "yes", "no, the reverse", "inconclusive", "one seed",
        "size as published", "clear after Holm",
    )  # fmt: skip
    counts = [*claims.counts([sure, more, less])]
    assert counts == [
        ["the paper", "2", "", "", "", "0 of 2", "2"], ["us", "", "1", "", "", "", "1"],
    ]  # fmt: skip
    of_size = [replace(sure, gap=replace(sure.gap, published=p)) for p in (9.8, 10.3, None, 10.2)]
    (line,) = claims.counts([*of_size, replace(less, says="")])
    assert line[1:3] == ["4", "1"] and line[5] == "2 of 3", "10.00 ± 0.25 has 9.8 and 10.2"
    alone = stats.ttest_1samp(gaps, 0).pvalue
    assert less.corrected == pytest.approx(alone), "the third of three: its own"
    assert [*claims.counts([])] == []
    mixed = Row("mixed", 'strategy="local"', "accuracy_initial")
    apart = replace(table, rows=(*table.rows[:1], mixed), claims=(Claim("", "mixed", NAMES[:1]),))
    own = store.find(cells["local"], 0)
    store.save(apart.cells("cpu")[1], replace(own, cell="mixed", figures={"accuracy_initial": 0.5}))
    (line,) = claims.judged(store, apart)
    assert line.rows == "mixed - fedavg-ft (initial - personalized)", "it is told"
    better = structs.replace(cells["better"].row, published=75.5)
    rows = tuple(better if row.name == "better" else row for row in table.rows)
    (line, _, _) = claims.judged(store, replace(table, rows=rows))
    assert line.gap.published == 5.5 and line.texts()[5] == "+5.50"
    told = Claim("", "better", ("local", "same"), published={"same": 6.89})
    found = [*claims.judged(store, replace(table, claims=(told,)))]
    assert [line.gap.published for line in found] == [0.0, 6.89], "else that of the rows"
    kept = structs.replace(told, columns="plain*,")  # "": a table without columns has one
    assert len(claims.judged(store, replace(table, claims=(kept,)))) == 2
    lost = structs.replace(told, columns="plain*")
    assert claims.judged(store, replace(table, claims=(lost,))) == []
    level = replace(table, claims=(Claim("", "same", ("fedavg-ft",)),))
    assert [x.verdict for x in claims.judged(store, level)] == ["inconclusive"]


def test_a_claim_needs_runs_of_both_rows_and_more_than_one_seed(toy, tmp_path):
    table, store, _ = toy
    cells = {cell.row.name: cell for cell in settled(store, table, "cpu")}
    other = Store(tmp_path / "other")
    other.save(cells["local"], store.find(cells["local"], 0))
    assert [*claims.judged(other, table)] == []
    other.save(cells["same"], store.find(cells["same"], 1))
    assert [*claims.judged(other, table)] == [], "no seed in common"
    other.save(cells["same"], store.find(cells["same"], 0))
    (one,) = claims.judged(other, table)
    assert one.verdict == "one seed" and one.gap.half is None and "±" not in one.texts()[3]


def test_a_table_that_has_run_at_smoke_only_is_not_judged(toy, tmp_path):
    table, store, _ = toy
    smoke, other = replace(table, scales={"smoke": Scale()}), Store(tmp_path / "other")
    for cell in table.cells("cpu"):
        if cell.row.name in ("local", "same"):
            for seed in range(3):
                run = replace(store.find(cell, seed), scale="smoke")
                other.save(replace(cell, table=smoke, scale="smoke"), run)
    assert claims.best_scale(other, smoke) == "smoke" and [*claims.judged(other, smoke)] == []


@pytest.mark.parametrize("seed", range(5))
def test_a_corrected_value_is_that_of_the_step_down_test(seed):
    """Holm's test as he wrote it: go through the sorted p-values until one is above a / (m - i)."""
    draws = np.random.default_rng(seed)
    gaps = [Figure(tuple(draws.normal(mean, 1.0, 5)), None) for mean in (0, 0, 1, 2, 3, 9)]
    gaps.insert(2, Figure((4.0,), None))  # one seed
    plain = {i: stats.ttest_1samp(g.values, 0).pvalue for i, g in enumerate(gaps) if i != 2}
    corrected = significance.holm(gaps)
    assert corrected[2] is None
    for level in (0.001, 0.01, 0.05, 0.2):
        rejected = set()
        for place, index in enumerate(sorted(plain, key=plain.__getitem__)):
            if plain[index] > level / (len(plain) - place):
                break
            rejected.add(index)
        assert {i for i, value in enumerate(corrected) if (value or 2.0) <= level} == rejected


ALIKE = [(value, value, value * (1 + 1e-15)) for value in (0.0, 1.5, -1e-12, 0.1 + 0.2, 1e7)]


@pytest.mark.parametrize("values", [*ALIKE, (2.8e-14, 2.8e-14, 2.9e-14)])  # of 80 points less 80
def test_the_same_difference_with_all_seeds_is_no_test(values):
    """As in `fedapps compare`; so others are not corrected for it. Rounding is no difference."""
    same = Figure(values, None)
    apart = Figure((1.0, 2.0, 4.0), None)
    plain = stats.ttest_1samp(apart.values, 0).pvalue
    assert significance.p_value(same) is None and same.sign == 0
    assert significance.holm([same, apart]) == [None, pytest.approx(plain)]
    judgement = claims.Judgement("", "", (0, 1, 2), same)
    assert judgement.verdict == "inconclusive" and not judgement.clear


def test_the_page_has_every_table_and_figure_and_no_script(toy, tmp_path, monkeypatch):
    table, store, _ = toy
    path = tmp_path / "results.html"
    html_page.write(store, path)
    text = path.read_text()
    assert "Toy &lt;b&gt;" in text and "<script" not in text and "http://" not in text
    assert text.count("<svg") == text.count("<figure>") == 3  # difference, clients, bytes
    assert "Better than fedavg-ft (beyond the 95 % interval)" in text
    assert "<td>&lt;all&gt; are better</td>" in text and 'href="#claims"' in text
    link = '<td><a href="#benchmark-toy">Toy &lt;b&gt;</a></td>'
    assert f"{link}\n<td>the paper</td>\n<td>2</td>" in text
    assert text.count("better, seed 0, client ") == 30, "clients are shown on hover"
    plain = replace(table, yardstick="", alone="")
    part = sections.section(store, plain)
    assert part.heads[3:6] == ["ours", "published", "difference"]
    assert any("published 70.00" in title for title in titles_of(part.figures))
    monkeypatch.setattr(html_page, "tables", lambda: {plain.name: plain})
    html_page.write(store, path)
    assert "<td>no <code>server</code></td>" in path.read_text(), "a note"
    untouched = sections.section(Store(tmp_path / "none"), plain)
    assert untouched.rows == [] and untouched.state.startswith("0 of 4 rows have run")


SEEN = """(page) => ({
  charts: Object.fromEntries([...page.querySelectorAll("article[id]")].map((article) =>
    [article.id, [...article.querySelectorAll("figure svg")].map((svg) => {
      const box = svg.getBoundingClientRect();
      return box.width > 250 && box.height > 30 && svg.querySelectorAll("path, circle").length > 0;
    })])),
})"""


@pytest.mark.slow
def test_a_browser_shows_the_page_in_dark_colours(toy, tmp_path):
    path = tmp_path / "results.html"
    html_page.write(toy[1], path)
    for width, seen in measured(path, tmp_path, SEEN, boxes=".scroll", scheme=DARK).items():
        assert seen["charts"] == {toy[0].name: [True] * 3}
        assert seen["scroll"] == int(width) and seen["wide"] == []
        assert sum(seen["back"]) < 3 * 128


@pytest.mark.slow
def test_a_browser_shows_a_figure_for_every_table_that_has_results(tmp_path):
    stored = {path.stem for path in (HERE / "results" / "cpu").glob("*.jsonl")}
    path = tmp_path / "results.html"
    html_page.write(Store(HERE / "results"), path)
    for width, seen in measured(path, tmp_path, SEEN, boxes=".scroll").items():
        assert stored and stored <= {name for name, charts in seen["charts"].items() if charts}
        assert all(all(charts) for charts in seen["charts"].values())
        assert seen["scroll"] == int(width) and seen["wide"] == []
        assert sum(seen["back"]) > 3 * 128


@pytest.mark.slow
def test_long_tables_are_whole_on_paper(tmp_path):
    path = tmp_path / "results.html"
    html_page.write(Store(HERE / "results"), path)
    for seen in measured(path, tmp_path, PRINTED, boxes=".scroll", widths=(1280,)).values():
        assert seen["scrolled"] > 0
        assert (seen["cut"], seen["signs"]) == (0, ["exact"])
