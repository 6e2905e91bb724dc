"""The LaTeX table of a comparison, read back and held against pandas on rounds.csv."""

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import fedapps
from fedapps import cli
from fedapps.compare.comparison import compare
from fedapps.compare.latex import escaped, latex
from tests.support.made_runs import scored_run


def read(latex):
    """Return head, rows and the bold cells' places of a tabular, its comments left out."""
    lines = [line for line in latex.splitlines() if not line.startswith("%")]
    assert re.fullmatch(r"\\begin\{tabular\}\{lr+\}", lines[0])
    assert [lines[1], lines[3], lines[-2]] == [r"\toprule", r"\midrule", r"\bottomrule"]
    assert lines[-1] == r"\end{tabular}" and latex.count("{") == latex.count("}")
    rows = [re.split(r" & ", line.removesuffix(r" \\")) for line in (lines[2], *lines[4:-2])]
    assert {len(row) for row in rows} == {len(lines[0].split("{")[-1].strip("}"))}
    bold = {(y, x) for y, row in enumerate(rows) for x, c in enumerate(row) if r"\textbf" in c}
    plain = [[re.sub(r"\\textbf\{(.*)\}", r"\1", cell) for cell in row] for row in rows]
    return plain[0], plain[1:], bold


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Three methods with two seeds each; the first and the last are equally good at first."""
    folder = tmp_path_factory.mktemp("runs")
    draws = np.random.default_rng(1)
    scores = {
        (m, s): draws.uniform(0.2, 0.9, 2) for m in ("fedavg", "fedper", "fedrep") for s in (0, 1)
    }
    for seed in (0, 1):
        scores["fedrep", seed][0] = scores["fedavg", seed][0] = 0.95 - seed / 10
    return [
        scored_run(folder, f"{m}-{s}", f'strategy="{m}" seed={s}', scores=[pair])
        for (m, s), pair in scores.items()
    ]  # fmt: skip


def test_means_and_deviations_are_those_of_pandas_and_the_best_is_bold(runs):
    last = pd.concat([pd.read_csv(path / "rounds.csv").tail(1) for path in runs])
    figures = 100 * last[["accuracy_initial", "accuracy_personalized"]]
    grouped = figures.groupby([path.name.partition("-")[0] for path in runs])
    head, rows, bold = read(fedapps.compare(runs).to_latex())
    assert head == ["method", r"initial (\%)", r"personalized (\%)"]
    for method, *cells in rows:
        mean, std = grouped.mean().loc[method], grouped.std(ddof=1).loc[method]
        assert cells == [rf"{m:.2f} $\pm$ {s:.2f}" for m, s in zip(mean, std, strict=True)]
    place = {row[0]: number for number, row in enumerate(rows, 1)}
    best = grouped["accuracy_personalized"].mean().idxmax()
    assert bold == {(place["fedavg"], 1), (place["fedrep"], 1), (place[best], 2)}


def test_the_command_prints_the_same_and_nothing_else(runs, tmp_path, capsys):
    words = ["compare", *map(str, runs), "--output", str(tmp_path / "out"), "--latex"]
    assert cli.main(words) == 0
    captured = capsys.readouterr()
    assert captured.out == fedapps.compare(runs).to_latex()
    assert captured.err.split() == [
        str(tmp_path / "out" / n) for n in ("runs.csv", "groups.csv", "curves.png")
    ]


def test_less_can_be_better(tmp_path):
    paths = [
        scored_run(tmp_path, name, f'strategy="{name}"', scores=[(0.5, score)])
        for name, score in (("fedavg", 0.25), ("fedper", 0.75))
    ]
    found = compare(paths)
    errors = replace(found.metric, unit="", short="MSE", more_is_better=False)
    head, rows, bold = read(latex(replace(found, metric=errors)))
    assert head == ["method", "initial (MSE)", "personalized (MSE)"]
    assert rows == [["fedavg", "0.5", "0.25"], ["fedper", "0.5", "0.75"]]
    assert bold == {(1, 1), (2, 1), (1, 2)}


def test_every_special_character_is_escaped():
    """LaTeX reads each of them back as itself."""
    back = {r"\textbackslash{}": "\\", r"\textasciitilde{}": "~", r"\textasciicircum{}": "^"}
    text = "a_b 50% $x$ {y} #1 & ~/^\\z"
    made = escaped(text)
    for command, letter in back.items():
        made = made.replace(command, f"<{ord(letter)}>")
    assert not re.search(r"(?<!\\)[&%$#_{}~^]", made)
    made = re.sub(r"\\([&%$#_{}])", r"\1", made)
    assert re.sub(r"<(\d+)>", lambda m: chr(int(m[1])), made) == text


def test_comments_name_the_rows_that_notes_name(runs):
    found, note = compare(runs), "not the same clients: 5 (A), 4 (C)"
    noted = latex(replace(found, notes=[note])).splitlines()
    assert noted[2:6] == ["% A: fedavg", "% B: fedper", "% C: fedrep", f"% {note}"]
    assert noted[6:] == latex(found).splitlines()[2:]
