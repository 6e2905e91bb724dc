"""A client that sends what it likes: it is dropped for the round, and nothing else changes."""

import csv
import io
import math
from collections import Counter
from itertools import product

import numpy as np
import pytest
import torch
from flwr.app import Array, ConfigRecord
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import structs
from safetensors.numpy import load_file

from fedapps.core import config, registry
from fedapps.engine.metrics import SLACK, MetricChecks
from fedapps.method.figures import WITHOUT_HEAD, Figure
from fedapps.method.rehearsal import rehearse
from fedapps.method.update import ClientUpdate
from fedapps.report.cells import csv_text
from fedapps.tasks import CLASSIFICATION
from fedapps.training.workspace import workspace
from fedapps.wire.checks import invalid_values
from tests.support import kinds
from tests.support.fake_grid import alter_replies

BAD = 2
RUN = 'strategy="fedavg" num-clients=4 fraction-train=1.0 num-rounds=2 finetune-epochs=1'
KEY = "conv1.conv.weight"
ARRAYS, METRICS = f"arrays-{BAD}", f"metrics-{BAD}"


@pytest.fixture
def poisoned(serial_run, monkeypatch):
    """Return run(kind, change, *run_config): `change` alters the replies of BAD's SuperNode."""

    def run(kind, change, *run_config, supernodes=1):
        def of_its_node(content):
            if supernodes == 1 or METRICS in content:
                change(content)

        with monkeypatch.context() as patch:
            alter_replies(patch, kind, of_its_node)
            return serial_run(RUN, *run_config, num_supernodes=supernodes)

    return run


def absent(content):
    """The client says itself that it failed: the run that all others are held against."""
    del content[ARRAYS], content[METRICS]
    content["failures"] = ConfigRecord({"clients": [BAD], "causes": ["ValueError: absent"]})


def value(number):
    def change(content):
        array = content[ARRAYS][KEY].numpy().copy()
        array.flat[3] = number
        content[ARRAYS][KEY] = Array(array)

    return change


def described(**words):
    """Flower's own description of an array, beside the header that comes with the values."""

    def change(content):
        array = content[ARRAYS][KEY]
        told = {name: getattr(array, name) for name in ("dtype", "shape", "stype", "data")}
        content[ARRAYS][KEY] = Array(**told | words)

    return change


def named(content):
    content["x" * 2**23] = ConfigRecord()


def figure(**figures):
    def change(content):
        for name, number in figures.items():
            content[METRICS][name.replace("num_examples", "num-examples")] = number

    return change


BROKEN = "the reply's figures are broken: "
# What is wrong with arrays alone is in tests/wire/test_messages.py; here are one of each kind.
TRAIN = {
    "NaN": (value(np.nan), f"values in {KEY} are not finite"),
    "1e30": (value(1e30), f"values in {KEY} are as large as 1e+30: at most 1e+06 (max-value)"),
    "-1e30": (value(-1e30), f"values in {KEY} are as large as 1e+30: at most 1e+06 (max-value)"),
    "2**39": (figure(num_examples=2**39), f"num-examples = {2**39}: must be from 1 to "),
    "one more": (figure(num_examples=10**4), "num-examples = 10000: must be from 1 to "),
    "loss": (figure(loss=1e300), BROKEN + "a loss of 1e+300 over "),
    "loss below 0": (figure(loss=-9e5), BROKEN + "a loss of -900000 over "),
    "loss just below 0": (figure(loss=-1e-9), BROKEN + "a loss of -1e-09 over "),
    "other dtype": (described(dtype="=float32"), f"{KEY} is called =float32("),
    "other shape": (described(shape=(800,)), f"{KEY} is called float32(800,): expected "),
    "loss NaN": (figure(loss=math.nan), BROKEN + "a loss of nan over "),
    "no sample": (figure(loss=1.0, samples=0), BROKEN + "a loss of 1 over 0"),
    "many": (figure(samples=2**40), BROKEN + f"samples = {2**40}: at most "),
    "negative": (figure(batches=-1), BROKEN + "Expected `int` >= 0"),
    "no macs": (lambda content: content[METRICS].pop("macs"), BROKEN + "'macs' is missing"),
    "losses": (figure(loss=[1.0, 2.0]), BROKEN + "Expected `float`, got `array` - at `$.loss`"),
    "macs": (figure(macs=2**62), BROKEN + f"macs = {2**62}: at most "),
    "cost": (figure(cost_paper=2**62), BROKEN + f"cost_paper = {2**62}: "),
}


def tables(read_csv, folder):
    """What a run says of its rounds and clients, without what the clock says and the causes."""
    rounds = [{**row, "seconds": None} for row in read_csv(folder, "rounds.csv")]
    return rounds, read_csv(folder, "clients.csv")


@pytest.fixture
def costs_its_client_only(poisoned, read_csv):
    """Return check(kind, faults, silence): a run with one of the faults in each of its rounds.

    BAD fails in each round for its cause; all else is as when it is silent.
    """

    def check(kind, faults, silence):
        left, rounds = iter(faults.values()), f"num-rounds={len(faults)}"
        rounds += " evaluate-every=0" if kind == "train" else ""
        folder = poisoned(kind, lambda content: next(left)[0](content), rounds)
        other = poisoned(kind, silence, rounds)
        events = read_csv(folder, "events.csv")
        failures = [(str(round_), str(BAD), "failure") for round_ in range(1, len(faults) + 1)]
        assert [(e["round"], e["client"], e["kind"]) for e in events] == failures
        for event, (name, (_, cause)) in zip(events, faults.items(), strict=True):
            assert event["detail"].startswith(cause), name
        assert tables(read_csv, folder) == tables(read_csv, other)
        for name in ("model.safetensors", "classes.csv"):
            assert (folder / name).read_bytes() == (other / name).read_bytes()
        return folder

    return check


def test_a_poisoned_update_costs_its_client_only(costs_its_client_only, read_csv):
    folder = costs_its_client_only("train", TRAIN, absent)
    assert {row["failures"] for row in tables(read_csv, folder)[0]} == {"1"}


@pytest.mark.parametrize("strategy", ["fedcmd", "fedrod"])
def test_so_it_is_with_other_methods_and_what_else_they_send(strategy, poisoned, read_csv):
    def change(content):
        names = [*content[ARRAYS]]
        name = next((name for name in names if "/" in name), names[0])
        array = content[ARRAYS][name].numpy().copy()
        array.flat[0] = 1e30
        content[ARRAYS][name] = Array(array)

    options = f'strategy="{strategy}"'
    first, second = poisoned("train", change, options), poisoned("train", absent, options)
    names = {e["client"] for e in read_csv(first, "events.csv") if e["kind"] == "failure"}
    assert names == {str(BAD)}
    model = (first / "model.safetensors").read_bytes()
    assert model == (second / "model.safetensors").read_bytes()
    assert tables(read_csv, first) == tables(read_csv, second)


def one_more(content):
    """It claims a test sample that it does not have; it has far more training samples."""
    metrics = content[METRICS]
    metrics["num-examples"] += 1
    for when, what in product(("initial", "personalized"), ("total", "predicted")):
        first, *others = metrics[f"{when}_{what}"]
        metrics[f"{when}_{what}"] = [first + 1, *others]


def turned(content):
    """Its test samples have other labels after personalization; nothing was right."""
    metrics = content[METRICS]
    size = sum(metrics["initial_total"])
    for when in ("initial", "personalized"):
        metrics[f"{when}_right"], metrics[f"{when}_predicted"] = [0] * 3, [0, 0, size]
    metrics["initial_total"], metrics["personalized_total"] = [size, 0, 0], [0, size, 0]


def unmatched(content):
    """All its samples are of a class and are predicted as this class, and none is right."""
    metrics = content[METRICS]
    size = sum(metrics["initial_total"])
    for what, n in (("total", size), ("predicted", size), ("right", 0)):
        metrics[f"initial_{what}"] = [n, 0, 0]


EVALUATE = {
    "one more": (one_more, "num-examples = "),
    "2**39": (figure(num_examples=2**39), f"num-examples = {2**39}: must be from 1 to "),
    "loss below 0": (figure(loss=-9e5), BROKEN + "loss = -900000: must be at least 0"),
    "loss -inf": (figure(loss=-math.inf), BROKEN + "loss = -inf: must be at least 0"),
    "classes": (figure(initial_total=[10**6, 0, 0]), BROKEN + "initial_total has 1000000: at most"),
    "predicted": (figure(initial_predicted=[0] * 3), BROKEN + "initial_predicted must sum to "),
    "right": (
        figure(personalized_right=[10**6] * 3),
        BROKEN + "personalized_right has 1000000: at most",
    ),
    "negative": (figure(initial_right=[-1, 0, 0]), BROKEN + "initial_right has -1: must be at l"),
    "NaN": (figure(initial_right=[math.nan] * 3), BROKEN + "Expected `int`, got `float`"),
    "length": (figure(initial_right=[0]), BROKEN + "initial_right must have 3 values"),
    "none": (lambda content: content[METRICS].pop("initial_right"), BROKEN + "'initial_right'"),
    "unmatched": (unmatched, BROKEN + "initial_wrong = "),
    "other labels": (turned, BROKEN + "personalized_total differs from initial_total"),
    "training": (figure(num_train=10**9), BROKEN + "num_train = 1000000000: at most "),
    "finetune": (figure(finetune_samples=2**40), BROKEN + "samples = "),
}


def test_a_poisoned_evaluation_costs_its_client_only(costs_its_client_only):
    costs_its_client_only("evaluate", EVALUATE, lambda content: content.pop(METRICS))


def test_a_personalization_that_diverged_keeps_its_accuracies(poisoned, read_csv):
    """Its client would else be missing in the means; its loss stands in its own row only."""
    options = 'strategy="fedseq" fedseq.finetune-epochs=1'
    expected = tables(read_csv, poisoned("evaluate", figure(), options))[0]
    for loss in (1e300, math.nan, math.inf):
        folder = poisoned("evaluate", figure(loss=loss, finetune_loss=loss), options)
        rounds, clients = tables(read_csv, folder)
        told = {(row["client"], row["kind"]) for row in read_csv(folder, "events.csv")}
        assert told == (set() if math.isfinite(loss) else {(str(BAD), "diverged")})
        assert {row["loss"] for row in clients if row["client"] == str(BAD)} == {str(loss)}
        assert rounds[-1]["phase"] == "finetune"
        assert all(0 < float(row["train_loss"]) < 10 for row in rounds)
        for key in ("accuracy_personalized", "accuracy_initial_weighted", "train_macs"):
            assert [row[key] for row in rounds] == [row[key] for row in expected]


def test_nobody_scores_for_somebody_else_or_what_a_run_does_not_ask_for(poisoned, read_csv):
    claims = figure(client=0, num_test=1, without_head=1.0, last_local=1.0, leak=1.0)
    folder = poisoned("evaluate", claims, "num-rounds=1")
    plain = poisoned("evaluate", figure(), "num-rounds=1")
    assert tables(read_csv, folder) == tables(read_csv, plain)


LARGE = {
    "figures": figure(extra=[0.5] * 10**6), "dtype": described(dtype="x" * 2**23),
    "stype": described(stype="x" * 2**23), "shape": described(shape=(1,) * 2**20),
    "name of a record": named,
}  # fmt: skip


@pytest.mark.parametrize(("what", "presum"), [("figures", "true"), *((k, "false") for k in LARGE)])
def test_a_reply_that_is_too_large_costs_all_its_clients(what, presum, poisoned, read_csv):
    """And no other SuperNode's."""
    folder = poisoned("train", LARGE[what], f"presum={presum}", supernodes=2)
    events = read_csv(folder, "events.csv")
    dropped = {event["client"] for event in events}
    assert str(BAD) in dropped and len(dropped) == 2
    assert len({event["detail"] for event in events}) == 1
    words = events[0]["detail"].split()
    assert words[:3] == ["a", "reply", "of"] and int(words[3]) > int(words[7]) > 10**6


@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_a_reply_that_flower_could_not_have_sent_costs_all_its_clients(kind, poisoned, read_csv):
    """Our packed records hold any numbers, and counting the bytes of these raised an error."""
    folder = poisoned(kind, figure(a=[2**63, -1]), supernodes=2)
    events = read_csv(folder, "events.csv")
    assert {event["detail"] for event in events} == {"figures that no message can hold"}
    dropped = {event["client"] for event in events}
    assert str(BAD) in dropped and len(dropped) == 2


@pytest.mark.parametrize("claim", [2.0, 2.5])
def test_with_local_privacy_a_presummed_mean_weighs_no_more_than_its_clients(
    claim, poisoned, read_csv
):
    """These are two, whatever number of samples they have; one device could outweigh all others."""
    counts = []

    def change(content):
        counts.append(sum(m["num-examples"] for m in content.metric_records.values()))
        (carrier,) = (m for m in content.metric_records.values() if m["weight"])
        carrier["weight"] = claim

    options = 'num-rounds=1 presum=true dp.mode="local" dp.noise-multiplier=0.01'
    folder = poisoned("train", change, options, supernodes=2)
    events = [row["detail"] for row in read_csv(folder, "events.csv") if row["kind"] == "failure"]
    assert events == ["weight = 2.5: must be from 0 to 2"] * (claim > 2)
    assert len(counts) == 1 and counts[0] > claim


FORMULAS = st.text("=\uff1d+-@;\t\r\n\"', 1a")


@given(st.lists(st.one_of(FORMULAS, st.integers(), st.floats()), min_size=1))
@example([-1, -2.5, "-3"])
def test_cells_of_text_begin_no_formula_and_numbers_stay_as_they_are(cells):
    (row,) = csv.reader(io.StringIO(csv_text([cells]), newline=""))
    for cell, text in zip(cells, row, strict=True):
        if isinstance(cell, str):
            assert text.replace("'", "").split() == cell.replace("'", "").split()
            assert not {"\t", "\r", "\n"} & {*text}
            parts = map(str.strip, text.split(";"))
            assert not any(part.startswith((*"=\uff1d+-@",)) for part in parts)
        else:
            assert repr(type(cell)(text)) == repr(cell)


@given(st.lists(FORMULAS, min_size=1))
@example(['x;"=1+1";y'])
def test_nor_do_they_where_semicolons_separate_cells(cells):
    """As in countries with a decimal comma, whose programs split a table of ours there."""
    (row,) = csv.reader(io.StringIO(csv_text([[7, *cells]]), newline=""), delimiter=";")
    assert not any(cell.strip().startswith((*"=\uff1d+-@",)) for cell in row)


@given(st.lists(st.floats(width=32), max_size=9), st.floats(1e-30, 1e300))
@example([], 1.0)
@example([1e6], 1e6)
@example([-1.5], 1.0)
def test_values_fit_exactly_if_they_are_within_the_limit(numbers, largest):
    values = np.array(numbers, np.float32)
    fits = all(math.isfinite(v) and abs(float(v)) <= largest for v in values)
    assert (invalid_values(values, largest) == "") == fits


@pytest.fixture(scope="module")
def strategy(request, tmp_path_factory, tiny_npz):
    """FedAvg on images, or on data of a kind of tests.support.kinds."""
    folder, kind = tmp_path_factory.mktemp("runs"), getattr(request, "param", "")
    samples = kinds.options(folder, kind) if kind else tiny_npz
    flat = config.parse([samples, RUN, "local-epochs=1", f'runs-dir="{folder}"'])
    return registry.strategy_class("fedavg")(workspace(config.read(flat)))


@pytest.fixture(scope="module")
def checks(strategy):
    return MetricChecks(strategy)


anything = st.one_of(st.integers(-(2**63), 2**63 - 1), st.floats(), st.integers(0, 50))
extreme = st.sampled_from([2**62, -1, 1e300, math.nan])  # rare among all numbers
count = st.one_of(st.integers(-3, 9), st.integers(-(2**63), 2**63 - 1))
TESTED, CLASSES = 9, 3


def trainings(strategy, checks):
    """Figures of a training that can be."""
    own, parameters = strategy.count(BAD, "train"), strategy.layout.count(strategy.layout.names)
    most = SLACK * own
    number, few = st.integers(0, own), st.integers(0, 3)
    costs = {"macs": most * checks.sample_macs, "cost_paper": most * parameters}
    return st.fixed_dictionaries(
        {"samples": number, "batches": number, "skipped": few, "rejected": few}
        | {name: st.integers(0, largest) for name, largest in costs.items()}
    ).flatmap(
        lambda known: st.floats(0, 1e6 * known["samples"]).map(lambda loss: known | {"loss": loss})
    )


@st.composite
def evaluations(draw, strategy):
    """Figures of an evaluation that can be: the counts of labels and of predictions for them."""

    def by_class(labels):
        return [[*labels].count(label) for label in range(CLASSES)]

    some = st.lists(st.integers(0, CLASSES - 1), min_size=TESTED, max_size=TESTED)
    labels, counts = draw(some), {}
    for when in ("initial", "personalized"):
        found = draw(st.one_of(some, st.just(labels)))
        right = [one for one, other in zip(labels, found, strict=True) if one == other]
        for name, of in (("total", labels), ("right", right), ("predicted", found)):
            counts[f"{when}_{name}"] = by_class(of)
    return counts | draw(others(strategy))


@st.composite
def scored(draw, strategy):
    """Figures of an evaluation that can be, of any task: what it counts of predictions."""
    space, draws = strategy.workspace, torch.Generator().manual_seed(draw(st.integers(0, 99)))
    truth = torch.cat([space.samples(client, "test")[1] for client in range(4)])[:TESTED]
    shape, counts = space.task.outputs(space.dataset.targets).shape, {}
    for when in ("initial", "personalized"):
        output = draw(st.sampled_from([0.1, 30.0])) * torch.randn(TESTED, *shape, generator=draws)
        found = space.task.count(output, truth)
        counts |= {f"{when}_{name}": values.tolist() for name, values in found.items()}
    return counts | draw(others(strategy))


@st.composite
def others(draw, strategy):
    """The figures of an evaluation that are not its counts."""
    names = ("loss", "samples", "batches", "skipped", "rejected", "macs", "cost_paper")
    return {f"finetune_{name}": 0 for name in names} | {
        "num_train": draw(st.integers(0, strategy.count(BAD, "train"))),
        "loss": draw(st.one_of(st.floats(0), st.just(math.nan))),
    }


@st.composite
def spoilt(draw, figures):
    """Figures that can be, of which none, one or two are replaced."""
    told = dict(draw(figures))
    names = sorted(name for name in told if not name.startswith("finetune_"))
    for _ in range(draw(st.sampled_from([0, 1, 1, 2]))):
        name = draw(st.sampled_from(names))
        other = extreme if draw(st.booleans()) else anything
        told[name] = draw(moved(told[name]) if isinstance(told[name], list) else other)
    return told


def moved(counts):
    """One of the counts is a little off, two of them by as much, or all are whatever comes."""
    if isinstance(counts[0], float):  # sums
        factors = st.sampled_from([0.0, 0.5, 1 - 1e-9, 1 + 1e-9, 2.0, 1e30, 1e300, math.nan, -1.0])
        return st.one_of(
            factors.map(lambda f: [f * n for n in counts]), st.lists(st.floats(), min_size=1)
        )
    steps = st.tuples(st.integers(0, len(counts) - 1), st.sampled_from([-9, -1, 1, 9]))
    one = steps.map(lambda s: [n + s[1] * (i == s[0]) for i, n in enumerate(counts)])
    two = st.permutations(counts)
    return st.one_of(one, one, two, st.lists(count, min_size=1, max_size=4))


def both_outcomes(figures, read, check):
    """`check` what `read` makes of figures, whenever it takes them; both must have occurred."""
    outcomes = Counter()

    @settings(max_examples=400)
    @given(spoilt(figures))
    def play(told):
        try:
            read_figures = read(told)
        except ValueError:
            outcomes["refused"] += 1
            return
        outcomes["taken"] += 1
        check(read_figures)

    play()
    assert min(outcomes["refused"], outcomes["taken"]) >= 10, outcomes


def test_figures_that_pass_can_harm_no_mean(strategy, checks):
    own = strategy.count(BAD, "train")
    most, parameters = SLACK * own, strategy.layout.count(strategy.layout.names)

    def check(done):
        assert 0 <= done.samples <= own and 0 <= done.batches <= own
        assert 0 <= done.loss <= 1e6 * done.samples
        assert 0 <= done.macs <= most * checks.sample_macs
        assert 0 <= done.cost_paper <= most * parameters

    def read(told):
        return checks.training(ClientUpdate(BAD, {}, 5, told), strategy.plan(1, BAD))

    both_outcomes(trainings(strategy, checks), read, check)


def test_a_method_can_have_losses_below_zero(strategy, checks, monkeypatch):
    costs = dict.fromkeys(("skipped", "rejected", "macs", "cost_paper"), 0)
    update = ClientUpdate(BAD, {}, 5, costs | {"loss": -6.0, "samples": 3, "batches": 1})
    for least, largest, taken in ((0.0, 1e6, False), (-1.9, 1e6, False), (-2.0, 1e6, True),
                                  (-math.inf, 1e6, True), (-math.inf, 1.9, False)):  # fmt: skip
        changed = structs.replace(strategy.settings, max_value=largest)
        monkeypatch.setattr(strategy, "settings", changed)
        monkeypatch.setattr(type(strategy), "least_loss", least)
        try:
            assert checks.training(update, strategy.plan(1, BAD)).loss == -6.0
        except ValueError as error:
            assert not taken
            assert str(error).startswith("a loss of -6 over 3 samples: at ")
        else:
            assert taken


def test_scores_that_pass_can_harm_no_mean(strategy, checks):
    def check(scores):
        assert scores.client == BAD and sum(scores.before["total"]) == TESTED
        assert scores.before["total"].tolist() == scores.after["total"].tolist()
        assert not scores.loss < 0
        for metric in CLASSIFICATION.metrics:
            least, most = metric.bounds
            values = metric.of(scores.before), metric.of(scores.after)
            assert all(value is None or least <= value <= most for value in values)
        for counts in (scores.before, scores.after):
            pairs = zip(counts["right"], counts["total"], strict=True)
            assert all(0 <= one <= total <= TESTED for one, total in pairs)

    def read(told):
        return checks.scores(ClientUpdate(BAD, {}, TESTED, told))

    both_outcomes(evaluations(strategy), read, check)


@pytest.mark.parametrize("strategy", ["regression", "tokens", "multilabel"], indirect=True)
def test_so_it_is_with_the_counts_of_every_other_task(strategy, checks):
    """Each metric is within its bounds, and finite, of this client and beside another one."""

    def check(scores):
        for name in scores.task.of_targets:
            assert scores.before[name].tolist() == scores.after[name].tolist()
        for metric in scores.task.metrics:
            least, most = metric.bounds
            alone = metric.of(scores.before), metric.of(scores.after)
            values = *alone, metric.together([scores.before, scores.after])
            assert all(v is None or (math.isfinite(v) and least <= v <= most) for v in values)

    def read(told):
        return checks.scores(ClientUpdate(BAD, {}, TESTED, told))

    both_outcomes(scored(strategy), read, check)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("strategy", ["regression"], indirect=True)
@pytest.mark.parametrize(("total", "why"), [
    (math.nan, "is not finite: training diverged"), (math.inf, "is not finite: training diverged"),
    (-1.0, "has -1: must be at least 0"), (1e300, r"= 1e\+300: too large for squared = 1"),
])  # fmt: skip
def test_a_sum_is_a_finite_number_that_is_not_below_zero(strategy, checks, total, why):
    counts = {f"initial_{name}": [1.0] for name in ("absolute", "squared", "spread")}
    told = counts | {"initial_values": [TESTED], "initial_absolute": [total]}
    with pytest.raises(ValueError, match=f"^initial_absolute {why}$"):
        checks.scores(ClientUpdate(BAD, {}, TESTED, told))


def test_what_a_client_keeps_may_be_larger_than_what_it_may_send(serial_run):
    """Norms of gradients before clipping, which stay on the client."""
    options = 'strategy="perfreezeclip" local-epochs=2 num-clients=3 num-rounds=1 max-value=1.2'
    folder = serial_run(options)
    states = [load_file(path) for path in folder.glob("clients/*/round-*.safetensors")]
    norms = [v.max() for state in states for k, v in state.items() if k.startswith("norms/")]
    assert max(norms) > 1.2
    events = folder / "events.csv"
    assert not events.exists() or "diverged" not in events.read_text("utf-8")


def test_a_figure_that_the_method_does_not_declare_is_told_once(strategy, capsys):
    pair = registry.strategy_class("fedavg"), registry.client_class("fedavg")
    run = rehearse(*pair, strategy.settings)
    received = dict(run.strategy.arrays)
    metrics = run.make(BAD).evaluate_round(run.strategy.evaluation_plan(1, BAD), received).metrics
    checks, given = MetricChecks(strategy), {"kindness": 1.0, "state-saved": 1}
    for more in ({}, given, given):
        update = ClientUpdate(BAD, {}, sum(metrics["initial_total"]), metrics | more)
        assert checks.scores(update).figures == {}
    told = "warning: clients give kindness, which fedavg does not declare: left out"
    assert capsys.readouterr().out.splitlines() == [told]


def test_a_declared_figure_that_no_client_gives_is_told_once(serial_run, monkeypatch, caplog):
    """Not what some clients give, nor the score without a head, which few models have."""
    method, client = registry.strategy_class("fedavg"), registry.client_class("fedavg")
    figures = tuple(Figure(name, "something") for name in ("often", "late", "missing"))
    monkeypatch.setattr(method, "figures", (*figures, WITHOUT_HEAD), raising=False)
    scores = lambda self: {"often": 0.5} | ({"late": 0.5} if self.client == 3 else {})  # noqa: E731
    monkeypatch.setattr(client, "extra_scores", scores, raising=False)
    serial_run('strategy="fedavg" num-rounds=2 evaluate-every=1')
    (told,) = [text for text in caplog.messages if "declares" in text]
    assert told == "fedavg declares missing, but no client gives it: return it from extra_scores"
