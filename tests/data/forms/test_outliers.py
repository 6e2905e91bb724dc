"""Values far from all others, after which these count as nearly equal: a run tells of them."""

from itertools import product

import numpy as np
import pandas as pd
import pytest

from fedapps.data.forms import Form, arrays, outliers
from fedapps.data.loading import load
from fedapps.data.npz import headers

DRAWS = np.random.default_rng(0)
N = 2000
SENSOR = DRAWS.normal(size=N) + 9.81


def lines(values, names=("column x",), owners=None, targets=False):
    """Return what is told of columns, of which all samples have as many rows."""
    rows = np.asarray(values, float).reshape(-1, len(names))
    size = len(rows) // max(1, len(values))
    of = None if owners is None else (lambda: owners)
    return outliers.told(lambda row: f"row {row // size}", names, rows, targets, of)


def changed(values, rows, value):
    values = np.array(values, float)
    values[rows] = value
    return values


@pytest.mark.parametrize("value", [1e6, -1e6, 999999])
def test_one_value_that_ruins_a_column_is_told_with_its_row(value):
    (line,) = lines(changed(SENSOR, 813, value))
    assert line == (
        f"row 813: column x: 1 of 2000 values, {value:g}, is far from all others, which then count"
        ' as nearly equal; correct it, or make it missing (an empty cell, NaN) with missing="mean"'
    )


def test_a_sentinel_in_some_rows_and_a_target_far_away_are_told():
    age = changed(DRAWS.integers(18, 90, 200), slice(0, 200, 25), 999999)
    (line,) = lines(age)
    assert "8 of 200 values, such as 999999, are far from all others" in line
    assert "; correct them, or make them missing (" in line
    (line,) = lines(changed(SENSOR, [5, 6], [1e9, 2e9]), targets=True)
    assert line.startswith("row 6: column x: 2 of 2000 values, such as 2e+09, are far")
    assert line.endswith("; correct them, or leave their rows out")


def test_several_columns_share_a_line_and_missing_values_do_not_count():
    names = ["column x", "column y", "column z"]
    values = np.stack([SENSOR, SENSOR, SENSOR], axis=1)
    values[7], values[8:40, 1], values[9, 2] = (1e5, 1e6, 1.0), np.nan, np.inf
    (line,) = lines(values, names)
    assert line.startswith("row 7: column y: 1 of 1968 values, 1e+06, is far")
    assert line.endswith("; likewise column x")


def test_a_row_is_that_of_the_sample_whatever_its_shape():
    series = DRAWS.normal(size=(50, 20, 3))
    series[31, 4, 2] = 1e6
    (line,) = lines(series, ["a", "b", "c"])
    assert line.startswith("row 31: c: 1 of 1000 values")


SPARSE = np.where(np.arange(N) % 25, 0, DRAWS.uniform(200, 5e3, N))
SCALED = np.where(np.arange(N) % 10, 0, SENSOR + 100)
SCALED = (SCALED - SCALED.mean()) / SCALED.std()
ORDINARY = {
    "normal": SENSOR,
    "far from 0": SENSOR + 1e7,
    "uniform": DRAWS.uniform(size=N),
    "no rows": np.ones(0),
    "constant": np.full(N, 3.0),
    "all missing": np.full(N, np.nan),
    "one value": np.ones(1),
    "two values": np.array([0.0, 1e9]),
    "one-hot": (np.arange(N) == 7) * 1.0,
    "truth values": DRAWS.integers(0, 2, N),
    "counts": DRAWS.poisson(0.3, N),
    "counts with a heavy tail": DRAWS.zipf(1.8, N),
    "mostly zero": np.where(DRAWS.random(N) < 0.95, 0, DRAWS.lognormal(8, 1, N)),
    "mostly zero, once 1": changed(SPARSE, 0, 1),
    "mostly -1": np.where(DRAWS.random(N) < 0.9, -1, DRAWS.integers(1, 900, N)),
    "lognormal": DRAWS.lognormal(0, 3, N),
    "pareto": DRAWS.pareto(1.1, N),
    "student": DRAWS.standard_t(2, N),
    "two far groups": np.where(np.arange(N) % 4, SENSOR, SENSOR + 1e6),
    "a year missing as 0": changed(DRAWS.integers(1950, 2020, N), slice(0, 40), 0),
    "nothing as 0, standardized": SCALED,
    "nothing as 0, in logarithms": np.log10(np.where(np.arange(N) % 3, SENSOR, 0) + 1e-3),
    "full marks": changed(DRAWS.integers(60, 80, N), slice(0, 40), 100),
    "nothing as 0": changed(DRAWS.uniform(1e4, 2e4, N), slice(0, 400), 0),
    "at the end of a scale": np.minimum(DRAWS.uniform(0, 100, N), 80),
    "-1 beside counts": changed(DRAWS.poisson(30, N), slice(0, 40), -1),
    "twice -999": changed(DRAWS.uniform(0, 100, N), [4, 6], -999),
    "ages, and 97 to 99": DRAWS.integers(0, 100, N),
    "nines after a hole": np.where(
        DRAWS.random(N) < 0.5, DRAWS.uniform(97, 99, N).round(1), SENSOR
    ),
    "dBm": changed(DRAWS.integers(-99, -30, N), slice(0, 40), -100),
    "the end of 16 bits": np.minimum(DRAWS.integers(0, 70000, N), 65535),
    "codes": DRAWS.choice([1.0, 2, 3, 99], N, p=[0.5, 0.3, 0.19, 0.01]),
}


class TestMarks:
    """The same value again and again, where no other is: it stands for what is missing."""

    @pytest.mark.parametrize(("mark", "share"), [
        *product([-999, 999, -200, -999.9, -99.99], [0.02, 0.9]),
        *product([-9999999, -32768, 65535, -(2.0**31), -(2.0**63), 1e20, 9.96921e36], [0.3, 0.9]),
    ])  # fmt: skip
    def test_a_mark_is_told_with_its_row_and_what_to_do(self, mark, share):
        values = changed(DRAWS.uniform(0, 100, N), slice(7, 7 + int(share * N)), mark)
        values[5] = np.nan
        (line,) = lines(values)
        assert line == (
            f"row 7: column x: {int(share * N)} of 1999 values are {mark:.9g}, far from all"
            " others; if it stands for missing values, make them"
            ' missing (an empty cell, NaN) with missing="mean"'
        )
        assert lines(values, targets=True)[0].endswith("missing values, leave their rows out")

    @pytest.mark.parametrize("kind", [np.float32, np.float64])
    @pytest.mark.parametrize("codes", [(97, 98, 99), (997, 998, 999), (-98, -99), (99.99,)])
    def test_marks_in_a_row_do_not_hide_one_another(self, codes, kind):
        values = DRAWS.integers(0, 30, N) if 99.99 not in codes else DRAWS.uniform(0, 30, N)
        for place, code in enumerate(codes):
            values = changed(values, slice(100 * place, 100 * place + 100), code)
        (line,) = lines(values.astype(kind).astype(float))
        at = f"row {100 * len(codes) - 100}: column x: 100 of 2000 values are "
        assert line.startswith(f"{at}{kind(codes[-1]):.9g}, far")

    def test_the_farthest_column_names_the_others_and_slips_are_told_once(self):
        values = np.stack([changed(SENSOR, slice(9, 50), mark) for mark in (-99, -200, 1e6)], 1)
        slip, mark = lines(values, ["a", "b", "c"])
        assert slip.startswith("row 9: c: 41 of 2000 values, such as 1e+06, are far")
        assert "b: 41 of 2000 values are -200" in mark
        assert mark.endswith("; likewise a")

    def test_a_value_in_between_that_few_rows_hide_is_seen(self):
        """Every second row is looked at first."""
        values = changed(DRAWS.uniform(0, 100, N), slice(0, 40, 2), -999)
        assert lines(values)
        assert not lines(changed(values, 51, -500))


@pytest.mark.parametrize("kind", ORDINARY)
def test_ordinary_columns_are_not_told(kind):
    owners = np.arange(len(ORDINARY[kind])) % 5
    assert not lines(ORDINARY[kind], owners=owners.astype(str))


@pytest.mark.parametrize("seed", range(3))
def test_heavy_tails_are_not_told_at_many_draws(seed):
    draws = np.random.default_rng(seed)
    for _ in range(100):
        for values in (draws.lognormal(0, 3, 300), draws.pareto(1.5, 300), draws.zipf(2.5, 300)):
            assert not lines(values, owners=(np.arange(300) % 6).astype(str))


class TestUnits:
    """One of eight clients measures in thousandths of the others' unit."""

    OWNERS = np.repeat([f"p{i}" for i in range(8)], 250)

    def test_a_client_in_another_unit_is_told(self):
        (line,) = lines(np.where(self.OWNERS == "p3", SENSOR * 1000, SENSOR), owners=self.OWNERS)
        times = int(line.removeprefix("column x: the values of p3 have a range ").split()[0])
        assert 800 < times < 1200
        assert line.endswith(
            " times as wide as those of most others, which then count as nearly equal; if they are"
            " in another unit, convert them"
        )

    @pytest.mark.parametrize("kind", ["factor 10", "offset", "one at rest", "counts", "few values"])
    def test_clients_that_differ_otherwise_are_not(self, kind):
        odd = self.OWNERS == "p3"
        values = {
            "factor 10": np.where(odd, SENSOR * 10, SENSOR),
            "offset": np.where(odd, SENSOR + 1e4, SENSOR),
            "one at rest": np.where(odd, SENSOR.mean() + (SENSOR - SENSOR.mean()) / 1e4, SENSOR),
            "counts": np.where(odd, DRAWS.poisson(30, N), DRAWS.poisson(0.05, N)),
            "few values": SENSOR,
        }[kind]
        owners = self.OWNERS.copy()
        if kind == "few values":
            owners[:3], values = "p9", np.concatenate([[-4e2, 0, 4e2], SENSOR[3:]])
        assert not lines(values, owners=owners)

    def test_many_clients_bear_one_that_differs(self):
        """Its part of the deviation is small, so the others are not nearly equal."""
        values = DRAWS.normal(size=(2000, 20))
        values[5] *= 150
        assert not lines(values.ravel(), owners=np.repeat(np.arange(2000), 20))


class TestFiles:
    @pytest.fixture
    def series(self, tmp_path):
        people = {}
        for name in "abcdefgh":
            frame = pd.DataFrame(DRAWS.normal(size=(100, 3)), columns=["x", "y", "z"])
            people[name] = frame.assign(moves=np.arange(100) // 50)
        return people

    def test_tables_say_the_line_of_the_file(self, series, tmp_path):
        series["c"].loc[40, "y"] = 1e6
        series["f"]["z"] *= 1000
        for name, frame in series.items():
            frame.to_csv(tmp_path / f"{name}.csv", index=False)
        form = Form(target_column="moves", window=10)
        one, two = [line for line in load(str(tmp_path), "", form).told if "nearly" in line]
        assert one.startswith(f"{tmp_path / 'c.csv'}: line 42: column y: 1 of 800 values, 1e+06")
        assert two.startswith("column z: the values of f have a range ")

    def test_arrays_say_the_sample_and_how_many_were_looked_at(self, tmp_path, monkeypatch):
        inputs, targets = DRAWS.normal(size=(300, 4, 5)), DRAWS.normal(size=300)
        inputs[20, 2, 3], targets[30] = 1e6, 1e9
        path = tmp_path / "br{x}{" / "x.npz"  # no fields of a text to be formatted
        path.parent.mkdir()
        np.savez(path, inputs=inputs, targets=targets)
        one, two = [line for line in load(str(path), "").told if "nearly" in line]
        assert one.startswith(f"{path}: inputs[20]: inputs[..., 3]: 1 of 1200 values, 1e+06, is")
        assert two.startswith(f"{path}: targets[30]: targets: 1 of 300 values, 1e+09, is")
        monkeypatch.setattr(arrays, "LOOKED_AT", inputs[:100].nbytes)
        one, two = [line for line in arrays.notes(path, headers(path)) if "nearly" in line]
        first = "inputs[20]: inputs[..., 3]: 1 of the first 400 values, 1e+06, is"
        assert one.startswith(f"{path}: {first}")

    def test_folders_of_arrays_say_the_file_and_its_sample(self, tmp_path):
        for name in "abcdefgh":
            inputs, targets = DRAWS.normal(size=(100, 3)), DRAWS.normal(size=100)
            inputs[:, 2] *= 1000 if name == "e" else 1
            if name == "c":
                inputs[7, 0] = -1e6
            np.savez(tmp_path / f"{name}.npz", train_inputs=inputs, train_targets=targets)
        one, two = [line for line in load(str(tmp_path), "").told if "nearly" in line]
        path = tmp_path / "c.npz"
        assert one.startswith(f"{path}: train sample 7: inputs[..., 0]: 1 of 800 values, -1e+06")
        assert two.startswith("inputs[..., 2]: the values of e have a range ")
