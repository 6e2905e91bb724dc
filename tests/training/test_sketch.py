"""Sketches of initial models: last digits do not count, everything else does."""

import numpy as np
import pytest

from fedapps.training.sketch import alike, sketch

DRAW = np.random.default_rng(0)
SIZES = {"conv": (16, 3, 5, 5), "norm": (16,), "fc": (400, 300), "none": (0, 4)}
ARRAYS = {k: DRAW.uniform(-0.05, 0.05, size).astype(np.float32) for k, size in SIZES.items()}
HERE = sketch(ARRAYS)


def test_last_digits_do_not_count():
    """Whatever the layout in memory is, and with a relative error as of other instructions."""
    other = {k: np.asfortranarray(a * np.float32(1 + 2e-7)) for k, a in ARRAYS.items()}
    noisy = {k: a * (1 + DRAW.uniform(-3e-7, 3e-7, a.shape)) for k, a in ARRAYS.items()}
    assert sketch(other) != HERE
    assert alike(HERE, sketch(other))
    assert alike(HERE, sketch(noisy))
    assert alike(HERE, HERE)
    assert len(HERE) < 200  # it travels with each message


@pytest.mark.parametrize("change", ["value", "row", "signs", "scale", "seed", "added", "renamed"])
def test_everything_else_counts(change):
    other = {key: array.copy() for key, array in ARRAYS.items()}
    fc = other["fc"]
    if change == "value":
        fc[7, 9] += 0.001
    elif change == "row":
        fc[[0, 1]] = fc[[1, 0]]
    elif change == "signs":
        fc *= -1
    elif change == "scale":
        fc *= 1.0001
    elif change == "seed":
        other["conv"] = np.random.default_rng(1).uniform(-0.05, 0.05, SIZES["conv"])
    elif change == "added":
        other["more"] = np.full(2, 0.01)
    else:
        other["fd"] = other.pop("fc")
    assert not alike(HERE, sketch(other))
    assert not alike(sketch(other), HERE)


@pytest.mark.parametrize("text", ["", "abc", "nan" + " nan" * 8, "1e999", HERE + " 0", HERE + "é"])
def test_what_is_no_sketch_is_like_nothing(text):
    assert not alike(HERE, text)
    assert not alike(text, text)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.filterwarnings("error")
def test_what_is_not_finite_is_like_nothing(value):
    there = sketch({"w": np.array([1.0, value, value], np.float32)})
    assert not alike(there, there)
    assert not alike(HERE, there)


def test_zeros_are_like_zeros():
    assert alike(sketch({"w": np.zeros(3)}), sketch({"w": -np.zeros(3)}))
    assert alike(sketch({}), sketch({}))
