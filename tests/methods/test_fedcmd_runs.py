"""Whole runs of FedCMD: votes, what is mixed, and who keeps which layer."""

import numpy as np
import pytest

from fedapps.core import registry
from fedapps.report.event_plots import read_categories
from strategies.fedcmd import VOTES
from tests.support.fits import fail_fits

FC = ("fc1", "fc2", "classifier")
RUN = 'strategy="fedcmd" model="lenet5" num-rounds=5 fedcmd.selection-fraction=0.4'


def events(folder, read_csv, kind):
    return [row for row in read_csv(folder, "events.csv") if row["kind"] == kind]


def test_votes_are_the_smallest_scores_and_the_majority_wins(serial_run, read_csv, fits):
    folder = serial_run(RUN)
    sent = {
        (u.client, r.plan.round): u.extras["scores/s"][1:] for *_, r, u in fits if r.plan.round <= 2
    }  # of fc1, fc2, classifier
    votes = {
        (int(e["client"]), int(e["round"])): e["detail"] for e in events(folder, read_csv, "vote")
    }
    assert votes.keys() == sent.keys() and len(votes) == 6
    for key, scores in sent.items():
        assert votes[key] == FC[int(np.argmin(scores))]
    chosen = [e["detail"] for e in events(folder, read_csv, "chosen")]
    for round_, winner in enumerate(chosen, 1):
        ballots = [vote for (_, t), vote in votes.items() if t == round_]
        assert ballots.count(winner) == max(map(ballots.count, ballots))
    (final,) = events(folder, read_csv, "personal-layer")
    assert final["round"] == "2" and final["detail"] == FC[max(map(FC.index, chosen))]  # 1 : 1
    table = read_categories(folder, VOTES)
    assert len(table[table["kind"] == "score"]) == 18 and table["value"].max() > 0


@pytest.mark.parametrize("weighting", ["cosine", "uniform"])
def test_bytes_of_both_phases(serial_run, fits, read_rounds, weighting, monkeypatch):
    """With l* = fc2: it stays, but a client's first model has it, and similarity needs it."""
    monkeypatch.setattr(registry.strategy_class("fedcmd"), "candidates", lambda self: ("fc2",))
    folder = serial_run(RUN, f'fedcmd.weighting="{weighting}"')
    initial = fits[0][0].workspace.initial
    total = 4 * sum(value.size for value in initial.values())
    phi_bytes = 4 * sum(value.size for key, value in initial.items() if key.startswith("fc2."))
    seen = set()
    for row in read_rounds(folder):
        clients = {update.client for *_, r, update in fits if r.plan.round == row["round"]}
        if row["round"] <= 2:
            assert row["phase"] == "train-warmup"
            assert row["bytes_down"] == 3 * total and row["bytes_up"] == 3 * (total + 4 * 4)
            continue
        fresh = len(clients - seen)
        seen |= clients
        assert row["bytes_down"] == 3 * (total - phi_bytes) + fresh * phi_bytes
        assert row["bytes_up"] == 3 * (total - phi_bytes * (weighting == "uniform"))


@pytest.mark.parametrize("layer", ["conv2", "fc1", "classifier"])
def test_a_personal_layer_stays(serial_run, fits, monkeypatch, layer):
    """What travels of l* are weights and biases, as a further array, and no BatchNorm of conv2."""
    monkeypatch.setattr(registry.strategy_class("fedcmd"), "candidates", lambda s: (layer,))
    serial_run(RUN)
    client, state, _, update = fits[-1]
    keys = client.layout.keys_of((layer,))
    assert {key.removeprefix("model/") for key in state if key.startswith("model/")} == set(keys)
    assert not set(keys) & set(update.arrays)
    if layer == "classifier":  # the last layer leaves nothing to mix
        assert not update.extras
        return
    trained = [key for key in sorted(keys) if key in client.layout.parameters]
    expected = np.concatenate([state["model/" + key].numpy().ravel() for key in trained])
    np.testing.assert_array_equal(update.extras["phi/layer"], expected)


def test_clients_that_fail(serial_run, monkeypatch, read_csv, read_rounds):
    """One fails in both phases: it has no vote, the others go on."""
    fail_fits(monkeypatch, lambda round_, client: client == 1)
    folder = serial_run(RUN, "fraction-train=1.0")
    assert [row["failures"] for row in read_rounds(folder)] == [1] * 5
    assert len(events(folder, read_csv, "vote")) == 2 * 5
    assert not any(e["client"] == "1" for e in events(folder, read_csv, "vote"))
    assert all(row["accuracy_initial"] for row in read_rounds(folder))


def test_a_fixed_layer_is_fedper_with_that_layer(serial_run):
    """Personal from round 1, all else averaged."""
    base = 'model="lenet5" num-rounds=3'
    one = serial_run(base, 'strategy="fedcmd" fedcmd.layer="fc1,fc2"')
    two = serial_run(base, 'strategy="fedper" fedper.personal-layers="fc1,fc2"')
    for name in ("clients.csv", "model.safetensors"):
        assert (one / name).read_bytes() == (two / name).read_bytes()
    assert not (one / "events.csv").read_text().count("vote")


def test_other_clients_keep_another_layer(serial_run, fits):
    serial_run(
        'strategy="fedcmd" model="lenet5" fedcmd.layer="fc2" fedcmd.other-layer="classifier" '
        'fedcmd.other-clients="1,4" num-rounds=3'
    )
    for client, state, _, update in fits:
        layer = "classifier" if client.client in (1, 4) else "fc2"
        assert {key.split("/")[1].partition(".")[0] for key in state} == {layer}
        assert layer not in {key.partition(".")[0] for key in update.arrays}
    assert {client.client for client, *_ in fits} & {1, 4}
