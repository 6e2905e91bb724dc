"""Partitioners: who gets which samples, properties that hold for all of them, and every error."""

import hashlib
import json
import math
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import get_args, get_type_hints

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import settings as budget
from hypothesis import strategies as st

from fedapps.core import listed
from fedapps.core.config import parse, read
from fedapps.core.draws import partition_generator
from fedapps.core.errors import RunError
from fedapps.core.settings import Settings
from fedapps.data import Share, class_counts, declared, partition, population, shares
from fedapps.data.partitioners import PARTITIONERS as REGISTERED
from fedapps.data.partitioners import Partitioner, dirichlet
from fedapps.data.spec import Spec, image_spec, label_spec

PARTITIONERS = ("dirichlet", "shards", "sizes", "classes", "iid")
FEDFC = "0-2/2-4/4-6/7-9"


def make(**changed):
    """Settings with the fields that a partition reads."""
    values = {
        "split": "merged", "test_fraction": 0.25, "validation_fraction": 0.0, "partitioner": "iid",
        "alpha": 1.0, "dirichlet_balance": True, "shards_per_client": 2, "sizes": "",
        "classes_per_client": "", "num_clients": 4, "min_samples": 2, "seed": 0,
        "unseen_clients": "", "few_shot": 0, "on_devices": False,
    }  # fmt: skip
    assert not changed.keys() - values.keys()
    return SimpleNamespace(**values | changed)


def balanced(classes, train, test, seed=0):
    """Labels with as many samples of every class, in random order: (labels, number of train)."""
    rng = np.random.default_rng(seed)
    parts = [rng.permutation(np.repeat(np.arange(classes), n)) for n in (train, test)]
    return np.concatenate(parts), classes * train


def owned(result, part):
    return np.concatenate([getattr(share, part) for share in result])


def held(labels, result):
    """Samples (train and test) by client and class."""
    parts = [np.concatenate([share.train, share.test]) for share in result]
    return np.stack([np.bincount(labels[part], minlength=labels.max() + 1) for part in parts])


def fingerprint(result):
    parts = [array for share in result for array in (share.train, share.test, [-1])]
    return hashlib.sha256(np.concatenate(parts).astype("<i8").tobytes()).hexdigest()


@st.composite
def cases(draw):
    """Labels, number of train samples and settings that fit them."""
    classes, clients = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    seed = draw(st.integers(0, 2**32))
    rng = np.random.default_rng(seed)
    sizes = rng.integers(4 * clients, 12 * clients, (2, classes))
    labels = [rng.permutation(np.repeat(np.arange(classes), row)) for row in sizes]
    fractions = rng.integers(5, 10, clients)
    sets = [sorted({i % classes, int(rng.integers(classes))}) for i in range(clients)]
    chosen = make(
        partitioner=draw(st.sampled_from(PARTITIONERS)),
        num_clients=clients,
        seed=seed,
        test_fraction=draw(st.floats(0.01, 0.99)),
        alpha=draw(st.sampled_from([0.3, 1.0, 50.0])),
        dirichlet_balance=draw(st.booleans()),
        min_samples=draw(st.integers(2, 5)),
        shards_per_client=draw(st.integers(1, 4)),
        sizes=",".join(str(f / fractions.sum()) for f in fractions),
        classes_per_client="/".join(",".join(map(str, s)) for s in sets),
    )
    return np.concatenate(labels), len(labels[0]), chosen


def complete(labels, chosen):
    """Samples that somebody must get: all, or all of the classes that somebody names."""
    if chosen.partitioner != "classes":
        return np.arange(len(labels))
    named = {int(word) for word in chosen.classes_per_client.replace("/", ",").split(",")}
    return np.flatnonzero(np.isin(labels, sorted(named)))


def fewest(chosen):
    """Samples that each client gets at least of what is partitioned."""
    return chosen.min_samples if chosen.partitioner == "dirichlet" else 2


def shared_out(labels, num_train, chosen):
    """`shares`, where it is no shame to find no draw or no test sample for so few samples."""
    try:
        return shares(labels, num_train, chosen)
    except RunError as error:
        assert any(what in str(error) for what in ("draws", "no test sample", "would need"))
        assume(False)


@given(cases())
@budget(max_examples=150, deadline=None)
def test_merged_is_disjoint_complete_and_split_by_the_formula(case):
    labels, num_train, chosen = case
    result = shared_out(labels, num_train, chosen)
    assert len(result) == chosen.num_clients
    everything = np.concatenate([owned(result, "train"), owned(result, "test")])
    assert np.array_equal(np.sort(everything), complete(labels, chosen))
    for share in result:
        n = len(share.train) + len(share.test)
        assert n >= fewest(chosen)
        wanted = math.floor(chosen.test_fraction * n + 0.5)
        assert len(share.test) == min(max(1, wanted), n - 1)
        assert len(share.train) >= 1
        for part in (share.train, share.test):
            assert part.dtype == np.int64
            assert np.all(np.diff(part) > 0)


@given(cases())
@budget(max_examples=150, deadline=None)
def test_official_keeps_train_and_test_apart_and_follows_the_proportions(case):
    labels, num_train, chosen = case
    chosen.split = "official"
    result = shared_out(labels, num_train, chosen)
    train, test = owned(result, "train"), owned(result, "test")
    assert np.array_equal(np.sort(train), complete(labels[:num_train], chosen))
    assert np.array_equal(np.sort(test), num_train + complete(labels[num_train:], chosen))
    assert min(len(share.test) for share in result) >= 1
    assert min(len(share.train) for share in result) >= fewest(chosen)
    if chosen.partitioner != "shards":
        classes = labels.max() + 1
        parts = ([s.train for s in result], [s.test for s in result])
        count = [np.stack([np.bincount(labels[p], minlength=classes) for p in ps]) for ps in parts]
        wanted = count[0] / np.maximum(count[0].sum(axis=0), 1) * count[1].sum(axis=0)
        assert np.abs(count[1] - wanted).max() < 1 + 1e-6


def all_fingerprints():
    """One of every partitioner and split."""
    labels, num_train = balanced(10, 30, 12)
    options = {"sizes": "0.4,0.3,0.2,0.1", "classes_per_client": FEDFC, "seed": 5}
    return [
        fingerprint(shares(labels, num_train, make(partitioner=name, split=split, **options)))
        for name in PARTITIONERS
        for split in ("merged", "official")
    ]


def test_another_process_gets_the_same():
    code = (
        "from importlib.util import module_from_spec, spec_from_file_location\n"
        f"spec = spec_from_file_location('other', {__file__!r})\n"
        "other = module_from_spec(spec); spec.loader.exec_module(other)\n"
        "print(*other.all_fingerprints())"
    )
    root = Path(partition.__file__).parents[2]
    env = {**os.environ, "PYTHONPATH": str(root), "PYTHONHASHSEED": "7"}
    out = subprocess.check_output([sys.executable, "-c", code], env=env, text=True)
    assert out.split() == all_fingerprints()


@pytest.mark.parametrize("name", PARTITIONERS)
def test_another_seed_gives_other_shares(name):
    labels, num_train = balanced(10, 30, 12)
    options = {"partitioner": name, "sizes": "0.4,0.3,0.2,0.1", "classes_per_client": FEDFC}
    first, second = (shares(labels, num_train, make(seed=s, **options)) for s in (0, 1))
    assert fingerprint(first) != fingerprint(second)


def test_test_fraction_changes_nothing_about_who_holds_what():
    labels, num_train = balanced(10, 30, 12)
    options = [make(partitioner="dirichlet", test_fraction=f) for f in (0.25, 0.5)]
    one, two = (shares(labels, num_train, chosen) for chosen in options)
    assert np.array_equal(held(labels, one), held(labels, two))


def test_a_share_is_shuffled_before_it_is_split():
    labels, num_train = balanced(2, 200, 200)
    share = shares(labels, num_train, make(num_clients=1, test_fraction=0.5))[0]
    assert 150 < np.sum(share.test < num_train) < 250


@pytest.mark.parametrize("split", ["merged", "official"])
@given(st.floats(0.01, 0.99), st.integers(0, 9))
@budget(max_examples=20, deadline=None)
def test_validation_is_held_out_of_the_training_samples_alone(split, fraction, seed):
    labels, num_train = balanced(10, 30, 12)
    options = {"partitioner": "dirichlet", "split": split, "seed": seed}
    whole = shares(labels, num_train, make(**options))
    held_out = shares(labels, num_train, make(**options, validation_fraction=fraction))
    for before, after in zip(whole, held_out, strict=True):
        assert before.validation.tolist() == []
        assert np.array_equal(before.test, after.test)
        together = np.concatenate([after.train, after.validation])
        assert np.array_equal(np.sort(together), before.train)
        size = math.floor(fraction * len(before.train) + 0.5)
        assert len(after.validation) == min(max(1, size), len(before.train) - 1)
        assert np.all(np.diff(after.validation) > 0)


def test_nothing_to_hold_out():
    chosen = make(num_clients=3, test_fraction=0.5, validation_fraction=0.2)
    with pytest.raises(RunError, match="client 0 has 1 training sample, it needs 2; take fewer"):
        shares(np.zeros(6, np.int64), 6, chosen)


# iid and sizes ------------------------------------------------------------------------------------


def test_iid_parts_are_equal_and_like_the_whole():
    labels, num_train = balanced(10, 5000, 1000)
    result = shares(labels, num_train, make(num_clients=7, split="official"))
    assert {len(share.train) for share in result} == {7142, 7143}
    assert sum(len(share.test) for share in result) == 10_000
    assert np.abs(held(labels, result) / 6000 - 1 / 7).max() < 0.02


def test_small_proportions_do_not_always_fall_to_the_same_clients():
    """100 clients and 36 test samples per class: with plain rounding 64 clients had none."""
    labels, num_train = balanced(10, 144, 36)
    result = shares(labels, num_train, make(num_clients=100, split="official"))
    assert {len(share.test) for share in result} <= {2, 3, 4, 5, 6}


@pytest.mark.parametrize("split", ["merged", "official"])
def test_sizes_of_fedfc(split):
    labels, num_train = balanced(10, 5000, 1000)
    chosen = make(partitioner="sizes", sizes="0.4, 0.3, 0.2, 0.1", split=split, test_fraction=1 / 6)
    result = shares(labels, num_train, chosen)
    assert [len(share.train) for share in result] == [20_000, 15_000, 10_000, 5000]
    assert sum(len(share.test) for share in result) == 10_000
    mix = held(labels, result) / np.array([[2400], [1800], [1200], [600]])
    assert np.abs(mix - 1).max() < 0.15


def test_sizes_may_miss_one_by_a_rounding_error():
    labels, num_train = balanced(2, 15, 5)
    chosen = make(num_clients=3, partitioner="sizes", sizes="0.333333,0.333333,0.333334")
    result = shares(labels, num_train, chosen)
    assert sum(len(s.train) + len(s.test) for s in result) == 40


# shards -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("per_client", [100, 50, 10])
def test_fedbabu(per_client):
    """100 clients on CIFAR-100: 500 train and 100 test images each, of the same classes."""
    labels, num_train = balanced(100, 500, 100)
    options = {"num_clients": 100, "shards_per_client": per_client}
    chosen = make(partitioner="shards", split="official", **options)
    result = shares(labels, num_train, chosen)
    assert {(len(share.train), len(share.test)) for share in result} == {(500, 100)}
    assert len(np.unique(owned(result, "train"))) == 50_000
    assert len(np.unique(owned(result, "test"))) == 10_000
    for share in result:
        train = np.bincount(labels[share.train], minlength=100)
        test = np.bincount(labels[share.test], minlength=100)
        assert np.array_equal(train, 5 * test)
        assert len(np.flatnonzero(train)) <= per_client
        if per_client == 10:
            assert np.all(train % 50 == 0)


def test_a_shard_is_a_stretch_of_the_sorted_labels():
    labels, num_train = balanced(5, 40, 20)
    chosen = make(partitioner="shards", num_clients=10, shards_per_client=1, split="official")
    result = shares(labels, num_train, chosen)
    place = np.argsort(np.argsort(labels[:num_train], kind="stable"))
    place_of_test = np.argsort(np.argsort(labels[num_train:], kind="stable"))
    for share in result:
        train, test = np.sort(place[share.train]), np.sort(place_of_test[share.test - num_train])
        assert np.array_equal(train, train[0] + np.arange(20))
        assert np.array_equal(test, test[0] + np.arange(10))
        assert train[0] == 2 * test[0]


def test_shards_that_do_not_divide_the_samples_use_all_of_them():
    labels = np.repeat(np.arange(3), [7, 9, 7])
    result = shares(labels, 23, make(partitioner="shards", num_clients=5))
    assert {len(share.train) + len(share.test) for share in result} <= {4, 5, 6}
    assert sum(len(share.train) + len(share.test) for share in result) == 23


# classes ------------------------------------------------------------------------------------------


def test_class_imbalance_of_fedfc():
    labels, num_train = balanced(10, 5000, 1000)
    chosen = make(partitioner="classes", classes_per_client=FEDFC, split="official")
    result = shares(labels, num_train, chosen)
    expected = np.zeros((4, 10), int)
    expected[:3, :7] = [[2, 2, 1, 0, 0, 0, 0], [0, 0, 1, 2, 1, 0, 0], [0, 0, 0, 0, 1, 2, 2]]
    expected[3, [7, 8, 9]] = 2
    expected *= 3000  # half of a class
    assert np.array_equal(held(labels, result), expected)
    assert [len(share.train) for share in result] == [12_500, 10_000, 12_500, 15_000]
    assert [len(share.test) for share in result] == [2500, 2000, 2500, 3000]


@pytest.mark.parametrize(("text", "holders"), [
    ("0/1", [[0], [1]]), (" 0 - 1 / 1 ", [[0, 1], [1]]), ("0,0-2/2,1", [[0, 1, 2], [1, 2]]),
    ("0-2,4/3", [[0, 1, 2, 4], [3]]),
])  # fmt: skip
def test_class_sets(text, holders):
    labels, num_train = balanced(5, 6, 4)
    chosen = make(partitioner="classes", num_clients=2, classes_per_client=text)
    counts = held(labels, shares(labels, num_train, chosen))
    assert [np.flatnonzero(row).tolist() for row in counts] == holders


def test_three_holders_of_ten_samples():
    labels = np.repeat([0, 1], 10)
    chosen = make(partitioner="classes", num_clients=3, classes_per_client="0,1/0,1/0,1")
    counts = held(labels, shares(labels, 20, chosen))
    assert counts.sum(axis=0).tolist() == [10, 10]
    assert set(counts.flat) == {3, 4}
    assert sorted(counts.sum(axis=1)) == [6, 7, 7]  # the odd ones fall to different clients


# dirichlet ----------------------------------------------------------------------------------------


def slow_dirichlet(sizes, chosen):
    """The rule as the paper's text has it, one draw and one class at a time."""
    rng = np.random.default_rng([chosen.seed, 0x70617274, 1])
    while True:
        held = np.zeros(chosen.num_clients)
        counts = np.zeros((chosen.num_clients, len(sizes)), int)
        draw = [rng.dirichlet([chosen.alpha] * chosen.num_clients) for _ in sizes]
        for label, proportions in enumerate(draw):
            if chosen.dirichlet_balance:
                proportions = np.where(held < sum(sizes) / chosen.num_clients, proportions, 0)
            edges = np.cumsum(proportions) / np.cumsum(proportions)[-1]
            counts[:, label] = np.diff(np.rint(edges * sizes[label]), prepend=0)
            held = counts.sum(axis=1)
        if held.min() >= chosen.min_samples:
            return counts


def equals_the_paper(labels, **options):
    for seed in range(5):
        chosen = make(partitioner="dirichlet", seed=seed, **options)
        counts = held(labels, shares(labels, len(labels), chosen))
        assert np.array_equal(counts, slow_dirichlet(np.bincount(labels), chosen))


@pytest.mark.parametrize("balance", [True, False])
@pytest.mark.parametrize(("alpha", "least"), [(0.1, 8), (0.5, 30), (10.0, 2)])
def test_dirichlet_is_the_rule_of_the_paper(balance, alpha, least):
    labels = np.repeat(np.arange(10), 100 + 10 * np.arange(10))
    options = {"alpha": alpha, "min_samples": least, "dirichlet_balance": balance}
    equals_the_paper(labels, num_clients=20, **options)


def test_a_client_with_exactly_an_equal_share_gets_none_of_the_next_class():
    """Ten classes of 4 samples for 10 clients: 4 samples each are often reached exactly."""
    equals_the_paper(np.repeat(np.arange(10), 4), num_clients=10, alpha=10.0)


@pytest.mark.parametrize("alpha", [1e-300, 1e-4, 1e300])
def test_proportions_at_the_edge_of_floating_point(alpha):
    """Whatever the generator returns, no sample is lost: a whole partition or one line."""
    labels, num_train = balanced(6, 40, 10)
    for balance in (True, False):
        chosen = make(partitioner="dirichlet", alpha=alpha, dirichlet_balance=balance)
        try:
            assert held(labels, shares(labels, num_train, chosen)).sum() == len(labels)
        except RunError as error:
            assert "10,000 draws" in str(error)


def test_an_unmet_minimum_ends_after_so_many_draws(monkeypatch):
    labels, num_train = balanced(10, 100, 20)
    drawn = []
    cut = dirichlet._cut
    monkeypatch.setattr(dirichlet, "_cut", lambda d, *rest: drawn.append(len(d)) or cut(d, *rest))
    chosen = make(partitioner="dirichlet", num_clients=10, alpha=0.1, min_samples=119)
    with pytest.raises(RunError) as caught:
        shares(labels, num_train, chosen)
    assert sum(drawn) == dirichlet.MAX_DRAWS == 10_000
    for part in ("10,000 draws", "alpha = 0.1", "10 clients", "min-samples = 119"):
        assert part in str(caught.value)
    assert "dirichlet-balance" not in str(caught.value)
    chosen.dirichlet_balance = False
    with pytest.raises(RunError, match="dirichlet-balance = true"):
        shares(labels, num_train, chosen)


@pytest.mark.parametrize(("clients", "lines"), [(10, 0), (40, 1)])
def test_draws_that_take_long_are_told_once(clients, lines, monkeypatch, caplog):
    monkeypatch.setattr(dirichlet, "MAX_DRAWS", 50)
    monkeypatch.setattr(dirichlet, "TOLD", 10 * 20 * 40)  # 20 draws for 40 clients
    monkeypatch.setattr(dirichlet, "_cut", lambda drawn, *rest: np.zeros_like(drawn))
    labels, num_train = balanced(10, 100, 20)
    with pytest.raises(RunError, match="none of 50 draws"):
        shares(labels, num_train, make(partitioner="dirichlet", num_clients=clients, alpha=0.1))
    told = [line for line in caplog.messages if "draws with alpha = 0.1 gave all" in line]
    assert len(told) == lines
    if lines:
        assert told[0].endswith("; 50 are tried")
        assert 20 < int(told[0].split("none of ")[1].split()[0]) < 50


# adding a partitioner -----------------------------------------------------------------------------


def test_every_value_of_the_key_is_registered():
    kind = get_args(get_type_hints(Settings)["partitioner"])
    assert set(kind) == set(REGISTERED) == {*PARTITIONERS, "natural"}


@pytest.mark.parametrize("test_owners", [None, lambda labels, settings: 1 - labels])
def test_a_new_partitioner_says_how_the_official_test_set_follows(monkeypatch, test_owners):
    """By itself class by class as the train set; else as the partitioner deals it."""
    chosen = make(partitioner="by-label", num_clients=2, split="official")
    monkeypatch.setitem(REGISTERED, "by-label", Partitioner(lambda x, s: x, test_owners))
    labels = np.array([0, 0, 0, 1, 1, 1, 0, 0, 0, 1])
    first, second = shares(labels, 6, chosen)
    assert [first.train.tolist(), second.train.tolist()] == [[0, 1, 2], [3, 4, 5]]
    own = [0, 1, 2] if test_owners is None else [3]
    assert first.test.tolist() == [6 + i for i in own]
    assert sorted([*first.test, *second.test]) == [6, 7, 8, 9]


def test_draws_of_a_partition_are_those_of_published_results():
    steps = ("dirichlet", "deal", "shards", "shuffle", "split", "deal-test", "validation")
    for number, step in enumerate(steps, 1):
        rule = np.random.default_rng([7, 0x70617274, number, 3])
        assert partition_generator(7, step, 3).random() == rule.random()


# errors -------------------------------------------------------------------------------------------


ERRORS = """
iid num_clients=200 -> num-clients = 200: 200 clients for 120 samples; a client needs
iid num_clients=61 -> 61 clients for 120 samples; a client needs at least 2
dirichlet min_samples=31 -> \
min-samples = 31: 4 clients would need 124 of 120 samples; take at most 30
shards shards_per_client=31 -> \
shards-per-client = 31: 4 clients would need 124 shards of 120 samples; take at most
sizes sizes="" -> sizes = "": must be fractions, such as 0.4
sizes sizes="0.5,half,0.25" -> must be fractions, such as
sizes sizes="0.5,0.5" -> 2 fractions for num-clients = 4
sizes sizes="0.5,0.3,0.2,0.1" -> the sum is 1.1; must be 1
sizes sizes="0.25,0.25,0.25,0.25001" -> must be 1
sizes sizes="1.5,-0.5,0,0" -> must be above 0 and at most 1
sizes sizes="nan,0.5,0.25,0.25" -> must be above 0 and at most 1
sizes sizes="0.33,0.33,0.33,0.01" -> \
partitioner = "sizes": client 3 would get 1 sample of 120; a client needs at least 2
classes classes_per_client="" -> \
classes-per-client = "": must be a set per client, such as 0-2/2-4/4-6/7-9 or 0,1/2,3
classes classes_per_client="0/1/2/" -> must be a set per client
classes classes_per_client="0/1/2/b" -> must be a set per client
classes classes_per_client="0/1/2/2-1" -> must be a set per client
classes classes_per_client="0/1/2/-1" -> must be a set per client
classes classes_per_client="0/1" -> 2 sets for num-clients = 4
classes classes_per_client="0/1/2/0-999999999999" -> \
class 999999999999 is unknown; classes are 0..2
"""


@pytest.mark.parametrize("case", ERRORS.strip().splitlines())
def test_errors_are_one_line_with_key_and_value(case):
    option, text = case.split(" -> ")
    name, key, value = re.split("[ =]", option)
    labels, num_train = balanced(3, 30, 10)
    with pytest.raises(RunError) as caught:
        shares(labels, num_train, make(partitioner=name, **{key: json.loads(value)}))
    assert text in str(caught.value) and "\n" not in str(caught.value)


def test_two_clients_for_one_sample():
    with pytest.raises(RunError, match="2 clients for 1 sample;"):
        shares(np.array([0]), 1, make(num_clients=2))
    with pytest.raises(RunError, match="1 client for 0 samples;"):
        shares(np.array([], np.int64), 0, make(num_clients=1))


def test_official_partitions_the_train_set_alone():
    labels, num_train = balanced(3, 10, 30)
    with pytest.raises(RunError, match="16 clients for 30 samples"):
        shares(labels, num_train, make(num_clients=16, split="official"))


@pytest.mark.parametrize("name", ["iid", "shards", "dirichlet"])
def test_a_client_without_test_samples(name):
    labels, num_train = balanced(3, 30, 1)
    chosen = make(partitioner=name, split="official", alpha=100.0)
    with pytest.raises(RunError) as caught:
        shares(labels, num_train, chosen)
    text = 'split = "official": client .* would have no test sample \\(4 clients, 3 test samples\\)'
    assert caught.match(text)


def test_a_class_that_only_the_test_set_has_goes_to_nobody():
    labels = np.array([0] * 8 + [1] * 8 + [0, 0, 1, 1, 2, 2])
    result = shares(labels, 16, make(num_clients=2, split="official"))
    assert np.array_equal(np.sort(owned(result, "test")), [16, 17, 18, 19])


def test_class_counts_are_of_training_samples():
    parts = [([0, 3], [1]), ([2], [4])]
    result = tuple(Share(np.array(train), np.array(test)) for train, test in parts)
    counts = class_counts(np.array([0, 2, 1, 0, 1]), result)
    assert counts.tolist() == [[2, 0, 0], [0, 1, 0]]


# Populations


def test_a_population_distributes_when_the_first_share_is_needed(monkeypatch):
    labels, num_train = np.arange(60) % 3, 50
    dataset = declared("made", image_spec((1, 2, 2)), label_spec(3))
    dataset = replace(dataset, target_values=labels, num_train=num_train)
    chosen, asked = make(num_clients=4), []
    monkeypatch.setattr(population, "shares", lambda *a: asked.append(a) or shares(*a))
    found = population.partitioned(dataset, chosen)
    assert ([*found.training], [*found.held_out], asked) == ([0, 1, 2, 3], [], [])
    for client, expected in enumerate(shares(labels, num_train, chosen)):
        np.testing.assert_array_equal(found.share(client).train, expected.train)
        np.testing.assert_array_equal(found.share(client).test, expected.test)
    assert len(asked) == 1


def test_a_device_is_a_population_of_one_with_all_samples():
    dataset = declared("made", image_spec((1, 2, 2)), label_spec(2))
    dataset = replace(dataset, target_values=np.array([0, 1, 0, 1, 1]), num_train=3)
    found = population.of_device(dataset, make(num_clients=9), 7)
    assert [*found.training] == [7]
    assert found.share(7).train.tolist() == [0, 1, 2] and found.share(7).test.tolist() == [3, 4]
    with pytest.raises(RunError, match=r"^client 6: this device is client 7$"):
        found.share(6)


@pytest.mark.parametrize(("text", "size"), [("0.2", 2), ("0.25", 3), ("0.01", 1), ("0.99", 9)])
def test_a_share_of_the_clients_is_held_out(text, size):
    """Rounded half up, at least one, and at least one trains; the draw depends on the seed."""
    found = [population.held_out(make(num_clients=10, unseen_clients=text, seed=s)) for s in (0, 1)]
    assert [len({*one}) for one in found] == [size, size] and {*found[0]} <= {*range(10)}
    assert found[0] == population.held_out(make(num_clients=10, unseen_clients=text, seed=0))
    assert text != "0.2" or found[0] != found[1]


def test_named_clients_are_held_out_and_keep_their_samples():
    dataset = replace(declared("made", image_spec((1, 2, 2)), label_spec(3)), num_train=60)
    dataset = replace(dataset, target_values=np.arange(80) % 3)
    options = {"num_clients": 6, "min_samples": 2, "alpha": 5.0}
    plain = population.partitioned(dataset, make(**options))
    found = population.partitioned(dataset, make(unseen_clients="1,3-4", **options))
    assert ([*found.training], [*found.held_out]) == ([0, 2, 5], [1, 3, 4])
    for client in range(6):
        assert np.array_equal(found.share(client).train, plain.share(client).train)


@pytest.mark.parametrize("text", ["1.0", "0.0", "4", "-1", "one", "0-3", "2-1", "0.1,3", ","])
def test_clients_that_cannot_be_held_out(text):
    which = "no client 0.1; " if text == "0.1,3" else ""
    line = f'unseen-clients = "{text}": {which}must be a share .* from 0 to 3'
    with pytest.raises(RunError, match=line):
        population.held_out(make(num_clients=4, unseen_clients=text))


def test_clients_that_the_data_name_are_held_out_by_name():
    """What is a name is taken for it, other numbers for those of clients, 0.5 for a share."""
    names = np.array(["VA. Long Beach", "Hungary", "Basel", "0", "0.5"])
    dataset = replace(declared("made", image_spec((1, 2, 2)), label_spec(2)), num_train=50)
    dataset = replace(dataset, target_values=np.arange(50) % 2, groups=names[np.arange(50) % 5])
    options = 'num-clients=0 partitioner="natural" min-samples=2'

    def found(text):
        chosen = read(parse([f'{options} unseen-clients="{text}"']))
        return population.partitioned(dataset, chosen)

    in_order = sorted(names)
    for text, out in (("Hungary", ["Hungary"]), ("1, Basel", ["0.5", "Basel"]), ("0", ["0"]),
                      ("VA. Long Beach,3-3", ["Hungary", "VA. Long Beach"])):  # fmt: skip
        assert [in_order[client] for client in found(text).held_out] == out
    assert len(found("0.5").held_out) == 3  # a share, rounded half up
    for text, alike in (("hungry", "Hungary"), ("Basel,hungry", "Hungary"), ("-", "0, 0.5, Basel")):
        which = "no client hungry; " if "," in text else ""
        line = f'"{text}": {which}must .* 0 to 4, such as 3,7-9, or names, such as {alike}; at'
        with pytest.raises(RunError, match=line):
            found(text)


@pytest.mark.parametrize(("text", "out"), [
    ("001", "001"), ("2", "2"), ("002", None), ("0", "001"), ("2-10", "2,9,10"), ("x,y", "x,y"),
    ("x,y,z", None), ("1-3", "2,9,10"), ("2,10", "2,10"), ("3-1", None), ("10-2", None),
])  # fmt: skip
def test_clients_that_are_called_by_numbers_are_held_out_by_these(text, out):
    """The clients 0 to 5 are called 001, 2, 9, 10, 11, 12; or one of them x,y."""
    names = ["001", "2", "9", "10", "11", "12"][: 5 if "x" in text else 6] + ["x,y"] * ("x" in text)
    if out is None:
        line = r'unseen-clients = ".*": .*must be .* names, such as'
        with pytest.raises(RunError, match=line) as e:
            listed.unseen(text, 6, 0, names)
        assert "x,y" not in str(e.value).partition("such as 0.2")[2]
    else:
        found = [names[client] for client in listed.unseen(text, 6, 0, names)]
        assert ",".join(found) == out


def test_a_newcomer_has_the_first_samples_of_each_class():
    dataset = replace(declared("made", image_spec((1, 2, 2)), label_spec(3)), num_train=60)
    dataset = replace(dataset, target_values=np.arange(80) % 3)
    options = {"num_clients": 2, "min_samples": 20, "alpha": 100.0, "unseen_clients": "1"}
    whole, one, five = (
        population.partitioned(dataset, make(few_shot=count, **options)) for count in (0, 1, 5)
    )
    for few, most in ((one, 1), (five, 5)):
        share = few.share(1)
        assert np.bincount(dataset.labels[share.train]).tolist() == [most] * 3
        assert {*share.train} < {*whole.share(1).train}
        assert np.array_equal(share.test, whole.share(1).test)
        assert np.array_equal(few.share(0).train, whole.share(0).train)
    assert {*one.share(1).train} < {*five.share(1).train}
    floats = replace(dataset, targets=Spec((), "float32"), target_values=np.arange(80.0))
    few = population.partitioned(floats, make(few_shot=5, partitioner="iid", **options))
    assert len(few.share(1).train) == 5
