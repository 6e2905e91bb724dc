"""Files of a run whose data name their clients and classes: what they are used for knows them."""

import numpy as np
import pandas as pd
import pytest

import fedapps
from fedapps import cli
from fedapps.core.errors import RunError
from fedapps.engine import again
from fedapps.engine.checkpoint import Best
from fedapps.report import directory

CALLED = ("Nord", "Ost", "Sued", "Tiny")
KEYS = (
    'target-column="answer" client-column="who" partitioner="natural" num-clients=0 model="mlp"'
    ' strategy="fedavg" min-samples=8 lr=0.3 fraction-train=1.0'
)


@pytest.fixture
def data(tmp_path):
    """Return a table with names, one of samples to predict, and one of a newcomer."""
    who, draws = np.repeat(CALLED, 24), np.random.default_rng(0)
    target = np.arange(len(who)) % 2
    a, b = draws.normal(3 * target, 1, (2, len(who)))
    table = pd.DataFrame({"a": a, "b": b, "who": who, "answer": np.array(["no", "yes"])[target]})
    paths = tmp_path / "own.csv", tmp_path / "asked.csv", tmp_path / "mine.csv"
    for path, part in zip(paths, (table, table[["a", "b"]][:9], table[:24]), strict=True):
        part.to_csv(path, index=False)
    return paths


def test_a_file_of_a_run_with_named_newcomers_is_read(data, serial_run, tmp_path, capsys):
    """By `predict`, as the run predicts, and by `adopt`."""
    path, asked, mine = data
    folder = serial_run(f'dataset="{path}" {KEYS} num-rounds=1 unseen-clients="Ost,Tiny"')
    file = str(tmp_path / "shared.safetensors")
    assert cli.main(["export", str(folder), "--output", file]) == 0
    told = []
    for model in (str(folder), file):
        capsys.readouterr()
        assert cli.main(["predict", model, "--input", str(asked)]) == 0
        told.append(capsys.readouterr().out)
    assert told[0] == told[1] and "yes" in told[0]
    state = str(tmp_path / "state")
    assert cli.main(["adopt", "--model", file, "--data", str(mine), "--state-dir", state]) == 0


def test_the_best_round_of_a_run_has_its_names(data, serial_run, capsys, monkeypatch):
    """For `predict`, for `evaluate` and in Python, where its tables end with that round."""
    path, asked, _ = data
    scores, after = (0.5, 0.9, 0.1), Best.after
    monkeypatch.setattr(Best, "after", lambda self, r, _, *m: after(self, r, scores[r - 1], *m))
    chosen = 'validation-fraction=0.2 evaluate-on="validation" keep-best=true num-rounds=3'
    folder = serial_run(f'dataset="{path}" {KEYS} {chosen}')
    best, run = fedapps.load(folder / directory.BEST), fedapps.load(folder)
    assert best.class_names == ("no", "yes")
    assert [*best.rounds["round"]] == [1, 2] and len(run.rounds) == 3
    assert best.rounds.equals(run.rounds[:2])
    assert {*best.clients["round"]} == {1, 2} and {*best.clients["name"]} == {*CALLED}
    assert np.array_equal(best.predict("Nord", asked), best.predict(0, asked))
    ask = ["predict", str(best.path), "--input", str(asked), "--client"]
    capsys.readouterr()
    assert cli.main([*ask, "Nord"]) == 0
    assert "yes" in capsys.readouterr().out
    table = again.evaluate(best.path, {"evaluate-on": "test"})
    assert [*pd.read_csv(table)["name"]] == [*CALLED]
    with pytest.raises(RunError, match=r"best: has no classes\.csv: a best round has none"):
        _ = best.classes
