"""FedCMD: the score against SciPy, the votes, the mixtures, and the facts of its page."""

import numpy as np
import pytest
import torch
from scipy import stats

from clients.fedcmd import FedCMDClient, Moments, w2
from fedapps import config, registry
from fedapps.errors import RunError
from fedapps.plots import read_votes
from fedapps.workspace import Workspace
from strategies.fedcmd import cosine, most

FC = ("fc1", "fc2", "classifier")


def client_of(flat_config, *options, client=0):
    space = Workspace(config.read(flat_config('strategy="fedcmd" model="lenet5"', *options)))
    return FedCMDClient(space, client, {})


def scaled(values):
    """Min-max scaled values in float64; 0 where they are constant."""
    values = np.asarray(values, np.float64).ravel()
    width = np.ptp(values)
    return (values - values.min()) / width if width else np.zeros_like(values)


def distance(a, b):
    """W2 of two normal distributions by their quantile functions (numerically)."""
    q = (np.arange(200_000) + 0.5) / 200_000
    quantiles = [loc + scale * stats.norm.ppf(q) for loc, scale in (a, b)]
    return np.sqrt(np.mean((quantiles[0] - quantiles[1]) ** 2))


@pytest.mark.parametrize("encoding", ["index", "onehot"])
def test_score_by_scipys_gaussians(flat_config, encoding):
    client = client_of(flat_config, f'fedcmd.label-encoding="{encoding}"')
    x, y = client.train_data
    model, outputs = client.model.eval(), []
    with torch.no_grad():
        z = x
        for layer in model:
            z = layer(z)
            outputs.append(z.numpy())
    codes = y.numpy() / 9 if encoding == "index" else np.eye(10)[y.numpy()]
    labels = (codes.mean(), codes.std())
    inputs = stats.norm.fit(scaled(x.numpy()))
    gaps = [
        distance(g, labels) - distance(g, inputs)
        for g in (stats.norm.fit(scaled(out)) for out in outputs)
    ]
    plan = strategy_of(client).warmup_plan(1, 0)
    client.after_training(plan)
    expected = np.abs(np.diff(gaps))
    np.testing.assert_allclose(client.sends["scores/s"], expected, rtol=2e-3, atol=2e-5)
    assert client.sends["scores/s"].shape == plan.sends["scores/s"] == (4,)


def strategy_of(client):
    return registry.strategy_class("fedcmd")(client.workspace)


def test_score_does_not_depend_on_the_order_of_samples(flat_config):
    client = client_of(flat_config)
    plan = strategy_of(client).warmup_plan(1, 0)
    client.after_training(plan)
    first = client.sends["scores/s"]
    x, y = client.train_data
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(1))
    client.workspace._clients[0, "train"] = (x[order], y[order])
    client.after_training(plan)
    np.testing.assert_allclose(client.sends["scores/s"], first, rtol=1e-4, atol=1e-6)


def test_moments_of_parts_and_of_a_constant():
    values = torch.from_numpy(np.random.default_rng(0).normal(3, 2, 1000)).float()
    moments = Moments()
    for part in values.split(64):
        moments.add(part)
    assert moments.gaussian() == pytest.approx(stats.norm.fit(scaled(values)), rel=1e-6)
    constant = Moments()
    constant.add(torch.full((5,), 7.0))
    assert constant.gaussian() == (0.0, 0.0)
    assert w2((0.0, 0.0), (3.0, 4.0)) == 5.0


def test_ties_go_to_the_layer_nearer_the_output():
    names = ("conv1", "fc1", "fc2", "classifier")
    assert most(["fc1", "fc2", "fc2", "fc1"], names) == "fc2"
    assert most(["classifier", "fc1"], names) == "classifier"
    assert most(["fc1", "fc1", "classifier"], names) == "fc1"


# Whole runs ---------------------------------------------------------------------------------------

RUN = 'strategy="fedcmd" model="lenet5" num-rounds=5 fedcmd.selection-fraction=0.4'


def events(folder, read_csv, kind):
    return [row for row in read_csv(folder, "events.csv") if row["kind"] == kind]


def test_votes_are_the_smallest_scores_and_the_majority_wins(serial_run, read_csv, fits):
    folder = serial_run(RUN)
    sent = {
        (u.client, r.plan.round): u.further["scores/s"][1:] for *_, r, u in fits if u.further
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
    assert final["round"] == "2" and final["detail"] == most(chosen, FC)
    table = read_votes(folder)
    assert len(table[table["kind"] == "score"]) == 18 and table["score"].max() > 0


@pytest.mark.parametrize("weighting", ["cosine", "uniform"])
def test_phase_2(serial_run, fits, read_rounds, read_model, weighting, monkeypatch):
    """With l* = fc2: it stays; what comes before is averaged, what comes after is mixed."""
    monkeypatch.setattr(registry.strategy_class("fedcmd"), "candidates", lambda self: ("fc2",))
    folder = serial_run(RUN, f'fedcmd.weighting="{weighting}"')
    by_round = {
        t: {u.client: (r, u) for *_, r, u in fits if r.plan.round == t} for t in range(1, 6)
    }
    initial = fits[0][0].workspace.initial
    total = 4 * sum(value.size for value in initial.values())
    phi = [key for key in initial if key.startswith("fc2.")]
    phi_bytes = 4 * sum(initial[key].size for key in phi)
    seen = set()
    for row in read_rounds(folder):
        clients = set(by_round[row["round"]])
        if row["round"] <= 2:
            assert row["phase"] == "train-warmup"
            assert row["bytes_down"] == 3 * total and row["bytes_up"] == 3 * (total + 4 * 4)
            continue
        fresh = len(clients - seen)
        seen |= clients
        assert row["bytes_down"] == 3 * (total - phi_bytes) + fresh * phi_bytes
        assert row["bytes_up"] == 3 * (total - phi_bytes * (weighting == "uniform"))
    warm = by_round[3][min(by_round[3])][0].arrays
    model = read_model(folder)
    for key in phi:  # the server's copy of l* never changes
        np.testing.assert_array_equal(model[key], warm[key])
    states = {client.client: state for client, state, *_ in fits}
    kept = [state["model/" + phi[0]].numpy() for state in states.values() if state]
    assert not np.array_equal(kept[0], kept[1])
    after = [key for key in initial if key.startswith("classifier.")]
    weights = {c: len(fits[0][0].workspace.samples(c, "train")[1]) for c in range(6)}
    for round_ in (4, 5):
        before = by_round[round_ - 1]
        n = np.array([weights[j] for j in before], float)
        for client, (request, _) in by_round[round_].items():
            for key in set(initial) - set(phi):
                stack = np.stack([u.arrays[key] for _, u in before.values()]).astype(float)
                w = n
                seen_before = {c for t in range(3, round_) for c in by_round[t]}
                if weighting == "cosine" and key in after and client in seen_before:
                    mine = last_phi(by_round, client, round_, phi)
                    theirs = [flat(u.arrays, phi) for _, u in before.values()]
                    w = np.array([max(0, mine @ p / (norm(mine) * norm(p))) for p in theirs])
                expected = np.tensordot(w / w.sum(), stack, 1)
                np.testing.assert_allclose(request.arrays[key], expected, rtol=1e-4, atol=1e-6)


norm = np.linalg.norm


def flat(arrays, keys):
    return np.concatenate([arrays[key].astype(float).ravel() for key in keys])


def last_phi(by_round, client, before, phi):
    """What a client last sent of l* in phase 2."""
    rounds = [t for t in range(3, before) if client in by_round[t]]
    return flat(by_round[max(rounds)][client][1].arrays, phi)


def test_equal_personal_layers_mix_equally():
    draws = np.random.default_rng(0)
    a, b = draws.normal(size=(2, 50))
    assert cosine(a, a) == pytest.approx(1, abs=1e-6) == cosine(a, 3 * a)
    assert cosine(a, -a) == 0
    assert cosine(a, b) == pytest.approx(max(0, a @ b / norm(a) / norm(b)), abs=1e-6)


def test_the_last_layer_leaves_nothing_to_mix(serial_run, fits, monkeypatch):
    monkeypatch.setattr(registry.strategy_class("fedcmd"), "candidates", lambda s: ("classifier",))
    serial_run(RUN)
    *_, update = fits[-1]
    assert not any(key.startswith("classifier.") for key in update.arrays)


def test_candidates(flat_config):
    assert strategy_of(client_of(flat_config)).candidates() == FC
    everything = client_of(flat_config, 'fedcmd.candidates="all"')
    assert strategy_of(everything).candidates() == ("conv2", *FC)


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


def test_with_weighting_uniform_nobody_sees_the_personal_layer(serial_run, fits):
    serial_run(RUN, 'fedcmd.weighting="uniform"')
    for _, state, request, update in fits:
        personal = {key.split("/")[1] for key in state if key.startswith("model/")}
        assert not personal & set(update.arrays)
        assert bool(personal) == (request.plan.round > 2)


@pytest.mark.parametrize(
    ("option", "line"),
    [
        ("fedcmd.selection-fraction=0.0", "fedcmd.selection-fraction = 0: no round to vote"),
        ('fedcmd.layer="fc9"', 'fedcmd.layer = "fc9": layer "fc9": the model has conv1, '),
        ('fedcmd.other-clients="1"', "fedcmd.other-clients and fedcmd.other-layer go together"),
        (
            'fedcmd.layer="fc1" fedcmd.other-layer="fc2" fedcmd.other-clients="1,9"',
            'fedcmd.other-clients = "1,9": must be clients from 0 to 5, as 3,7,12',
        ),
    ],
)
def test_bad_settings(flat_config, option, line):
    with pytest.raises(RunError) as caught:
        strategy = strategy_of(client_of(flat_config, "num-rounds=10", option))
        strategy.plan(1, 0)
    assert str(caught.value).startswith(line)
