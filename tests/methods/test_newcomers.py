"""Clients that come after the training: what a method gives them, and what they cannot change."""

import numpy as np
import pytest

from fedapps.core import registry
from tests.support.methods import needed

SMALL = (
    "num-clients=4 fraction-train=1.0 num-rounds=2 evaluate-every=0 local-epochs=2 "
    'finetune-epochs=0 unseen-clients="1"'
)


def options(method, more=""):
    part = "validation-fraction=0.2" if method == "fedfomo" else ""
    return f'{SMALL} {needed(method)} strategy="{method}" {part} {more}'


@pytest.fixture(scope="session")
def two_files(tmp_path_factory, make_npz):
    """Return make(indices) -> run-config of samples, and of the same with other inputs there."""
    folder = tmp_path_factory.mktemp("two")

    def config_of(path):
        return f'dataset="{path}" min-samples=4 alpha=10.0 batch-size=8'

    def make(indices):
        with np.load(make_npz(folder / "one.npz")) as file:
            arrays = dict(file)
        both = np.concatenate([arrays["train_images"], arrays["test_images"]])
        both[indices] = 255 - both[indices]
        arrays["train_images"], arrays["test_images"] = np.split(both, [96])
        np.savez(folder / "two.npz", **arrays)
        return config_of(folder / "one.npz"), config_of(folder / "two.npz")

    return make


@pytest.mark.parametrize("method", registry.names())
def test_newcomers_are_scored_and_change_nothing(
    serial_run, read_csv, read_model, workspace_of, two_files, method
):
    """With other samples of theirs, the model and all other scores are the same, bit for bit."""
    same, _ = two_files([])
    folder = serial_run(same, options(method))
    (row,) = read_csv(folder, "unseen.csv")
    assert row["client"] == "1"
    assert {row["client"] for row in read_csv(folder, "clients.csv")} == {"0", "2", "3"}
    share = workspace_of(folder).population.share(1)
    own = np.concatenate([share.train, share.test, share.validation])
    _, changed = two_files(own)
    other = serial_run(changed, options(method))
    one, two = read_model(folder), read_model(other)
    assert all(np.array_equal(one[key], two[key]) for key in one)
    assert read_csv(folder, "clients.csv") == read_csv(other, "clients.csv")
    assert read_csv(folder, "unseen.csv")[0]["loss"] != read_csv(other, "unseen.csv")[0]["loss"]
