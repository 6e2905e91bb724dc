"""The key `scores` of a node-config: a device that trains, and keeps its scores to itself."""

from pathlib import Path

import pytest
from safetensors.numpy import load_file

from fedapps.core import config
from fedapps.core.errors import RunError
from fedapps.device import personalized
from fedapps.engine import checkpoint
from fedapps.method import local
from fedapps.report import directory
from fedapps.report.page.facts import tiles_of
from fedapps.report.page.reading import RunFiles
from fedapps.report.summary import print_summary, unseen_columns

RUN = 'strategy="fedper" num-rounds=2 max-failures=0'
KEPT = "keeps its scores to itself (scores=false in its node-config)"


@pytest.fixture
def withheld(read_csv):
    """Return withheld(folder) -> (round, client, detail) of each answer that was declined."""

    def found(folder):
        rows = read_csv(folder, "events.csv")
        return [(row["round"], row["client"], row["detail"])
                for row in rows if row["kind"] == "declined"]  # fmt: skip

    return found


def test_it_trains_and_the_metrics_are_those_of_the_others(
    nodes, device_run, read_csv, read_rounds, read_model, withheld
):
    """And it gets its personalized model, as it would with scores."""
    told = device_run(RUN, 'run-name="a"')
    path = Path(nodes[1]["state-dir"]) / personalized.FILE
    expected = load_file(path)
    path.unlink()
    nodes[1]["scores"] = False
    folder = device_run(RUN, 'run-name="b" client-state="reset"')
    assert withheld(folder) == [("1", "1", KEPT), ("2", "1", KEPT)]
    for row, other in zip(read_rounds(folder), read_rounds(told), strict=True):
        assert (row["clients"], row["failures"], row["evaluated"]) == (3, 0, 2)
        assert row["train_loss"] == other["train_loss"]
    rows = {name: read_csv(name, "clients.csv") for name in (folder, told)}
    assert rows[folder] == [row for row in rows[told] if row["client"] != "1"]
    for one, other in ((load_file(path), expected), (read_model(folder), read_model(told))):
        assert one.keys() == other.keys()
        assert all((one[key] == other[key]).all() for key in one)


def test_a_run_in_which_nobody_tells_scores_goes_on_without(
    nodes, device_run, read_rounds, withheld, capsys
):
    for node in nodes:
        node["scores"] = False
    folder = device_run(RUN, "num-rounds=4")
    assert len(withheld(folder)) == 4 * len(nodes)
    for row in read_rounds(folder):
        assert row["clients"] == 3 and row["train_loss"] > 0
        assert row["accuracy_personalized"] is row["accuracy_initial"] is None
    line = "round 4: no scores: all devices that were asked keep theirs to themselves"
    assert line in capsys.readouterr().out


def test_a_newcomer_tells_scores_where_nobody_else_does(nodes, device_run, read_csv, capsys):
    """Only the difference to the others is not known."""
    nodes[0]["scores"] = nodes[1]["scores"] = False
    folder = device_run(RUN, 'unseen-clients="2"')
    (row,), run = read_csv(folder, "unseen.csv"), RunFiles.read(folder)
    before, after = (float(row[f"accuracy_{when}"]) for when in ("initial", "personalized"))
    found = [run.summary[name] for name in unseen_columns(run.lead)]
    assert found == [1, before, after, None]
    print_summary(run.summary, config.read(config.stored(folder)), run.columns)
    told = f"accuracy of 1 newcomer {before:.4f} initial, {after:.4f} personalized over all test"
    assert told in " ".join(capsys.readouterr().out.split())
    (tile,) = [tile for tile in tiles_of(run) if "newcomer" in tile.label]
    assert (tile.value, tile.note) == (f"{100 * after:.1f} %", "")


def test_a_run_in_which_nobody_tells_scores_has_its_end(nodes, device_run, read_rounds):
    """Also if it is killed before its summary, and no earlier checkpoint is left."""
    for node in nodes:
        node["scores"] = False
    folder = device_run(RUN, "checkpoint-every=2")
    assert checkpoint.rounds(folder) == [2]
    before = read_rounds(folder)
    (folder / "summary.json").unlink()
    assert device_run(RUN, f'checkpoint-every=2 resume="{folder}"') == folder
    assert directory.has_finished(folder) and read_rounds(folder) == before


def test_a_score_without_personalization_is_no_end_either(nodes, device_run, monkeypatch):
    monkeypatch.setattr(checkpoint, "KEPT", 100)
    for node in nodes:
        node["scores"] = False
    folder = device_run(RUN, 'num-rounds=3 evaluate-every=0 evaluate-rounds="2"')
    (folder / "summary.json").unlink()
    (folder / "checkpoint/round-000003.fedapps").unlink()
    models = [Path(node["state-dir"]) / personalized.FILE for node in nodes]
    for model in models:
        model.unlink()
    device_run(RUN, f'num-rounds=2 evaluate-every=0 evaluate-rounds="2" resume="{folder}"')
    assert all(model.exists() for model in models)


def test_others_that_fail_end_no_run_as_they_are_not_all(
    nodes, device_run, monkeypatch, read_csv, withheld
):
    """One that tells its scores could else end a run in which all others withhold theirs.

    Of a failure in the evaluation, which can depend on the samples, a device that withholds them
    tells nothing either.
    """
    monkeypatch.setattr(local, "evaluate_round", lambda *_: 1 / 0)
    with pytest.raises(RunError, match=r"3 of 3 clients failed \(all failed\); client 0: ZeroDiv"):
        device_run(RUN, "max-failures=-1 num-rounds=9")
    nodes[1]["scores"] = False
    folder = device_run(RUN, 'run-name="b" client-state="reset" max-failures=-1 num-rounds=4')
    assert withheld(folder) == [(str(round_), "1", KEPT) for round_ in range(1, 5)]
    events = read_csv(folder, "events.csv")
    failed = [(row["round"], row["client"]) for row in events if row["kind"] == "failure"]
    assert failed == [(str(round_), client) for round_ in range(1, 5) for client in ("0", "2")]
    log = Path(nodes[1]["state-dir"]) / "log.txt"
    assert "ZeroDivisionError" in log.read_text("utf-8")
