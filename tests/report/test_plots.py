"""The pictures of a run: what they show, what they say of it, and that their texts fit."""

import math
import warnings
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from matplotlib.image import imread

from fedapps.cli import plot
from fedapps.core import config
from fedapps.core.errors import RunError
from fedapps.drawing import pictures as drawing
from fedapps.method.figures import EventPlot
from fedapps.report import (
    accuracy_plots,
    caption,
    columns,
    directory,
    event_plots,
    part_plots,
    plots,
)
from fedapps.report.report import Report
from fedapps.tasks import CLASSIFICATION, TASKS
from tests.support.made_runs import finished_run
from tests.support.reports import (
    FLAT,
    axes_of,
    drawn,
    make_report,
    make_results,
    make_row,
    make_settings,
    run_to_end,
)

PICTURES = {"accuracy", "communication", "clients", "client-accuracy", "classes"}
CAPTION = caption.Caption("fedper on digits, seed 3, 20 rounds", 20)


@pytest.fixture(autouse=True)
def style():
    with drawing.styled():
        yield


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return run_to_end(tmp_path_factory.mktemp("runs"))


def evaluated(rounds=2, **columns_):
    """Evaluated rounds 10, 20, ...; further columns may be given."""
    table = pd.DataFrame(
        {
            "round": 10 * np.arange(1, rounds + 1),
            "accuracy_initial": np.linspace(0.1, 0.2, rounds),
            "accuracy_without_head": np.nan,
            "accuracy_personalized": np.linspace(0.3, 0.4, rounds),
            "accuracy_personalized_std": 0.05,
            "bytes_down": 1_500_000 * np.arange(1, rounds + 1),
            "bytes_up": 500_000 * np.arange(1, rounds + 1),
            "bytes": 2_000_000 * np.arange(1, rounds + 1),
            "train_macs": 3e9,
        }
    )
    return table.assign(**columns_)


def scored(count, seed=0):
    """A row for each of so many clients or classes, which have been scored in round 7."""
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "round": 7,
            "client": rng.permutation(count),
            "class": np.arange(count),
            "num_train": rng.integers(1, 900, count),
            "num_test": rng.integers(1, 300, count),
            "accuracy_initial": rng.uniform(size=count),
            "accuracy_personalized": rng.uniform(size=count),
        }
    )


def texts_of(figure):
    return " ".join(text.get_text() for text in figure.findobj(match=drawing.mpl.text.Text))


def test_all_pictures_are_drawn_and_not_empty(finished):
    assert drawn(finished.folder) == PICTURES
    for name in PICTURES:
        picture = imread(finished.folder / f"plots/{name}.png")
        assert picture.shape[1] <= 1200
        assert picture.std() > 0.02


def test_pictures_are_remade_from_the_tables(finished):
    before = {p: p.read_bytes() for p in (finished.folder / "plots").iterdir()}
    for path in before:
        path.unlink()
    files = plots.draw_all(finished.folder)
    assert {p: p.read_bytes() for p in (finished.folder / "plots").iterdir()} == before
    assert set(files) == set(before)


def test_the_table_of_holdings_is_what_the_run_held(finished):
    expected = np.arange(20).reshape(5, 4)  # see `run_to_end`
    np.testing.assert_array_equal(plots.read_holdings(finished.folder), expected)
    held = pd.read_csv(finished.folder / "samples.csv")
    assert len(held) == np.count_nonzero(expected)


def test_the_command_draws_vector_files(finished, parse, capsys):
    assert plot.run(parse(plot, str(finished.folder), "--format", "svg")) == 0
    files = [finished.folder / f"plots/{name}.svg" for name in sorted(PICTURES)]
    assert sorted(capsys.readouterr().out.split()) == [str(file) for file in files]
    for file in files:
        assert file.read_bytes().startswith(b"<?xml")
        file.unlink()


@pytest.mark.parametrize("kind", ["svg", "pdf"])  # above, those of a run are PNG
def test_the_same_picture_is_the_same_file(tmp_path, kind):
    for name in ("one", "two"):
        picture = accuracy_plots.draw_scores(evaluated(), (), CAPTION)
        drawing.save(picture, tmp_path / f"{name}.{kind}")
    assert (tmp_path / f"one.{kind}").read_bytes() == (tmp_path / f"two.{kind}").read_bytes()


def test_a_folder_that_is_no_run_is_one_line(tmp_path, parse):
    with pytest.raises(RunError, match=r"is not a run directory: config.toml: No such file"):
        plot.run(parse(plot, str(tmp_path)))
    folder = make_report(tmp_path).folder
    (folder / "events.csv").unlink()
    with pytest.raises(RunError, match=r"is not a run directory: it has no events.csv"):
        plot.run(parse(plot, str(folder)))


def test_a_folder_for_plots_that_cannot_be_made_is_one_line(tmp_path, parse):
    folder = make_report(tmp_path).folder
    (folder / "plots").write_text("not a folder")
    with pytest.raises(RunError, match=r"^cannot write .*/plots: File exists$"):
        plot.run(parse(plot, str(folder)))


@pytest.mark.parametrize("content", [b"", b"a,b\n1,2,3\n1,2,3,4\n", b"round\n\xff\n"])
@pytest.mark.parametrize("name", ["rounds.csv", "clients.csv", "events.csv", "classes.csv"])
def test_a_damaged_table_is_one_line(tmp_path, parse, name, content):
    folder = make_report(tmp_path, strategy="fedcmd").folder  # its plots show events
    (folder / name).write_bytes(content)
    with pytest.raises(RunError, match=rf"^.*/{name}: cannot be read \("):
        plot.run(parse(plot, str(folder)))


def test_pictures_leave_out_what_is_not_there(tmp_path):
    report = make_report(tmp_path, num_rounds=3)
    for round_ in (1, 2, 3):
        means = report.evaluation(round_, make_results()) if round_ > 1 else None
        known = {"means": means} if means else {}
        report.round(make_row(round_, bytes_up=0, bytes_down=0, **known))
    report.finish({}, {})
    assert drawn(report.folder) == {"accuracy", "client-accuracy", "classes"}


def test_a_run_scored_once_has_no_lines(tmp_path):
    report = make_report(tmp_path, num_rounds=2)
    report.round(make_row(1))
    report.round(make_row(2, means=report.evaluation(2, make_results())))
    report.finish({}, {})
    assert "communication" not in drawn(report.folder)
    table = plots.evaluated_rounds(pd.read_csv(report.folder / "rounds.csv"), CLASSIFICATION.lead)
    axes, lines = axes_of(accuracy_plots.draw_scores(table, report.columns.figures, CAPTION))
    assert not [line for line in lines.values() if len(line.get_xdata()) > 1]
    assert len(axes.patches) == 4  # initial, without head, last local, personalized
    mean = 100 * report.rows[-1].means.personalized
    assert axes.patches[-1].get_height() == pytest.approx(mean)
    assert f"personalized\n{mean:.1f} %" in [text.get_text() for text in axes.get_xticklabels()]


def test_costs_count_rounds_that_were_not_evaluated(tmp_path):
    report = make_report(tmp_path)
    known = {"accuracy_initial": 0.1, "accuracy_personalized": 0.2}
    report.round(make_row(1, bytes_up=1, bytes_down=10, train_macs=100))
    report.round(make_row(2, bytes_up=2, bytes_down=20, train_macs=200, **known))
    report.round(make_row(3, bytes_up=3, bytes_down=30, train_macs=300, **known))
    table = plots.evaluated_rounds(pd.read_csv(report.folder / "rounds.csv"), CLASSIFICATION.lead)
    assert table[["round", "bytes", "bytes_up", "train_macs"]].to_numpy().tolist() == [
        [2, 33, 3, 300],
        [3, 66, 6, 600],
    ]


def test_accuracy_curves_show_the_table():
    figures = columns.columns_of(CLASSIFICATION).figures
    axes, lines = axes_of(accuracy_plots.draw_scores(evaluated(), figures, CAPTION))
    assert set(lines) == {"initial", "personalized"}
    np.testing.assert_allclose(lines["personalized"].get_xydata(), [[10, 30], [20, 40]])
    picture = accuracy_plots.draw_communication(evaluated(), figures, CAPTION)
    axes, lines = axes_of(picture)
    np.testing.assert_allclose(lines["initial"].get_xydata(), [[2, 10], [4, 20]])
    assert "(MB)" in axes.get_xlabel()
    assert "3 MB down, 1 MB up, 3 G multiply" in texts_of(picture)
    table = evaluated(accuracy_initial=[0.3, 0.4])
    _, lines = axes_of(accuracy_plots.draw_scores(table, figures, CAPTION))
    assert set(lines) == {"initial = personalized"}


@pytest.mark.parametrize("rounds", [1, 2, 30])
def test_the_spread_stays_within_0_and_100_percent(rounds):
    table = evaluated(rounds, accuracy_personalized=0.95, accuracy_personalized_std=0.2)
    picture = accuracy_plots.draw_scores(table, (), CAPTION)
    axes = picture.axes[0]
    bounds = [segment[:, 1] for c in axes.collections for segment in
              (p.vertices for p in c.get_paths())]  # fmt: skip
    assert np.concatenate(bounds).max() == 100 and np.concatenate(bounds).min() == 75
    assert 100 <= axes.get_ylim()[1] <= 101
    assert "std over clients, personalized" in texts_of(picture)


@pytest.mark.parametrize("rounds", [1, 2])
def test_a_metric_below_0_is_in_the_picture(rounds):
    metric = replace(CLASSIFICATION.lead, unit="", bounds=(-math.inf, 1.0))
    table = evaluated(rounds, accuracy_initial=-0.4, accuracy_personalized=-3.0)
    told = caption.Caption("", 20, metric=metric)
    low, high = accuracy_plots.draw_scores(table, (), told).axes[0].get_ylim()
    assert -3.6 < low < -3.05 and -0.4 < high <= 1


def test_few_classes_keep_their_order_and_many_are_sorted():
    few, many = scored(10), scored(100)
    _, lines = axes_of(part_plots.draw_classes(few, CAPTION))
    np.testing.assert_allclose(lines["initial"].get_ydata(), 100 * few["accuracy_initial"])
    figure = part_plots.draw_classes(many, CAPTION)
    _, lines = axes_of(figure)
    expected = 100 * np.sort(many["accuracy_personalized"])
    np.testing.assert_allclose(lines["personalized"].get_ydata(), expected)
    order = many.sort_values("accuracy_personalized")
    names = [text.get_text() for text in figure.axes[1].get_xticklabels()]
    assert names == [str(name) for name in order["class"]]
    called = part_plots.draw_classes(few, CAPTION, [*"abcdefghi"]).axes[1]
    assert "".join(text.get_text() for text in called.get_xticklabels()) == "abcdefghi9"
    assert [bar.get_height() for bar in figure.axes[1].patches] == order["num_test"].tolist()


@pytest.mark.parametrize("count", [1, 5, 20, 100, 400])
def test_clients_stand_above_their_ids_and_samples(count):
    table = scored(count)
    figure = part_plots.draw_clients(table, CAPTION)
    upper, lower = figure.axes
    order = table.sort_values("accuracy_personalized")
    dots = next(line for line in upper.lines if line.get_label() == "personalized")
    np.testing.assert_allclose(dots.get_ydata(), 100 * order["accuracy_personalized"])
    heights = np.array([bar.get_height() for bar in lower.patches]).reshape(2, count)
    np.testing.assert_array_equal(heights, [order["num_train"], order["num_test"]])
    names = [text.get_text() for text in lower.get_xticklabels()]
    assert names == ([str(client) for client in order["client"]] if count <= 110 else [])
    assert lower.get_xlim() == upper.get_xlim()


def test_of_many_clients_hundredths_are_drawn():
    table = scored(5000)
    upper, lower = part_plots.draw_clients(table, CAPTION).axes
    order = table.sort_values("accuracy_personalized")
    lines = {line.get_label(): line.get_ydata() for line in upper.lines}
    for kind in ("initial", "personalized"):
        means = 100 * order[f"accuracy_{kind}"].to_numpy().reshape(100, 50).mean(axis=1)
        np.testing.assert_allclose(lines[kind], means)
    np.testing.assert_allclose(lines["mean"], 100 * table["accuracy_personalized"].mean())
    heights = np.array([bar.get_height() for bar in lower.patches]).reshape(2, 100)
    sizes = order[["num_train", "num_test"]].to_numpy().reshape(100, 50, 2).mean(axis=1).T
    np.testing.assert_allclose(heights, sizes)


def test_of_what_many_clients_hold_percentiles_are_drawn():
    counts = np.random.default_rng(0).integers(0, 50, (2001, 3))
    upper, lower, *_ = part_plots.draw_holdings(counts).axes
    places = np.arange(0, 2001, 20)  # each percentile is that of a client
    drawn = lower.collections[0].get_array()
    np.testing.assert_array_equal(drawn, np.sort(counts, axis=0)[places].T)
    heights = [bar.get_height() for bar in upper.patches]
    np.testing.assert_array_equal(heights, np.sort(counts.sum(axis=1))[places])


@pytest.mark.parametrize(("rounds", "text"), [
    (20, "fedper on my-data, seed 3, 20 rounds"),
    (7, "fedper on my-data, seed 3, 7 of 20 rounds"),
    (21, "fedper on my-data, seed 3, 21 rounds"),  # the last is fine-tuning
])  # fmt: skip
def test_the_title_tells_method_data_seed_and_rounds(rounds, text):
    flat = {
        "strategy": "fedper", "dataset": "/d/my data.npz", "seed": 3, "num-rounds": 20,
        "evaluate-on": "validation",
    }  # fmt: skip
    made = caption.Caption.of(flat, rounds, 5)
    assert made.title == text
    assert made.scored == "5 clients, each on its validation samples"


def test_every_picture_has_the_title(finished):
    flat = config.defaults() | config.stored(finished.folder)
    for name, picture in plots._pictures(finished.folder, flat).items():
        assert picture.get_suptitle() == "fedrep on digits, seed 7, 3 rounds", name


def events(rounds, categories):
    rng = np.random.default_rng(0)
    names = [f"layer{i}" for i in range(categories)]
    rows = [(r, kind, name, rng.uniform()) for r in range(1, rounds + 1) for name in names
            for kind in ("vote", "score")]  # fmt: skip
    return pd.DataFrame(rows, columns=["round", "kind", "category", "value"])


VOTES = EventPlot("votes", "vote", "score", count_label="votes", value_label="mean score")


def pictures(count):
    figures = columns.columns_of(CLASSIFICATION).figures
    everything = {figure.name: 0.5 for figure in figures}
    table = evaluated(count, **everything)
    yield accuracy_plots.draw_scores(table, figures, CAPTION)
    yield accuracy_plots.draw_communication(table, figures, CAPTION)
    yield part_plots.draw_clients(scored(count), CAPTION)
    yield part_plots.draw_classes(scored(count), CAPTION)
    yield part_plots.draw_holdings(np.full((count, count), 1234))
    yield event_plots.draw_categories(events(count, min(count, 6)), VOTES)


@pytest.mark.parametrize("count", [1, 20, 100])
def test_no_text_overlaps_another_or_leaves_the_picture(count):
    for picture in pictures(count):
        drawing.title(picture, CAPTION.title)
        picture.draw_without_rendering()
        for axes in picture.axes:
            for labels in (axes.get_xticklabels(), axes.texts):
                boxes = sorted((t.get_window_extent() for t in labels), key=lambda b: b.x0)
                assert all(a.x1 < b.x0 for a, b in pairwise(boxes))
            if axes.get_legend():
                inside = axes.get_legend().get_window_extent()
                assert inside.x1 <= picture.bbox.x1 and inside.y1 <= picture.bbox.y1
                title = picture._suptitle.get_window_extent()
                assert inside.y1 < title.y0
        assert all(axes.get_position().width > 0.6 for axes in picture.axes[:2])


@pytest.mark.parametrize(("low", "high"), [(-2.0, -1.0), (-1.0, 2.0), (1.0, 2.0)])
def test_values_below_0_that_a_method_declares_are_in_the_picture(low, high):
    table = events(4, 2)
    table["value"] = np.where(table["round"] < 3, low, high)
    lower = event_plots.draw_categories(table, VOTES).axes[1]
    bottom, top = lower.get_ylim()
    assert bottom < low and high < top
    assert low < 0 or bottom == 0, "values above 0 are seen from 0"


def test_a_run_whose_method_is_not_here_has_all_plots_but_those_of_its_events(tmp_path):
    folder = finished_run(tmp_path)
    here = {path.stem for path in plots.draw_all(folder)}
    config_ = (folder / "config.toml").read_text("utf-8")
    (folder / "config.toml").write_text(config_.replace('"fedcmd"', '"mine"'), "utf-8")
    assert {path.stem for path in plots.draw_all(folder)} == here - {"votes"} != here


@pytest.mark.parametrize("size", [1e10, 1e-20])
@pytest.mark.parametrize("draw", [
    lambda named, told: accuracy_plots.draw_scores(named(evaluated(1)), (), told),
    lambda named, told: accuracy_plots.draw_scores(named(evaluated()), (), told),
    lambda named, told: accuracy_plots.draw_communication(named(evaluated()), (), told),
    lambda named, told: part_plots.draw_clients(named(scored(20)), told),
])  # fmt: skip
def test_the_power_of_ten_of_an_axis_is_not_drawn_across_the_legend(draw, size):
    """matplotlib writes it at the top of the axis, where the first sign of the legend is."""
    told = replace(CAPTION, metric=TASKS["regression"].lead)

    def named(table):
        found = table.filter(like="accuracy") * size
        new = {name: name.replace("accuracy", told.metric.name) for name in found}
        return table.assign(**found).rename(columns=new)

    picture = draw(named, told)
    picture.draw_without_rendering()
    power, legend = picture.axes[0].yaxis.get_offset_text(), picture.axes[0].get_legend()
    box = power.get_window_extent()
    assert power.get_text() and box.x1 < legend.get_window_extent().x0
    assert box.x0 > 0 and box.y1 < picture.bbox.y1


def no_overlap(axes):
    """Tell whether all names on the x axis are beside each other."""
    axes.figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in axes.get_xticklabels()]
    return all(a.x1 < b.x0 for a, b in pairwise(sorted(boxes, key=lambda box: box.x0)))


@pytest.mark.parametrize("draw", [
    lambda names: part_plots.draw_clients(scored(10), CAPTION, names),
    lambda names: part_plots.draw_holdings(np.ones((10, 2), int), names),
    lambda names: part_plots.draw_classes(scored(10), CAPTION, names),
])  # fmt: skip
def test_one_long_name_among_short_ones_overlaps_nobody(draw):
    names = [f"H{number:02}" for number in range(9)]
    for long in ("St. J\u00fcrgen, K\u00f6ln", "Saarbr\u00fccken"):
        for place in (0, 4, 9):
            lower = draw([*names[:place], long, *names[place:]]).axes[1]
            found = [text.get_text() for text in lower.get_xticklabels()]
            assert long in found and len(found) == 10 and no_overlap(lower)


@pytest.mark.parametrize("count", [2, 25, 26])
def test_few_classes_are_called_by_their_names_in_the_plot_of_holdings(count):
    named = (*(f"$class {n}" for n in range(count - 1)), "a name of more letters than fit")
    lower = part_plots.draw_holdings(np.ones((3, count), int), (), named).axes[1]
    found = [text.get_text() for text in lower.get_yticklabels()]
    if count <= 25:
        assert found == [*named[:-1], "a name of more lett\u2026"]
        assert [*lower.get_yticks()] == [*range(count)]
    else:
        assert "$class 0" not in found
    short = part_plots.draw_holdings(np.ones((3, 3), int), (), ("a", "b")).axes[1]
    assert [text.get_text() for text in short.get_yticklabels()] == ["a", "b", "2"]


def test_the_plot_of_holdings_has_the_names_of_the_run(tmp_path):
    folder = finished_run(tmp_path, classes=2)
    directory.write_names(folder, (), ("no", "yes"))
    axes = plots._pictures(folder, config.stored(folder))["clients"].axes[1]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["no", "yes"]


def test_the_plot_of_classes_has_all_names_and_classes_without_samples_are_not_there(tmp_path):
    settings = make_settings(runs_dir=str(tmp_path), run_name="run")
    named = (), ("none here", "None", "n/a", "NaN")
    report = Report.create(settings, dict(settings.flat), CLASSIFICATION, named)
    report.round(make_row(means=report.evaluation(1, make_results(classes=5))))
    report.finish({"a": np.zeros(3, np.float32)}, {}, plots=False)
    axes = plots._pictures(report.folder, config.defaults() | FLAT)["classes"].axes[1]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["None", "n/a", "NaN", "4"]


def test_holdings_of_nobody():
    assert part_plots.draw_holdings(np.zeros((3, 2), int))


def test_names_in_letters_that_the_font_lacks_give_a_plot_and_no_lines(tmp_path):
    found = part_plots.draw_clients(scored(2), CAPTION, ("a", "\u75c5\u9662"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drawing.save(found, tmp_path / "x.png")
    assert imread(tmp_path / "x.png").std() > 0
