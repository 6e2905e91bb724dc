"""The metrics of every task against scikit-learn, and how the counts of clients add up."""

import math
from contextlib import suppress
from itertools import product

import numpy as np
import pytest
import torch
from sklearn import metrics as known
from torch.nn import functional

from fedapps.core.errors import RunError
from fedapps.data.spec import WHOLE, Spec, label_spec
from fedapps.tasks import TASKS, task_for

N, C, L, T = 40, 5, 4, 6
TABLE, TEXT = Spec((3,)), Spec((T,), WHOLE, 9)
TARGETS = {
    "classification": label_spec(C), "regression": Spec((2,)), "multilabel": Spec((L,), WHOLE, 2),
    "tokens": Spec((T,), WHOLE, C),
}  # fmt: skip


def samples(name, size=N, seed=0):
    """Random outputs and targets of a task; class 4 of a classification never occurs."""
    draw = torch.Generator().manual_seed(seed)
    output = torch.randn(size, *TASKS[name].outputs(TARGETS[name]).shape, generator=draw)
    if name == "regression":
        return output, torch.randn(size, 2, generator=draw)
    if name == "multilabel":
        return output, torch.randint(2, (size, L), generator=draw).float()
    shape = (size, T) if name == "tokens" else (size,)
    return output, torch.randint(C - 1, shape, generator=draw)


def values(name, size=N, seed=0):
    task = TASKS[name]
    counts = task.count(*samples(name, size, seed))
    return {metric.name: metric.of(counts) for metric in task.metrics}


def test_classification():
    output, labels = samples("classification")
    found = output.argmax(1)
    assert values("classification") == pytest.approx(
        {
            "accuracy": known.accuracy_score(labels, found),
            "balanced": known.recall_score(
                labels, found, labels=labels.unique(), average="macro", zero_division=0
            ),
            "macro_f1": known.f1_score(labels, found, average="macro"),
        }
    )


def test_regression():
    output, truth = (x.numpy() for x in samples("regression"))
    assert values("regression") == pytest.approx(
        {
            "mae": known.mean_absolute_error(truth, output),
            "mse": known.mean_squared_error(truth, output),
            "r2": known.r2_score(truth, output, multioutput="variance_weighted"),
        },
        rel=1e-6,
    )


def test_multilabel():
    output, truth = samples("multilabel")
    found = output > 0
    assert values("multilabel") == pytest.approx(
        {
            "micro_f1": known.f1_score(truth, found, average="micro"),
            "macro_f1": known.f1_score(truth, found, average="macro"),
            "accuracy": float((found == truth.bool()).double().mean()),
        }
    )


def test_tokens():
    output, truth = samples("tokens")
    loss = functional.cross_entropy(output.transpose(1, 2).double(), truth)
    assert values("tokens") == pytest.approx(
        {
            "accuracy": float((output.argmax(-1) == truth).double().mean()),
            "perplexity": math.exp(loss),
        }
    )


@pytest.mark.parametrize("name", TASKS)
def test_clients_together_are_their_samples_together(name):
    """Also means over classes; only R2 measures each client against its own mean."""
    task = TASKS[name]
    parts = [samples(name, size, seed) for seed, size in enumerate((3, 20, 11))]
    whole = task.count(*(torch.cat(column) for column in zip(*parts, strict=True)))
    clients = [task.count(*part) for part in parts]
    for metric in (m for m in task.metrics if m.name != "r2"):
        assert metric.together(clients) == pytest.approx(metric.of(whole))
    for key in whole.keys() - {"spread"}:
        np.testing.assert_allclose(sum(counts[key] for counts in clients), whole[key], rtol=1e-12)


def test_r2_of_clients_together_has_the_errors_of_those_with_equal_targets():
    """Such a client has no R2 of its own."""
    task, truth = TASKS["regression"], [[[1.0], [2.0], [6.0]], [[4.0]], [[7.0], [7.0]]]
    found = [[[1.5], [2.0], [5.0]], [[2.0]], [[8.0], [5.0]]]
    pairs = zip(map(torch.tensor, found), map(torch.tensor, truth), strict=True)
    clients = [task.count(*pair) for pair in pairs]
    r2 = task.metrics[-1]
    errors, spread = 0.25 + 1 + 4 + 1 + 4, 4 + 1 + 9
    assert r2.together(clients) == pytest.approx(1 - errors / spread)
    assert [r2.of(counts) for counts in clients[1:]] == [None, None]
    assert r2.together(clients[1:]) is None and r2.together([]) is None


@pytest.mark.parametrize("metric", TASKS["multilabel"].metrics, ids=lambda metric: metric.name)
def test_whether_samples_have_a_metric_does_not_depend_on_what_is_predicted(metric):
    """Or the initial model and the personalized one would be compared over different clients."""
    none = torch.zeros(3, L)
    for outputs, value in ((none - 1, 1.0), (none + 1, 0.0)):
        assert metric.of(TASKS["multilabel"].count(outputs, none)) == value


@pytest.mark.parametrize("name", TASKS)
def test_counts_have_the_declared_sizes_and_pass_their_checks(name):
    task, (output, target) = TASKS[name], samples(name)
    counts = task.count(output, target)
    assert {key: len(array) for key, array in counts.items()} == task.sizes(TARGETS[name])
    assert {key for key, array in counts.items() if array.dtype.kind == "f"} == {*task.sums}
    task.check_counts(counts, N)
    with pytest.raises(ValueError, match="must"):
        task.check_counts(counts, N + 1)


@pytest.mark.parametrize(("name", "changed"), [
    ("regression", {"absolute": 1e3}), ("regression", {"squared": 1e6}),
    ("tokens", {"right": +N * T}),
])  # fmt: skip
def test_counts_that_cannot_be_are_refused(name, changed):
    """Of the other tasks, all counts of few samples are tried below."""
    counts = dict(TASKS[name].count(*samples(name)))
    for key, more in changed.items():
        counts[key] = counts[key] + more
    with pytest.raises(ValueError, match=r"at most|must|too (large|small)"):
        TASKS[name].check_counts(counts, N)


@pytest.mark.parametrize("counts", [
    {"absolute": 3.0, "squared": 2.0, "spread": 5e-324},
    {"absolute": 1e150 * 10**0.5, "squared": 1e300, "spread": 1e300 / 1.7e308},
    {"absolute": 1e308, "squared": 1.7e308, "spread": 1.0},
    {"absolute": 3.0, "squared": 2.0, "spread": 1e300},
])  # fmt: skip
def test_counts_that_make_a_mean_of_metrics_infinite_are_refused(counts):
    """Of one client, or of several whose metrics are finite: no float32 numbers give them."""
    with pytest.raises(ValueError, match="no float32 numbers give it"):
        regression_counts(**counts)


def test_counts_of_the_largest_and_smallest_numbers_are_those_of_a_regression():
    most, least = torch.finfo(torch.float32).max, 2.0**-149
    task, ends = TASKS["regression"], torch.tensor([[most], [-most]])
    for output, target in ((-ends, ends), (ends * 0 + least, torch.tensor([[0.0], [least]]))):
        counts = task.count(output, target)
        task.check_counts(counts, 2)
        assert np.isfinite([metric.of(counts) for metric in task.metrics]).all()


def regression_counts(**counts):
    whole = {key: np.array([value]) for key, value in {"values": 10, **counts}.items()}
    TASKS["regression"].check_counts(whole, 10)


@pytest.mark.parametrize("name", ["classification", "multilabel"])
def test_counts_are_refused_exactly_if_no_samples_give_them(name):
    """All predictions for all samples, beside all arrays of counts, for some small sizes."""
    task = TASKS[name]
    for size, outputs in ((1, 2), (4, 2), (2, 3)) if name == "classification" else ((3, 1), (4, 1)):
        given = set()
        for pairs in product(product(range(max(outputs, 2)), repeat=2), repeat=size):
            found, truth = (torch.tensor(column) for column in zip(*pairs, strict=True))
            if name == "classification":
                counts = task.count(functional.one_hot(found, outputs), truth)
            else:
                counts = task.count(found[:, None] - 0.5, truth[:, None])
            given.add(tuple(np.concatenate([*counts.values()]).tolist()))
        keys, taken = [*counts], set()
        for values in product(range(size + 1), repeat=sum(map(len, counts.values()))):
            parts = np.split(np.array(values), np.cumsum([len(counts[key]) for key in keys])[:-1])
            with suppress(ValueError):
                task.check_counts(dict(zip(keys, parts, strict=True)), size)
                taken.add(values)
        assert taken == given


def test_equal_targets_whose_mean_is_rounded_have_no_r2():
    task = TASKS["regression"]
    counts = task.count(torch.zeros(3, 1), torch.full((3,), 0.1))
    assert task.metrics[2].of(counts) is None
    assert task.lead.of(counts) == pytest.approx(0.1)


@pytest.mark.parametrize("name", TASKS)
def test_the_loss_is_a_mean_over_samples(name):
    """So that the loss of a client with many samples counts as much as it should."""
    task, (output, target) = TASKS[name], samples(name)
    each = torch.stack([task.loss(output[i : i + 1], target[i : i + 1]) for i in range(N)])
    torch.testing.assert_close(task.loss(output, target), each.mean())


def test_numbers_for_each_step_may_have_any_strides():
    """Such as those of a `Conv1d` whose channels are moved behind the steps."""
    draw = torch.Generator().manual_seed(0)
    output, target = torch.randn(N, 3, T, generator=draw), torch.randn(N, T, 3, generator=draw)
    found = TASKS["regression"].losses(output.transpose(1, 2), target)
    wanted = (output.permute(0, 2, 1) - target).square().sum((1, 2)) / (3 * T)
    torch.testing.assert_close(found, wanted)


def test_a_better_value_is_a_lower_one_where_the_metric_is_an_error():
    accuracy, mae = TASKS["classification"].lead, TASKS["regression"].lead
    assert accuracy.is_better(0.6, 0.5) and not accuracy.is_better(0.5, 0.5)
    assert mae.is_better(0.5, 0.6) and not mae.is_better(0.6, 0.5)
    assert mae.is_better(0.5, math.nan) and not mae.is_better(math.nan, 0.5)
    clients = [float(i) for i in range(11)]
    assert (accuracy.decile(clients), mae.decile(clients)) == (1.0, 9.0)
    assert (accuracy.worst(clients), mae.worst(clients)) == (0.0, 10.0)
    assert (accuracy.best(clients), mae.best(clients)) == (10.0, 0.0)
    assert (accuracy.shown(0.1234), mae.shown(0.12345)) == ("12.3 %", "0.1235")


@pytest.mark.parametrize("name", TARGETS)
def test_the_task_is_found_by_the_targets(name):
    inputs = TEXT if name == "tokens" else TABLE
    assert task_for("auto", inputs, TARGETS[name], "own") is TASKS[name]


@pytest.mark.parametrize(("choices", "names", "name"), [
    (2, ("u", "v", "w", "x"), "multilabel"), (2, (), "tokens"), (3, ("u", "v", "w"), "tokens"),
])  # fmt: skip
def test_labels_with_names_are_no_tokens_if_a_text_has_as_many(choices, names, name):
    inputs, targets = Spec((4,), WHOLE, 256), Spec((4,), WHOLE, choices)
    assert task_for("auto", inputs, targets, "own", names) is TASKS[name]


@pytest.mark.parametrize(("name", "targets", "line"), [
    ("classification", Spec(()), "targets must be labels, integers [N]; those of own are float32"),
    ("multilabel", label_spec(3), "targets must be truth values, booleans or 0 and 1"),
    ("tokens", label_spec(3), "targets must be tokens, integers [N, T] for inputs of T steps"),
    ("regression", Spec((2, 2)), "targets must be numbers [N], [N, F], or [N, T, F]"),
])  # fmt: skip
def test_targets_that_do_not_fit_are_one_line(name, targets, line):
    with pytest.raises(RunError) as caught:
        task_for(name, TABLE, targets, "own")
    assert f'task = "{name}": {line}' in str(caught.value)


@pytest.mark.parametrize(("name", "value", "places", "told"), [
    ("classification", 0.57288, 4, "0.5729"), ("classification", 87.344, 2, "87.34"),
    ("classification", 0.0, 4, "0.0000"), ("regression", 3.21e-5, 4, "3.21e-05"),
    ("regression", 1.5e9, 3, "1.5e+09"), ("regression", 0.21, 1, "0.21"),
    ("regression", None, 4, "-"),
])  # fmt: skip
def test_a_share_has_decimals_and_an_error_has_digits(name, value, places, told):
    assert TASKS[name].lead.digits(value, places=places) == told
