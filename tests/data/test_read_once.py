"""Own data of several runs in one process: read once, and anew if they or their form change."""

import numpy as np
import pandas as pd
import pytest

from fedapps.core import config
from fedapps.data import Form, load, loading
from fedapps.training.run_data import RunData
from fedapps.training.workspace import workspace

FORM = Form(target_column="y", client_column="who")


@pytest.fixture
def opened(monkeypatch):
    """Return the list of what is really opened, which grows."""
    calls, real = [], loading.open_own

    def spy(path, form):
        calls.append((path.name, form.target_column))
        assert not loading._last  # memory holds one data set, not the old one beside the new one
        return real(path, form)

    monkeypatch.setattr(loading, "open_own", spy)
    loading._last.clear()
    return calls


def table(path, shift=0.0):
    draws = np.random.default_rng(0)
    labels, clients = np.arange(60) % 2, [f"c{n % 3}" for n in range(60)]
    values = {"a": draws.normal(size=60).round(3) + shift, "y": labels, "who": clients}
    pd.DataFrame(values).to_csv(path, index=False)
    return str(path)


def test_runs_that_differ_in_a_learning_rate_read_a_table_once(tmp_path, opened):
    keys = {
        "dataset": table(tmp_path / "own.csv"), "target-column": "y", "client-column": "who",
        "partitioner": "natural", "num-clients": 0, "model": "mlp", "device": "cpu",
    }  # fmt: skip
    runs = [workspace(config.read(config.defaults() | keys | {"lr": lr})) for lr in (0.1, 0.2)]
    assert opened == [("own.csv", "y")]
    first, second = (run.samples(1, "train") for run in runs)
    assert all(
        (a == b).all() and a.data_ptr() != b.data_ptr() for a, b in zip(first, second, strict=True)
    )


def test_a_changed_file_is_read_anew(tmp_path, opened):
    path = table(tmp_path / "own.csv")
    before, _ = load(path, "unused", FORM).tensors(np.arange(60))
    table(tmp_path / "own.csv", shift=100.0)  # longer texts, so its size is another, too
    after, _ = load(path, "unused", FORM).tensors(np.arange(60))
    assert len(opened) == 2 and np.allclose(after - before, 100.0, atol=1e-3)


def test_only_the_data_that_were_opened_last_are_kept(tmp_path, opened):
    one, other = (table(tmp_path / name) for name in ("one.csv", "other.csv"))
    images, labels = np.zeros((4, 32, 32, 3), np.uint8), np.arange(4)
    np.savez(
        tmp_path / "cifar10.npz",
        train_images=images, train_labels=labels, test_images=images, test_labels=labels,
    )  # fmt: skip
    swapped = Form(target_column="a", client_column="who")
    for path, form in ((one, FORM), (one, swapped), (other, FORM), (other, FORM), (one, FORM)):
        load(path, "unused", form)
    assert opened == [("one.csv", "y"), ("one.csv", "a"), ("other.csv", "y"), ("one.csv", "y")]
    load("cifar10", str(tmp_path))
    assert not loading._last


def test_no_run_can_change_the_data_of_the_next(tmp_path, opened):
    found = load(table(tmp_path / "own.csv"), "unused", FORM)
    for values in (found.target_values, found.groups):
        with pytest.raises(ValueError, match="read-only"):
            values[:1] = values[1:2]


def test_targets_count_for_the_cache_limit(tmp_path):
    """A token for each token: two of three clients fill a MiB with inputs and targets."""
    tokens, who = np.random.default_rng(0).integers(0, 9, (1800, 65)), np.repeat([*"abc"], 600)
    np.savez(tmp_path / "own.npz", inputs=tokens[:, :-1], targets=tokens[:, 1:], groups=who)
    keys = {
        "dataset": str(tmp_path / "own.npz"), "partitioner": "natural", "num-clients": 0,
        "split": "merged", "task": "tokens", "device": "cpu", "cache-limit": 1,
    }  # fmt: skip
    data = RunData(config.read(config.defaults() | keys))
    first = [data.samples(client, "train") for client in range(3)]
    kept = [data.samples(client, "train")[0] is first[client][0] for client in (2, 1, 0)]
    sizes = [sum(values.nbytes for values in samples) for samples in first]
    assert sum(sizes[1:]) < 2**20 < sum(sizes) and kept == [True, True, False]
