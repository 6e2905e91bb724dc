"""split=last: a client is tested on its last samples of each class, and nothing is drawn."""

import math
import re

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as budget
from hypothesis import strategies as st

from fedapps.core import config
from fedapps.core.errors import RunError
from fedapps.data import Form, of_device, partition
from fedapps.data.partition import own_share, shares
from fedapps.data.spec import Spec, label_spec
from fedapps.training.workspace import Workspace

LABELS = st.lists(st.integers(0, 3), min_size=4, max_size=60).map(np.array)
FRACTIONS = st.floats(0.01, 0.99)
GAPS = st.sampled_from([(0, 0, 0), (8, 0, 0), (8, 4, 1), (8, 3, 2), (9, 1, 8)])


LAST = config.read(config.parse(['split="last"']))


def made(**changed):
    return msgspec.structs.replace(LAST, **changed)


def keys(fraction, window=0, step=0, validation=0.0):
    parts = {"test_fraction": fraction, "validation_fraction": validation}
    return made(**parts, window=window, window_step=step)


def counted_out(labels, places, fraction, gap):
    """The places that stay and those that are taken: one label after the other, in order."""
    stay, taken = [], []
    for label in sorted({labels[place] for place in places}):
        of_label = [place for place in places if labels[place] == label]
        size = min(max(1, math.floor(fraction * len(of_label) + 0.5)), len(of_label) - 1)
        first = len(of_label) - size - gap
        enough = size and first > 0
        stay += of_label[:first] if enough else of_label
        taken += of_label[-size:] if enough else []
    return sorted(stay), sorted(taken)


@given(LABELS, FRACTIONS, GAPS)
@budget(max_examples=150, deadline=None)
def test_the_last_samples_of_each_class_are_the_test(labels, fraction, windows):
    window, step, gap = windows
    stay, taken = counted_out(labels, range(len(labels)), fraction, gap)
    try:
        share = own_share(labels, len(labels), 0, keys(fraction, window, step))
    except RunError:
        assert not taken  # nor in one sequence of all classes
        assert not counted_out(0 * labels, range(len(labels)), fraction, gap)[1]
        return
    if not taken:
        stay, taken = counted_out(0 * labels, range(len(labels)), fraction, gap)
    assert (share.train.tolist(), share.test.tolist()) == (stay, taken)


@given(LABELS, st.sampled_from([(0, 0, 0), (8, 3, 2)]))
@budget(max_examples=50, deadline=None)
def test_validation_takes_the_last_of_what_is_left(labels, windows):
    labels = np.concatenate([np.repeat(np.arange(4), 20), labels])  # enough of each class
    window, step, gap = windows
    share = own_share(labels, len(labels), 0, keys(0.25, window, step, validation=0.2))
    left, tests = counted_out(labels, range(len(labels)), 0.25, gap)
    stay, held_out = counted_out(labels, left, 0.2, gap)
    assert share.test.tolist() == tests
    assert (share.train.tolist(), share.validation.tolist()) == (stay, held_out)


@given(LABELS, LABELS, st.floats(0.1, 0.5), GAPS)
@budget(max_examples=100, deadline=None)
def test_no_sample_that_was_trained_on_is_a_test_when_the_data_have_grown(old, new, part, windows):
    old = np.concatenate([np.repeat(np.arange(4), 20), old])
    chosen = keys(part, *windows[:2])
    before, after = (own_share(x, len(x), 0, chosen) for x in (old, np.concatenate([old, new])))
    assert not set(before.train) & set(after.test)


def test_each_client_is_split_by_itself_whoever_shares_out():
    labels = np.random.default_rng(0).integers(0, 3, 200)
    for owners in (np.arange(200) % 4, None):
        chosen = made(num_clients=4, partitioner="iid", seed=1)
        everybody = shares(labels, 150, chosen, owners)
        for share in everybody:
            own = np.sort(np.concatenate([share.train, share.test]))
            expected = counted_out(labels, own.tolist(), chosen.test_fraction, 0)
            assert (share.train.tolist(), share.test.tolist()) == expected
        together = np.concatenate([np.concatenate([s.train, s.test]) for s in everybody])
        assert np.array_equal(np.sort(together), np.arange(200))


@pytest.fixture
def recordings(tmp_path):
    """Two recordings of 120 rows of each of three people; each row has a number of its own."""
    for person in range(3):
        for label in ("rest", "walk"):
            folder = tmp_path / "data" / f"person{person}" / label
            folder.mkdir(parents=True)
            begin = 1000 * person + 500 * (label == "walk")
            np.save(folder / "1.npy", np.arange(begin, begin + 120.0)[:, None])
    return tmp_path / "data"


@pytest.mark.parametrize("step", [0, 7, 3, 1])
def test_no_row_is_in_two_parts_whatever_windows_overlap(recordings, flat_config, step):
    """Windows of drawn samples share rows."""

    def rows(split):
        words = f'dataset="{recordings}" window=10 window-step={step} split="{split}"'
        more = 'partitioner="natural" num-clients=0 validation-fraction=0.3 model="gru"'
        space = Workspace(config.read(flat_config(words, more)))
        told = any("windows overlap" in line for line in space.dataset.told)
        assert told == (split == "merged" and bool(step))
        for client in range(3):
            share = space.population.share(client)
            parts = (share.train, share.validation, share.test)
            yield [{*np.unique(space.dataset.rows.read(part)).tolist()} for part in parts]

    for train, validation, test in rows("last"):
        assert train and validation and test
        assert not (train & validation or train & test or validation & test)
        assert max(row for row in train if row % 1000 < 500) < min(test)
    if step:
        assert any(train & test for train, _, test in rows("merged"))


@pytest.mark.parametrize("partitioner", ["iid", "dirichlet", "natural"])
def test_a_run_says_if_rows_of_a_test_train_other_clients(recordings, flat_config, partitioner):
    words = f'dataset="{recordings}" window=10 window-step=1 split="last" num-clients=3'
    more = f'partitioner="{partitioner}" model="gru"'
    space = Workspace(config.read(flat_config(words, more)))
    everybody = map(space.population.share, range(3))
    parts = [[space.dataset.rows.read(p) for p in (s.train, s.test)] for s in everybody]
    leaks = [np.isin(test, train).any() for _, test in parts for train, _ in parts]
    told = any("partitioner=natural, which draws none" in line for line in space.dataset.told)
    assert told == any(leaks) == (partitioner != "natural")


def test_a_device_has_no_rows_of_others(recordings, flat_config):
    keys = 'columns="0" window=10 window-step=1 input-shape="10,1" num-classes=2'
    for split, drawn in (("last", False), ("merged", True)):
        run = config.read(
            flat_config(f'dataset="device" split="{split}"', keys, 'class-names="rest,walk"')
        )
        own = recordings / "person0"
        told = of_device(own, Spec((10, 1)), label_spec(2), Form.of(run, run.names)).told
        assert any("set split=last, which draws none" in line for line in told) == drawn


WINDOWS = ", as windows that share rows with later ones are left out; "
FEW = 'split = "last": client 0 has 12 samples, it needs 13'


@pytest.mark.parametrize(("size", "changes", "says"), [
    (24, {"validation_fraction": 0.2}, "validation-fraction = 0.2: client 0 has 9 training samples,"
        f" it needs 12{WINDOWS}raise min-samples, or raise window-step"),
    (12, {}, f"{FEW}{WINDOWS}raise min-samples, or raise window-step"),
    (12, {"partitioner": "iid"}, f"{FEW}{WINDOWS}take fewer clients, or raise window-step"),
    (12, {"dataset": "device"}, f"{FEW}{WINDOWS}take more data, or raise window-step"),
    (2, {"validation_fraction": 0.5, "window_step": 0}, "validation-fraction = 0.5: client 0 has 1"
        " training sample, it needs 2; raise min-samples"),
])  # fmt: skip
def test_too_few_samples_end_a_run_before_it_begins(size, changes, says):
    alone = made(window=100, window_step=10, num_clients=1, partitioner="natural")
    chosen = msgspec.structs.replace(alone, **changes)
    labels = np.zeros(size, np.int64)
    with pytest.raises(RunError) as caught:
        shares(labels, size, chosen, labels)
    assert str(caught.value) == says
    with pytest.raises(RunError) as caught:
        own_share(labels, size, 0, chosen)
    assert str(caught.value) == says


def refusal(find, *values):
    """The line with which a call is refused, or none."""
    try:
        find(*values)
    except RunError as error:
        return str(error)
    return ""


@given(FRACTIONS, GAPS.filter(lambda windows: windows[2]), st.booleans())
@budget(max_examples=100, deadline=None)
def test_as_many_samples_as_it_says_are_enough(fraction, windows, validation):
    """For the test, or for validation beside a test part of one sample."""
    chosen = keys(fraction, *windows[:2], validation=fraction * validation)

    def said(size):
        return refusal(own_share, np.zeros(size + validation, np.int64), size, 0, chosen)

    needs = int(re.search(r"it needs (\d+), as", said(2))[1])
    assert said(needs - 1) and not said(needs)


@given(LABELS, st.integers(1, 4), FRACTIONS, FRACTIONS, GAPS)
@budget(max_examples=150, deadline=None)
def test_clients_are_refused_at_the_start_but_split_on_demand(
    labels, clients, fraction, validation, windows
):
    """The start says what splits say, one client after the other, but does none if all can be."""
    chosen = keys(fraction, *windows[:2], validation=validation)
    chosen = msgspec.structs.replace(chosen, num_clients=clients)
    owners = np.arange(len(labels)) % clients
    parts = [labels[owners == client] for client in range(clients)]
    said = [refusal(own_share, own, len(own), k, chosen) for k, own in enumerate(parts)]
    first = next(filter(None, said), "")
    with pytest.MonkeyPatch.context() as patch:
        if not first:
            patch.delattr(partition, "_divided")
        assert refusal(shares, labels, len(labels), chosen, owners) == first
