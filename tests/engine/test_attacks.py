"""Attackers of a simulation: what they send, who they are, who is scored, and what is refused."""

from itertools import permutations
from statistics import NormalDist

import numpy as np
import pytest
from safetensors.numpy import load_file

from fedapps.core import config, registry
from fedapps.core.draws import sample_attackers
from fedapps.core.errors import RunError
from fedapps.engine import collusion
from fedapps.engine.evaluations import evaluated
from fedapps.engine.finished import FinishedRun
from fedapps.engine.rounds import Rounds
from fedapps.method import BaseClient, Costs, local, put, rehearse
from fedapps.method.update import ClientUpdate
from fedapps.training.run_data import RunData
from fedapps.training.workspace import Workspace
from strategies.fedavg import FedAvg
from tests.support.killed import differences
from tests.support.methods import each_method, needed

RUN = 'fraction-train=1.0 num-rounds=1 attackers=0.34 strategy="fedavg" evaluate-every=0'
BAD = sorted(sample_attackers(0, range(6), 0.34))


def uploads(fits):
    return {request.client: update.arrays for _, _, request, update in fits}


def test_an_upload_is_changed_on_the_attackers_alone(serial_run, fits):
    serial_run(RUN)
    honest, start = uploads(fits), fits[0][2].arrays
    for attack, factor in (("sign-flip", -3.0), ("scaled", 3.0)):
        fits.clear()
        serial_run(RUN, f'attack="{attack}" attack-scale=3.0')
        for client, arrays in uploads(fits).items():
            for key, sent in arrays.items():
                step = honest[client][key] - start[key]
                expected = start[key] + (factor if client in BAD else 1.0) * step
                np.testing.assert_allclose(sent, expected, rtol=1e-6, atol=1e-6)


def test_an_attacker_starts_from_what_it_has_before_the_methods_own_changes(flat_config):
    class Moved(BaseClient):
        def before_training(self, plan):
            put(self.model, {key: value + 1 for key, value in self.received.items()})
            return Costs()

    honest, bad = (
        rehearse(FedAvg, Moved, config.read(flat_config(RUN, *more)))
        for more in ((), ('attack="sign-flip" attack-scale=2.0',))
    )
    updates = [run.train(BAD[0], run.strategy.plan(1, BAD[0])).arrays for run in (honest, bad)]
    for key, w in honest.strategy.arrays.items():
        right = w - 2 * (updates[0][key] - w)
        np.testing.assert_allclose(updates[1][key], right, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("aggregation", ["mean", "trimmed-mean"])
def test_variances_of_the_servers_model_are_never_negative(aggregation, serial_run, read_model):
    attack = f'attack="scaled" attack-scale=1e3 aggregation="{aggregation}" robust-share=0.0'
    model = read_model(serial_run(RUN, 'model="lenet5"', attack))
    variances = [array for key, array in model.items() if key.endswith("running_var")]
    assert len(variances) == 2
    assert min(array.min() for array in variances) == 0  # and not less


def test_variances_of_mixtures_are_never_negative(serial_run, fits):
    """A client gets its own mixture of what all have sent, which is not the server's model."""
    attack = 'attack="scaled" attack-scale=1e2'
    serial_run(
        RUN, 'model="lenet5" num-rounds=2 strategy="fedamp" fedamp.similarity="cosine"', attack
    )
    received = [
        array
        for _, _, request, _ in fits
        for key, array in request.arrays.items()
        if key.endswith("running_var") and request.plan.round == 2
    ]
    assert len(received) == 2 * 6
    assert min(array.min() for array in received) == 0  # and not less


def test_a_finished_run_sends_the_mixtures_that_the_run_sent(serial_run, monkeypatch):
    """With a negative variance, a model predicts NaN, and so the first class for every sample."""
    received, evaluate_round = [], local.evaluate_round

    def recorded(client, plan, arrays):
        received.append({key: array.copy() for key, array in arrays.items()})
        return evaluate_round(client, plan, arrays)

    monkeypatch.setattr(local, "evaluate_round", recorded)
    attack = 'attack="scaled" attack-scale=1e4 checkpoint-every=1'
    folder = serial_run(RUN, 'strategy="pfedsim" pfedsim.warmup=0.0 model="lenet5"', attack)
    in_run, run = [*received], FinishedRun.open(folder)
    received.clear()
    for client in evaluated(run.strategy):
        run.evaluate(client)
    assert len(received) == len(in_run) == 4
    for again, then in zip(received, in_run, strict=True):
        assert min(array.min() for key, array in then.items() if key.endswith("running_var")) == 0
        assert again.keys() == then.keys()
        for key, array in then.items():
            np.testing.assert_array_equal(again[key], array)


def test_variances_of_components_are_never_negative(flat_config):
    """FedEM's travel beside the server's model, where a device can send what it likes."""
    settings = config.read(flat_config('strategy="fedem" model="lenet5"'))
    strategy = registry.strategy_class("fedem")(Workspace(settings))
    before = {name: array.copy() for name, array in strategy.state.items()}
    extras = {name: -1 - array for name, array in before.items()}
    strategy.aggregate(1, iter([ClientUpdate(0, strategy.arrays, 5, extras=extras, weight=5.0)]))
    for name, array in strategy.state.items():
        wanted = 0 * array if name.endswith("running_var") else extras[name]
        np.testing.assert_array_equal(array, wanted.astype("f4"))
    assert any(name.endswith("running_var") for name in before)


FOMO = 'strategy="fedfomo" validation-fraction=0.2 num-rounds=2'
AP = 'strategy="fedap" model="lenet5" fedap.warmup=0.5 num-rounds=2'
CMD = 'strategy="fedcmd" fedcmd.selection-fraction=0.3 num-rounds=3'


@pytest.mark.parametrize(("options", "attack", "parts"), [
    ('strategy="scaffold" num-rounds=2', "scaled", ["c/"]),
    ('strategy="scaffold"', "alie", ["c/"]),
    ('strategy="scaffold"', "label-flip", []),
    ('strategy="fedavg"', "scaled", []),
    (FOMO, "scaled", ["affinity/"]),  # from round 2 on
    (AP, "sign-flip", ["inputs/"]),  # after the warm-up
    (CMD, "alie", ["scores/", "phi/"]),
])  # fmt: skip
def test_what_an_attack_leaves_alone_is_told(options, attack, parts, serial_run, caplog):
    """What travels beside the layers stays honest, such as the change of c; once for each part."""
    serial_run(RUN, f'attack="{attack}"', options)
    lines = [line for line in caplog.messages if "is sent as it is" in line]
    told = f'attack = "{attack}" changes layers; %s is sent as it is'
    assert lines == [told % part for part in parts]


def test_flipped_labels_are_those_of_a_client_with_other_labels(serial_run, fits, monkeypatch):
    serial_run(RUN, 'attack="label-flip"')
    flipped = uploads(fits)
    fits.clear()
    tensors = RunData.samples

    def other(data, client, subset):
        inputs, targets = tensors(data, client, subset)
        return inputs, 2 - targets if client in BAD and subset == "train" else targets

    monkeypatch.setattr(RunData, "samples", other)
    serial_run(RUN, "cache-limit=2047")  # a workspace of its own
    for client, arrays in uploads(fits).items():
        for key, sent in arrays.items():
            assert (sent == flipped[client][key]).all(), (client, key)


@pytest.mark.parametrize("order", sorted({*permutations((("a", "b"), ("a",), ("a",), ()))}))
def test_attackers_of_alie_send_mean_and_deviation_of_what_they_hold(order, flat_config):
    """Of what only some upload, as personal layers that differ between clients, theirs."""
    draws = np.random.default_rng(0)
    sent = [
        {key: draws.normal(size=(3, 2)).astype("f4") for key in keys} for keys in (*order, "ab")
    ]
    sent.insert(1, sent.pop())  # client 1 is honest
    updates = [ClientUpdate(client, arrays, 5, weight=5.0) for client, arrays in enumerate(sent)]
    run = config.read(flat_config('attack="alie" attackers=0.8 attack-z=1.5'))
    found = [*collusion.colluding(run, frozenset({0, 2, 3, 4}), iter(updates))]
    assert found.pop(1) is updates.pop(1)
    held = np.array([update.arrays["a"] for update in updates if "a" in update.arrays], "f8")
    alone = next(update.arrays["b"] for update in updates if "b" in update.arrays)
    deviation = np.sqrt(((held - held.mean(0)) ** 2).mean(0))
    expected = {"a": held.mean(0) - 1.5 * deviation, "b": alone}  # whose deviation is 0
    for keys, before, after in zip(order, updates, found, strict=True):
        assert (before.client, before.weight) == (after.client, after.weight)
        assert (*after.arrays,) == keys
        for key in keys:
            np.testing.assert_allclose(after.arrays[key], expected[key], rtol=1e-6)


@pytest.mark.parametrize(("count", "bad"), [(50, 12), (25, 5), (20, 4), (10, 2), (7, 3)])
def test_the_deviation_is_what_the_papers_majority_allows(count, bad):
    """z such that s honest clients, who with the attackers make a majority, are farther away."""
    supporters = count // 2 + 1 - bad
    z = collusion.most_deviation(count, bad)
    assert z == 0 or NormalDist().cdf(z) * (count - bad) == pytest.approx(count - bad - supporters)
    assert (z > 0) == (count - bad > 2 * supporters)


def test_an_inflated_count_weighs_more_in_the_mean_and_not_in_the_median(serial_run, fits):
    options = RUN + ' attack="inflated-count" attack-scale=50.0'
    mean, median = (serial_run(options, f'aggregation="{rule}"') for rule in ("mean", "median"))
    sent = [fit[3] for fit in fits[:6]]
    weights = [u.num_examples * (50 if u.client in BAD else 1) for u in sent]
    for key, array in load_file(mean / "model.safetensors").items():
        expected = np.average([u.arrays[key].astype("f8") for u in sent], axis=0, weights=weights)
        np.testing.assert_allclose(array, expected, rtol=1e-5, atol=1e-7)
    plain = serial_run(RUN, 'aggregation="median"')
    names = [folder / "model.safetensors" for folder in (median, plain)]
    assert names[0].read_bytes() == names[1].read_bytes()


def test_attackers_are_marked_and_nobody_scores_them(serial_run, read_csv):
    folder = serial_run(RUN, 'attack="scaled" strategy="fedseq" fedseq.finetune-epochs=1')
    marked = [row for row in read_csv(folder, "events.csv") if row["kind"] == "attacker"]
    assert [(int(row["client"]), row["detail"]) for row in marked] == [(c, "scaled") for c in BAD]
    scored = {int(row["client"]) for row in read_csv(folder, "clients.csv")}
    assert scored == {*range(6)} - {*BAD}
    last = read_csv(folder, "rounds.csv")[-1]
    values = [float(r["accuracy_personalized"]) for r in read_csv(folder, "clients.csv")]
    assert float(last["accuracy_personalized"]) == pytest.approx(np.mean(values))
    assert float(last["decile_personalized"]) == pytest.approx(np.quantile(values, 0.1))


def test_any_number_of_supernodes_gives_the_same_bytes(serial_run):
    """Of the attackers that know of each other; the others do alone what they do."""
    options = 'num-rounds=2 strategy="fedper" attack="alie" attack-z=1.0 '
    rule = 'aggregation="krum" robust-share=0.2'
    folders = (serial_run(RUN, options + rule, num_supernodes=n) for n in (1, 3))
    assert differences(*folders) == []


ASYNC = 'devices="lognormal" round-mode="async" fraction-train=1.0'


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ('aggregation="median" presum=true', '= true: aggregation = "median" needs every client'),
        ('aggregation="median" dp.mode="central"', "makes only the plain mean private"),
        ('aggregation="median" strategy="sflv2"', "sflv2 does not just average the updates"),
        ('aggregation="krum" robust-share=0.2', "needs 3 clients or more, but has 2"),
        ('aggregation="krum" robust-share=0.1 fraction-train=0.8', "4 clients is nobody; use 0"),
        ('aggregation="multi-krum" robust-share=0.1 fraction-train=1.0', "at least 0.2, or 0"),
        (
            'aggregation="trimmed-mean" robust-share=0.2 fraction-train=0.6',
            "robust-share = 0.2 of a round's 3 clients is nobody; use at least 0.3334, or 0",
        ),
        (
            f'{ASYNC} aggregation="trimmed-mean" robust-share=0.2',
            "robust-share = 0.2 of a round's 3 clients is nobody; use at least 0.3334, or 0",
        ),
        (
            f'{ASYNC} aggregation="krum" robust-share=0.25 buffer=4',
            "a round needs 5 clients or more, but has 4; use a smaller robust-share or a larger b",
        ),
        ("attackers=0.19", "attackers = 0.19: of 5 clients that is nobody; use at least 0.2"),
        ("attackers=0.3 num-clients=3", "of 3 clients that is nobody; use at least 0.3334"),
        ('attack="alie" attackers=0.2 presum=true', 'true: attack = "alie" needs every client'),
        ('task="regression" attack="label-flip" attackers=0.2', "classes, but task = "),
        ('task="regression" score-without-head=true', "needs classes, but task = "),
        ('attack="scaled" attackers=0.2 dataset="device"', "only in a simulation, not on devices"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(options, line, flat_config):
    settings = config.read(flat_config('strategy="fedavg" num-clients=5', options))
    with pytest.raises(RunError) as caught:
        Rounds(registry.strategy_class(settings.strategy)(Workspace(settings)))
    assert line in str(caught.value) and "\n" not in str(caught.value)


# Of each kind one: a mean with weights; none; only for newcomers, only in a warm-up, only for
# statistics that travel; if a key says so; nothing is uploaded.
COUNTED = ("fedavg", "fedap", "fedamp", "fedfc", "local", "pfedhn", "scaffold")
NEW, NO_WARMUP = 'unseen-clients="5"', "{0}.warmup=0.0"
WEIGHING = [  # what decides, and whether counts are weights then
    *[("fedamp", NEW, True), ("fedap", NEW, True), ("pfedhn", NEW, True), ("fedfomo", NEW, False)],
    *[("fedap", NO_WARMUP, False), ("pfedsim", NO_WARMUP, False)],
    *[("fedap", f"{NO_WARMUP} {NEW}", True), ("pfedsim", f"{NO_WARMUP} {NEW}", True)],
    *[("pfedhn", 'bn-stats="local"', False), ("pfedhn", "bn-local=true", False)],
    *[("pfedhn", 'model="mlp"', False), ("fedfc", 'fedfc.weighting="samples"', True)],
]


@pytest.mark.parametrize("method", each_method(usual=COUNTED))
def test_an_inflated_count_has_an_effect_exactly_where_counts_are_weights(
    method, counted_and_inflated
):
    """A method on which it has none would look robust, so a run says that it has none."""
    changed, told = counted_and_inflated(method, "")
    assert changed != told


@pytest.mark.slow
@pytest.mark.parametrize(("method", "options", "weighs"), WEIGHING)
def test_settings_decide_whether_counts_are_weights(method, options, weighs, counted_and_inflated):
    assert counted_and_inflated(method, options.format(method)) == (weighs, not weighs)


@pytest.fixture
def counted_and_inflated(serial_run, capsys):
    """Return whether an inflated count changes a score, and whether it is told to have no effect.

    Scores are those of clients, and of newcomers.
    """

    def compared(method, options):
        run = f'strategy="{method}" {needed(method)} fraction-train=1.0 local-epochs=2'
        run = f'{run} attackers=0.34 attack="inflated-count"', options
        one, other = (serial_run(*run, f"attack-scale={scale}") for scale in (1.0, 50.0))
        names = ["clients.csv", *(["unseen.csv"] if "unseen" in options else [])]
        changed = any((one / name).read_bytes() != (other / name).read_bytes() for name in names)
        return changed, 'attack = "inflated-count" has no effect on' in capsys.readouterr().out

    return compared
