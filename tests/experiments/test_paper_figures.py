"""The figures of the papers that are drawn from run directories: FedCMD's Figs. 4 and 6."""

import csv

import numpy as np
import pytest
import torch
from scipy import stats

from experiments import __main__ as runner
from experiments.figures import classes, gaussians
from fedapps.engine.finished import FinishedRun

FEDCMD = 'strategy="fedcmd" model="lenet5" num-rounds=2'
PNG = b"\x89PNG"


def scaled(values):
    """Min-max scaled values in float64."""
    values = np.asarray(values, np.float64)
    return (values - values.min()) / np.ptp(values)


def test_gaussians_are_those_of_every_layer_of_the_clients_own_models(serial_run, tmp_path, capsys):
    folder, picture = serial_run(FEDCMD), tmp_path / "gaussians.png"
    words = [str(folder), "--clients", "0", "2", "--plot", str(picture)]
    assert runner.main(["gaussians", *words]) == 0
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    for number in (0, 2):
        client = FinishedRun.open(folder).client(number)
        x, y = client.train_data
        values = {"x": x}
        with torch.no_grad():
            for name, layer in client.model.eval().named_children():
                values[name] = x = layer(x)
        fits = {name: stats.norm.fit(scaled(value)) for name, value in values.items()}
        fits["y"] = stats.norm.fit(y.numpy() / 9)
        rows = {line[1]: line[2:] for line in shown if line and line[0] == str(number)}
        assert [*rows] == [*fits]
        for name, fit in fits.items():
            assert [float(text) for text in rows[name]] == pytest.approx(fit, abs=0.00051)
    assert picture.read_bytes().startswith(PNG)


@pytest.mark.parametrize(("mean", "deviation"), [(0.5, 0.25), (40.0, 12.0)])
def test_a_curve_is_whole_and_labels_of_a_single_class_are_a_line(mean, deviation):
    """Values that are not scaled (`fedcmd.scaling="none"`) can be anywhere."""
    x, y = gaussians.Gaussian("x", mean, deviation), gaussians.Gaussian("y", 0.3, 0.0)
    (axes,) = gaussians.draw({7: [x, y]}).axes
    curve, line = axes.get_lines()
    values, densities = curve.get_data()
    np.testing.assert_allclose(densities, stats.norm(mean, deviation).pdf(values))
    assert np.trapezoid(densities, values) == pytest.approx(1, abs=0.001)
    assert [*line.get_xdata()] == [0.3, 0.3] and axes.get_title() == "client 7"


def test_gaussians_of_another_method_or_client_are_refused_in_one_line(serial_run, capsys):
    folder = serial_run('strategy="fedavg" num-rounds=1')
    for run, client, told in (
        (folder, "0", f"{folder}: this is a run of fedavg; only those of fedcmd have Gaussians"),
        (folder, "6", "--client 6: must be 0 to 5"),
    ):
        assert runner.main(["gaussians", str(run), "--clients", client]) == 1
        assert capsys.readouterr().err == f"error: {told}\n"


def run_with(folder, initial, personalized):
    """A run directory with these accuracies of classes; an empty text for a class without any."""
    rows = zip(initial, personalized, strict=True)
    folder.mkdir()
    with (folder / "classes.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("class", "num_test", "accuracy_initial", "accuracy_personalized"))
        writer.writerows((n, 10, a, b) for n, (a, b) in enumerate(rows))
    return folder


def test_the_density_of_class_accuracies_is_a_sum_of_normal_densities(tmp_path, capsys):
    accuracies = [0.2, 0.4, 0.45, 0.5, 0.5, 0.75]
    one = run_with(tmp_path / "one", [*accuracies, ""], [0.9, 0.8, 0.7, 0.6, 0.5, 0.4, ""])
    two = run_with(tmp_path / "two", [0.1, 0.3], [0.2, 0.4])
    picture = tmp_path / "classes.svg"
    assert runner.main(["classes", str(one), str(two), "--plot", str(picture)]) == 0
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["one", "6", "20.00", "47.50", "46.67", "75.00"] in shown
    assert ["two", "2", "10.00", "20.00", "20.00", "30.00"] in shown
    assert b"<svg" in picture.read_bytes()
    assert runner.main(["classes", str(one), "--accuracy", "personalized"]) == 0
    assert "65.00" in capsys.readouterr().out

    values = classes.accuracies(one, "initial")
    np.testing.assert_allclose(values, 100 * np.array(accuracies))
    (axes,) = classes.draw({"one": values}, "initial").axes
    (curve,) = axes.get_lines()
    width = np.std(values, ddof=1) * len(values) ** -0.2  # Scott's rule
    points = np.asarray(curve.get_xdata())[:, None]
    expected = stats.norm.pdf(points, values, width).mean(1)
    np.testing.assert_allclose(curve.get_ydata(), expected)
    bars = {round(bar.get_x()): bar.get_height() for bar in axes.patches if bar.get_height()}
    assert bars == pytest.approx({20: 1 / 30, 40: 1 / 30, 45: 1 / 30, 50: 2 / 30, 75: 1 / 30})


def test_runs_of_the_same_name_are_told_apart(tmp_path, monkeypatch, capsys):
    for place, lowest in (("a", 0.1), ("b", 0.2)):
        (tmp_path / place).mkdir()
        run_with(tmp_path / place / "run", [lowest, 0.3], [0.2, 0.4])
    run_with(tmp_path / "other", [0.4, 0.6], [0.2, 0.4])
    monkeypatch.chdir(tmp_path)
    assert runner.main(["classes", "a/run", "b/run", "other"]) == 0
    shown = [line.split()[:3] for line in capsys.readouterr().out.splitlines()]
    rows = [["a/run", "2", "10.00"], ["b/run", "2", "20.00"], ["other", "2", "40.00"]]
    assert [row for row in shown if row[1:2] == ["2"]] == rows


def test_classes_that_are_all_alike_have_no_density(tmp_path, capsys):
    folder = run_with(tmp_path / "run", [0.5, 0.5], [0.5, 0.6])
    assert runner.main(["classes", str(folder)]) == 1
    told = "a density needs classes of different accuracy in classes.csv"
    assert capsys.readouterr().err == f"error: {folder}: {told}\n"
    assert runner.main(["classes", str(tmp_path)]) == 1
    assert "cannot read" in capsys.readouterr().err
