"""The page of a run, report.html."""

import math
import re
import shlex
import time
from argparse import ArgumentParser
from dataclasses import replace
from html.parser import HTMLParser

import msgspec
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedapps.cli import report as report_command
from fedapps.core import config
from fedapps.core.errors import RunError
from fedapps.core.files import held
from fedapps.core.privacy_settings import SEEDED
from fedapps.drawing.charts import line_chart
from fedapps.drawing.svg import Chart, Series, steps
from fedapps.report import cells, directory, page, plots, status
from fedapps.report.page import facts, run_charts
from fedapps.report.page.reading import RunFiles
from fedapps.report.report import Report
from fedapps.server_app import watched
from fedapps.tasks import CLASSIFICATION
from fedapps.tasks.classification import Classification
from fedapps.wire import contacts
from tests.support.browser import PRINTED, WIDTHS, measured
from tests.support.clock import passing
from tests.support.made_runs import EVIL, add_round, begin_run, finished_run
from tests.support.reports import make_results, make_row

FIGURES = {
    "accuracy", "loss", "epsilon", "clients", "sizes", "holdings", "classes", "communication",
    "traffic", "seconds", "failures", "votes-counts", "votes-values",
}  # fmt: skip


class Elements(HTMLParser):
    """The elements of a page, the ids of figures, and what stands in cells and titles."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.figures, self.texts, self.links = set(), set(), [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        attributes = dict(attributes)
        assert not [name for name in attributes if name.startswith("on")]
        if tag == "figure":
            self.figures.add(attributes["id"])
        self.links += [v for k, v in attributes.items() if k in ("href", "src")]

    def handle_data(self, data):
        self.texts.append(data)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    name = 'dataset="/data/<script>x.npz" loggers="" lr=0.3 alpha=0.1'
    return finished_run(tmp_path_factory.mktemp("runs"), name, clients=30)


@pytest.fixture(scope="module")
def elements(folder):
    return Elements((folder / "report.html").read_text("utf-8"))


def test_page_has_every_figure_and_loads_nothing(folder, elements):
    page.write(folder)
    assert elements.figures == FIGURES
    files = {link for link in elements.links if not link.startswith(("#", "data:"))}
    assert files <= {path.name for path in folder.iterdir()}
    assert {"config.toml", "rounds.csv", "samples.csv"} <= files


def test_what_comes_from_devices_and_files_is_text(elements):
    assert "script" not in elements.tags
    assert EVIL in elements.texts
    assert "fedcmd on <script>x.npz" in elements.texts


def test_drawn_places_are_the_values_of_the_table(folder):
    """The curve of accuracies, measured with its own axis."""
    text = (folder / "report.html").read_text("utf-8")
    figure = re.search(r'<figure id="accuracy">(.*?)</figure>', text, re.S)[1]
    ticks = re.findall(r'<text x="54" y="([\d.]+)" text-anchor="end">([\d.]+) %<', figure)
    (y0, low), (y1, high) = [(float(y) - 4, float(v)) for y, v in (ticks[0], ticks[-1])]
    rounds = pd.read_csv(folder / "rounds.csv")
    for kind in ("initial", "personalized"):
        (d,) = re.findall(rf'<path class="line {kind}" d="M([^"]+)"', figure)
        places = [tuple(map(float, point.split())) for point in d.split("L")]
        drawn = [low + (y - y0) / (y1 - y0) * (high - low) for _, y in places]
        assert drawn == pytest.approx(100 * rounds[f"accuracy_{kind}"], abs=0.15)
        assert [x for x, _ in places] == pytest.approx([60, 262, 464])


@pytest.mark.parametrize("secret", ["true", "false"])
def test_an_epsilon_of_noise_from_the_seed_is_not_called_privacy(tmp_path, secret):
    """In the tile and at the chart; without noise, no number stands there."""
    folder = finished_run(tmp_path, f'dp.mode="central" dp.secret-noise={secret}')
    texts = Elements(page.write(folder).read_text("utf-8")).texts
    assert sum(SEEDED in text.lower() for text in texts) == (2 if secret == "false" else 0)
    assert ("delta 1e-05" in texts) == (secret == "true")
    rounds = pd.read_csv(folder / "rounds.csv").assign(epsilon=math.inf)
    rounds.to_csv(folder / "rounds.csv", index=False)
    texts = Elements(page.write(folder).read_text("utf-8")).texts
    assert texts[texts.index("epsilon") + 1] == "inf"


def test_rounds_without_personalization_leave_the_clients_of_the_last_with_it(tmp_path):
    """With `evaluate-rounds`, rounds can follow in which only the initial model is scored."""
    report = begin_run(tmp_path)
    results = make_results()
    for round_ in (1, 2, 3, 4):
        scored = results if round_ == 2 else [result.initial_only() for result in results]
        report.round(make_row(round_, means=report.evaluation(round_, scored)))
        run = RunFiles.read(report.folder)
        assert {row["round"] for row in run.clients} == {"2" if round_ > 1 else "1"}
        charts = {chart.name: chart.title for chart in run_charts.clients(run)}
        assert {"clients", "sizes"} & {*charts} == ({"clients", "sizes"} if round_ > 1 else set())
    assert charts["clients"] == "Accuracy of every client (round 2)"


def test_titles_tell_the_values(folder, elements):
    row = pd.read_csv(folder / "clients.csv").query("round == 3 and client == 7").iloc[0]
    title = (
        f"client 7\n{100 * row.accuracy_initial:.1f} %, personalized "
        f"{100 * row.accuracy_personalized:.1f} %\n"
        f"{row.num_train:.0f} training samples, {row.num_test:.0f} to score"
    )
    assert elements.texts.count(title) == 2  # of the clients in their order, and by their size
    held = pd.read_csv(folder / "samples.csv").query("client == 7")
    lines = [f"class {k}: {n}" for k, n in zip(held["class"], held["num_train"], strict=True)]
    assert "\n".join(["client 7", *lines]) in elements.texts


def test_many_clients_are_hundredths_and_percentiles(tmp_path):
    """Client i of 2,000 has accuracy i/2000 and i + 1 samples of class 0."""
    head = "round,phase,accuracy_initial,accuracy_personalized\n"
    (tmp_path / "rounds.csv").write_text(head + "1,train,0.1,0.5\n")
    scores = "".join(f"1,{i},{i},0.0,{i / 2000}\n" for i in range(2000))
    columns = "round,client,num_train,accuracy_initial,accuracy_personalized\n"
    (tmp_path / "clients.csv").write_text(columns + scores)
    held = "".join(f"{9 * i},0,{i + 1}\n" for i in range(2000))  # one in nine is listed
    (tmp_path / "samples.csv").write_text("client,class,num_train\n" + held)
    text = page.write(tmp_path).read_text("utf-8")
    figures = dict(re.findall(r'<figure id="(\w+)">(.*?)</figure>', text, re.S))
    (d,) = re.findall(r'<path class="dots personalized" d="M([^"]+)"', figures["clients"])
    ys = np.array([float(dot.split()[1].removesuffix("h0")) for dot in d.split("M")])
    assert len(ys) == 100
    assert np.diff(ys) == pytest.approx((ys[-1] - ys[0]) / 99, abs=0.11)  # written with a digit
    assert "Means of hundredths of 2000." in figures["clients"]
    for words in ("percentile of 2000 clients", "up to 2000."):
        assert words in figures["holdings"]
    assert len(re.findall("h[\\d.]+v", figures["holdings"])) == 101
    assert "One in 2 is drawn." in figures["sizes"]


def test_a_run_of_an_earlier_version_or_killed_in_a_line_has_a_page(tmp_path):
    head = "round,phase,accuracy_initial,accuracy_personalized,bytes_down,bytes_up\n"
    (tmp_path / "rounds.csv").write_text(head + "1,train,0.1,0.2,5,6\n2,train,0.2,0.3,5,6\n3,tr")
    (tmp_path / "clients.csv").write_text("round,client,accuracy_personalized\n1,0,0.5\n2,0,0.6\n2")
    (tmp_path / "config.toml").write_text('strategy = "gone"\nold-key = 3\nnum-clients = 4\n')
    (tmp_path / "summary.json").write_text("{")
    (tmp_path / "events.csv").write_bytes(b"round,client,kind,detail\n1,0,odd,\xff\x00\n")
    found = Elements(page.write(tmp_path).read_text("utf-8"))
    assert {"accuracy", "communication", "traffic", "clients"} == found.figures
    assert "after round 3" in found.texts and "unfinished" in found.texts
    assert "(no key of this version)" in found.texts
    (tmp_path / "config.toml").write_text("broken")
    for name in ("clients.csv", "events.csv", "summary.json"):
        (tmp_path / name).unlink()
    (tmp_path / "rounds.csv").write_text(head)
    assert not Elements(page.write(tmp_path).read_text("utf-8")).figures


def test_a_phase_after_the_last_round_is_not_drawn_as_another_round(tmp_path):
    lines = ["round,phase,train_loss", "1,train,0.9", "2,train,0.7", "2,newcomers,0.1"]
    (tmp_path / "rounds.csv").write_text("\n".join(lines) + "\n")
    run = RunFiles.read(tmp_path)
    assert [(row["round"], row["train_loss"]) for row in run.of_training] == [
        ("1", "0.9"), ("2", "0.7"),
    ]  # fmt: skip
    (loss,) = run_charts.curves(run)
    assert len(loss.hits) == 2, "one for each round"


def test_failures_of_a_round_with_two_rows_are_told_together(tmp_path):
    lines = ["round,phase,failures", "1,train,1", "2,train,3", "2,finetune,0"]
    (tmp_path / "rounds.csv").write_text("\n".join(lines) + "\n")
    (chart,) = run_charts.events(RunFiles.read(tmp_path), ())
    assert [hit.title for hit in chart.hits] == ["round 1\n1", "round 2\n3"]


@pytest.mark.parametrize(("options", "expected"), [
    ('strategy="fedbabu"', {}),  # the default
    ("lr=0.3", {"lr": "0.3"}),
    ('strategy="fedprox"', {"strategy": '"fedprox"'}),
    # as it is, or no effect
    ('strategy="fedprox" prox-mu=0.01 fedper.personal-layers="fc2" run-name="x"',
     {"strategy": '"fedprox"'}),
    ('strategy="fedprox" prox-mu=0.0 lr=0.1 dp.mode="central"',
     {"strategy": '"fedprox"', "prox-mu": "0.0", "lr": "0.1", "dp.mode": '"central"',
      "fedprox.prox-mu": "0.0"}),
    ('strategy="fedseq" fedseq.base="fedper" fedper.personal-layers="fc1"',
     {"strategy": '"fedseq"', "fedseq.base": '"fedper"', "fedper.personal-layers": '"fc1"'}),
    ('strategy="fedseq" fedper.personal-layers="fc1"', {"strategy": '"fedseq"'}),  # not its base
])  # fmt: skip
def test_settings_that_differ_are_told_beside_their_defaults(options, expected):
    defaults = {"strategy": '"fedbabu"', "prox-mu": "0.01", "lr": "0.05", "dp.mode": '"none"'}
    found = facts.differences(facts.config.parse([options]))
    assert {key: value for key, value, _ in found} == expected
    assert all(default == defaults.get(key, default) for key, _, default in found)


@pytest.mark.parametrize(("changes", "programs"), [
    ({}, ["fedapps serial", "fedapps run"]),
    ({"dataset": "device"}, ["fedapps run --connection NAME"]),
    ({"federation": "/of/nights"}, ["fedapps serial", "fedapps run"]),
    ({"dataset": "device", "federation": "/of/nights"}, ["fedapps run --connection NAME"]),
])  # fmt: skip
def test_the_commands_repeat_a_run_where_it_can_run_and_outside_of_its_federation(
    folder, tmp_path, changes, programs
):
    """Read as a shell and the command do, in a folder whose name has a blank."""
    run = RunFiles.read(folder)
    place = tmp_path / "a run"
    place.mkdir()
    (place / "config.toml").write_text(facts.config.to_toml(run.config | changes))
    told = facts.commands(replace(run, folder=place, config=run.config | changes))
    lines = [line for line in told.splitlines() if line.startswith("fedapps")]
    assert [line.partition(" -c ")[0] for line in lines] == programs
    for line in lines:
        words = shlex.split(line.partition(" -c ")[2])
        flat = facts.config.parse([word for word in words if word != "-c"])
        assert flat["federation"] == ""
        assert {key: flat[key] for key in run.config} == run.config | changes | {"federation": ""}


def texts_of(folder):
    return Elements((folder / "report.html").read_text("utf-8")).texts


def test_page_follows_a_run_and_tells_how_it_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(page, "FIRST", 0.0)
    report = begin_run(tmp_path)
    report._page = page.LivePage(report.folder)
    add_round(report, 1)
    assert "running" in texts_of(report.folder)
    assert any(text.startswith("round 1 of 3, about 0:01 left") for text in texts_of(report.folder))
    with pytest.raises(KeyboardInterrupt), report.closing():
        raise KeyboardInterrupt
    assert "interrupted" in texts_of(report.folder)
    with pytest.raises(RunError), report.closing():
        raise RunError("round 2: <all> failed")
    assert "after round 1 of 3: round 2: <all> failed" in texts_of(report.folder)
    folder = finished_run(tmp_path, name="two")
    assert "finished" in texts_of(folder)
    with (folder / "rounds.csv").open("a") as table:
        table.write("4,train\n")  # a longer run went on from it, and was killed
    (folder / "summary.json").unlink()
    page.write(folder)
    assert {"unfinished", "after round 4 of 3"} <= set(texts_of(folder))


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("error", [None, RunError("round 2: all failed")])
def test_summary_and_page_are_there_before_the_plots(tmp_path, monkeypatch, error, fails):
    """A process that has to end may have no time for these; if they fail, the page says so."""
    report, seen = begin_run(tmp_path), []
    add_round(report, 1)

    def draw(folder):
        seen.append(((folder / "summary.json").exists(), texts_of(folder)))
        if fails:
            raise ValueError("no colors")

    monkeypatch.setattr(plots, "draw_all", draw)
    if error is None:
        report.finish({}, {})
    else:
        with pytest.raises(RunError), report.closing():
            raise error
    ((summary, texts),) = seen
    assert summary and ("failed" if error else "finished") in texts
    assert ("plot-failed" in " ".join(texts_of(report.folder))) == fails


def test_the_page_names_the_samples_that_were_scored(folder, tmp_path):
    """One that chooses settings says nothing of test samples."""
    assert "accuracy over all test samples" in texts_of(folder)
    name = "evaluate-on=validation validation-fraction=0.2"
    told = texts_of(finished_run(tmp_path, name))
    assert "accuracy over all validation samples" in told
    assert not [text for text in told if "test samples" in text]


@pytest.mark.parametrize("cost", [0.01, 0.3, 4.0])
def test_page_costs_less_than_a_hundredth_of_a_run(tmp_path, monkeypatch, cost):
    clock, written = passing(monkeypatch, page), []

    def write(*_):
        written.append(clock.now)
        clock.now += cost

    monkeypatch.setattr(page, "write", write)
    live = page.LivePage(tmp_path)
    for _ in range(20_000):
        clock.now += 0.1
        if live.is_due():
            live.write(1.0)
    assert written[0] == pytest.approx(page.FIRST)
    expected = 1 + (clock.now - page.FIRST) // (cost * (1 + page.SHARE) + 0.1)
    assert len(written) >= expected
    assert (len(written) - 1) * cost / (clock.now - written[0]) < 0.01


def test_the_command_writes_it_again(folder, tmp_path, capsys):
    parser = ArgumentParser()
    report_command.add_arguments(parser)
    before = (folder / "report.html").read_text("utf-8")
    (folder / "report.html").unlink()
    assert report_command.run(parser.parse_args([str(folder)])) == 0
    assert capsys.readouterr().out == f"{folder / 'report.html'}\n"
    lines = (folder / "report.html").read_text("utf-8").splitlines()
    assert [line for line in before.splitlines() if "written" not in line] == [
        line for line in lines if "written" not in line
    ]
    with pytest.raises(RunError, match=r"is not a run directory, .* no rounds\.csv$"):
        report_command.run(parser.parse_args([str(tmp_path)]))


@pytest.mark.parametrize(("rounds", "left_out"), [(1, "vote"), (2, "score, vote")])
def test_only_events_that_a_chart_shows_are_left_out_of_the_table(tmp_path, rounds, left_out):
    """Scores of a single round have no curve."""
    folder = finished_run(tmp_path, rounds=rounds, clients=3)
    page.write(folder)
    found = Elements((folder / "report.html").read_text("utf-8"))
    assert ("votes-values" in found.figures) == (rounds > 1) and "votes-counts" in found.figures
    assert f"Left out, as they are drawn above: {left_out}." in found.texts
    scores = {row["detail"] for row in RunFiles.read(folder).events if row["kind"] == "score"}
    assert len(scores & set(found.texts)) == (3 if rounds == 1 else 0)


@pytest.mark.parametrize("sign", "\v\f\x1c\x1d\x1e\x85\u2028\u2029")
def test_names_can_have_any_sign_but_the_ends_of_lines(tmp_path, sign):
    names = [f"North{sign}East", f"{sign}South", "West"]
    directory.write_names(tmp_path, names)
    rows = [(round_, i, name) for round_ in (1, 2) for i, name in enumerate(names)]
    head = ("round", "client", "name")
    (tmp_path / "clients.csv").write_text(cells.csv_text([head, *rows]))
    run = RunFiles.read(tmp_path)
    assert [*run.names.values()] == [*directory.names(tmp_path)] == names
    assert [[row[key] for key in head] for row in run.clients] == [
        ["2", str(i), name] for i, name in enumerate(names)
    ]


@pytest.mark.parametrize(("low", "high", "most", "whole", "expected"), [
    (0, 1, 6, False, [0, 0.2, 0.4, 0.6, 0.8, 1]),
    (0.05, 0.31, 5, False, [0.1, 0.2, 0.3]),
    (1, 3, 7, True, [1, 2, 3]),
    (0, 999, 6, True, [0, 200, 400, 600, 800]),
    (-3, 14, 5, False, [0, 5, 10]),
    (2, 2, 5, False, [2]),
])  # fmt: skip
def test_axes_have_round_numbers(low, high, most, whole, expected):
    assert steps(low, high, most, whole) == pytest.approx(expected)


# In a browser -------------------------------------------------------------------------------------

SEEN = """(page) => {
  const seen = [...page.querySelectorAll("figure")].filter((figure) => {
    const svg = figure.querySelector("svg").getBoundingClientRect();
    return svg.width > 250 && svg.height > 140 && figure.querySelectorAll("svg path").length > 1;
  });
  return {
    figures: seen.map((figure) => figure.id),
    tables: [...page.querySelectorAll(".charts table, h2 ~ .box table")].length,
    title: page.title,
  };
}"""


def test_browser_shows_every_figure_at_both_widths(folder, tmp_path):
    found = measured(folder / "report.html", tmp_path, SEEN, boxes=".box")
    for width in WIDTHS:
        seen = found[str(width)]
        assert set(seen["figures"]) == FIGURES and len(seen["figures"]) == len(FIGURES)
        assert seen["scroll"] == width and seen["wide"] == []
        assert seen["title"] == "fedcmd on <script>x.npz" and seen["tables"] >= 5


def test_tables_are_whole_on_paper_and_legends_have_their_colours(tmp_path):
    """Paper does not scroll, and a browser prints no backgrounds unless it is told to."""
    path = page.write(finished_run(tmp_path, clients=40))
    for seen in measured(path, tmp_path, PRINTED, boxes=".box").values():
        assert seen["scrolled"] > 0
        assert (seen["cut"], seen["signs"]) == (0, ["exact"])


def test_the_page_of_natural_clients_says_who_is_left_out_and_what_was_told_of_the_data(
    tmp_path, serial_run
):
    inputs, who = np.arange(88.0).reshape(44, 2), np.append(np.arange(40) % 2, [2] * 4)
    inputs[7] = 1e6
    np.savez(tmp_path / "two.npz", inputs=inputs, targets=np.arange(44) // 2 % 2, groups=who)
    folder = serial_run(
        f'dataset="{tmp_path}/two.npz" partitioner="natural" num-clients=0 model="mlp" num-rounds=1'
    )
    for _ in range(2):
        text = page.write(folder).read_text("utf-8")
        assert "2 clients, natural clients" in text and "everybody" not in text
        found = re.findall("<li>(.*?)</li>", text.partition('id="data"')[2].partition("</ul>")[0])
        assert "is far from all others, which then count as nearly equal" in found[0]
        assert found[1].startswith("1 of 3 groups have fewer than min-samples = 10 samples and")
        for name in ("clients.csv", "log.txt"):  # it needs neither
            (folder / name).unlink(missing_ok=True)


def test_the_page_of_a_run_with_nothing_to_tell_of_its_data_has_no_such_section(tmp_path):
    report = begin_run(tmp_path)
    assert 'href="#data"' not in page.write(report.folder).read_text("utf-8")
    for odd in ('{"notes": 3}', '{"notes": ["<b>", 4]}'):
        (report.folder / "run.json").write_text(odd)
        text = page.write(report.folder).read_text("utf-8")
    assert 'href="#data"' in text and "<li>&lt;b&gt;</li>" in text


def test_the_page_of_a_running_run_says_when_it_was_made_and_reloads_itself(tmp_path):
    report = begin_run(tmp_path)
    add_round(report, 1)
    for left, told in ((61.0, "round 1 of 3, about 1:01 left"), (math.inf, "round 1 of 3")):
        text = page.write(report.folder, left).read_text("utf-8")
        assert '<meta http-equiv="refresh" content="30">' in text
        found = re.search(rf"{told}. This page was made at (.{{19}}); it reloads itself", text)
        made = time.mktime(time.strptime(found[1], "%Y-%m-%d %H:%M:%S"))
        assert 0 <= time.time() - made < 60
    over = page.write(report.folder).read_text("utf-8")
    assert "refresh" not in over and "reloads" not in over


def test_the_page_has_a_table_of_devices_if_there_are_any(tmp_path):
    report = begin_run(tmp_path)
    assert "Devices" not in page.write(report.folder).read_text("utf-8")
    report.event(1, 3, "failure", "no reply in time")
    devices = [contacts.Contact(client=3, there=True, seen=time.time() - 7200)]
    known = contacts.Contacts(written=time.time(), devices=devices, left_out=["<b>nobody"])
    (report.folder / contacts.FILE).write_bytes(msgspec.json.encode(known))
    text = page.write(report.folder).read_text("utf-8")
    (row,) = re.findall(r'<table id="table-devices">.*?<tbody>(.*?)</tbody>', text, re.S)
    cells = [re.sub(r"<[^>]*>", "", cell).strip() for cell in row.split("</td>")]
    assert cells[:4] == ["3", "yes", "2 h ago", "1"]
    assert "&lt;b&gt;nobody" in text and '<a href="#devices">' in text


def test_a_run_on_devices_has_its_page_before_the_first_round_ends(tmp_path):
    own = 'dataset="device" input-shape="1,8,8"'
    for options, there in ((own, True), ("", False)):
        report = begin_run(tmp_path, options, name=f"run-{there}")
        with watched(report, page=True) as lookout:
            path = report.folder / page.PAGE
            assert path.exists() == there == (lookout.folder is not None)
            text = path.read_text("utf-8") if there else ""
            assert not there or "round 0 of 3. This page was made" in text
            assert not there or ("each with data of its own" in text and "Dirichlet" not in text)


def test_the_page_of_a_run_on_devices_is_back_if_it_is_not_resumed_after_all(tmp_path):
    report = begin_run(tmp_path, 'dataset="device" input-shape="1,8,8"')
    report.pending = ({}, report.state(0))
    with pytest.raises(RunError), watched(report, page=True):
        assert "running" in texts_of(report.folder)
        raise RunError("a port is in use")
    assert "running" not in texts_of(report.folder) and "unfinished" in texts_of(report.folder)


@pytest.mark.parametrize("stopped", ["", "Ctrl-C"])
def test_the_page_of_a_run_on_devices_is_that_of_the_run_that_goes_on(stopped, tmp_path):
    """From the moment at which it begins to; until then, the files of a run are as they were."""
    report = begin_run(tmp_path, 'dataset="device" input-shape="1,8,8"')
    add_round(report, 1)
    state = report.state(1)
    add_round(report, 2)
    report.finish({}, {}, plots=False, stopped=stopped)
    report.draw_page()
    folder, flat = report.folder, dict(report.settings.flat) | {"num-rounds": 9}
    files = ("classes.csv", "config.toml", "summary.json", *([] if stopped else [page.PAGE]))
    before = [(folder / name).read_bytes() for name in files]
    longer = Report.reopen(folder, config.read(flat), flat, state, CLASSIFICATION)
    with held(folder), watched(longer, page=True):
        assert [(folder / name).read_bytes() for name in files] == before
        word = status.read(folder).state
        assert word == ("running" if stopped else "finished") and word in texts_of(folder)
        longer.begin()
        assert status.read(folder).state == "running" and "running" in texts_of(folder)
        assert any(text.startswith("round 1 of 9") for text in texts_of(folder))


@pytest.mark.parametrize("bounds", [(-math.inf, 1.0), (-1.0, 1.0)])
def test_a_metric_below_0_is_within_its_charts(folder, bounds):
    class Below(Classification):
        metrics = (replace(CLASSIFICATION.lead, unit="", bounds=bounds),)

    def lower(rows):
        names = ("accuracy_initial", "accuracy_personalized")
        return [row | {name: str(float(row[name]) - 1) for name in names} for row in rows]

    run = RunFiles.read(folder)
    scored = {name: lower(run.evaluated(getattr(run, name))) for name in ("rounds", "clients")}
    run = replace(run, task=Below(), **scored)
    drawn = [*run_charts.curves(run), *run_charts.clients(run), *run_charts.costs(run)]
    charts = {chart.name: chart for chart in drawn}
    for name in ("accuracy", "clients", "sizes", "communication"):
        chart = charts[name]
        paths = "".join(mark.d for mark in chart.marks if mark.kind in ("line", "dots"))
        places = [float(y) for y in re.findall(r"[ML]\S+ ([-\d.]+)", paths)]
        assert chart.box.top <= min(places) < max(places) <= chart.box.bottom
        assert float(chart.y_ticks[0].label) < 0


@given(st.floats(0.0, 2.0), st.floats(0.0, 0.2))
def test_no_two_lines_of_a_chart_have_the_same_label(low, height):
    """A loss that hardly moves has few labels, not 1.09 twice."""
    line = Series("", "one", [(1.0, low), (2.0, low + height)])
    chart = line_chart(Chart("c", "", ""), [line], "{:.2f}".format)
    labels = [tick.label for tick in chart.y_ticks]
    assert len({*labels}) == len(labels)
    assert len(labels) >= (2 if height >= 0.05 else 0)


@pytest.mark.parametrize("rounds", [2, 200, 201, 300, 1500, 1501, 2000, 3333])
def test_the_last_round_of_a_long_run_is_drawn_and_can_be_read(rounds):
    """So is that of its band, which is 0.1 above it."""
    points = [(float(round_), 0.5) for round_ in range(1, rounds)] + [(float(rounds), 0.9)]
    line = Series("loss", "one", points, spread=[0.1] * rounds)
    chart = line_chart(Chart("c", "", "round"), [line], "{:.2f}".format)
    assert chart.hits[-1].title == f"round {rounds}\nloss: 0.90 ± 0.10"
    assert len(chart.hits) == -(-rounds // -(-rounds // 200))
    paths = {mark.kind: re.findall(r"[ML]([\d.]+) ([\d.]+)", mark.d) for mark in chart.marks}
    curve, band = (np.array(paths[kind], float) for kind in ("line", "area"))
    assert curve[-1, 0] == band[:, 0].max() == chart.box.right and len(curve) <= 1500
    assert curve[-1, 1] < curve[-2, 1] and band[:, 1].min() < curve[-1, 1]


def test_names_on_an_axis_keep_apart():
    """With 2, 8, 12 and 30 columns: whole names, beginnings of names, those of some columns."""
    names = ["North Clinic of the hospital", "East", ""]
    wanted = {
        2: ["North Clinic of the hospital", "East"], 8: ["North…", "East", "2", "North…"],
        12: ["North C…", "", "2", ""], 30: ["North…", "", "", ""],
    }  # fmt: skip
    for count, begin in wanted.items():
        shown = run_charts._fitting([(str(i), names[i % 3]) for i in range(count)])
        assert shown[: len(begin)] == begin and len(shown) == count
        assert len(" ".join(filter(None, shown))) < run_charts.LETTERS
    for count, every in ((25, 1), (28, 2), (100, 8)):  # without names, numbers
        shown = run_charts._fitting([(str(i), "") for i in range(count)])
        assert shown == [str(i) if i % every == 0 else "" for i in range(count)]


def test_the_chart_of_holdings_calls_clients_and_classes_by_their_names(tmp_path):
    """Of 12 clients, there is room for some names; of three classes, for all."""
    begin_run(tmp_path, clients=12)
    (folder,) = [path for path in tmp_path.rglob("config.toml")]
    folder, classes = folder.parent, ["walking", "running fast", "sit"]
    (folder / "names.csv").write_text("client,name\n" + "".join(f"{i},p{i}\n" for i in range(12)))
    held = "".join(f"{i},{k},{1 + i}\n" for i in range(12) for k in range(3))
    (folder / "samples.csv").write_text(f"client,class,num_train\n{held}")
    head = "round,class,name,num_test,accuracy_initial,accuracy_personalized\n"
    rows = [f"1,{k},{name},4,0.5,0.5\n" for k, name in enumerate(classes)]
    (folder / "classes.csv").write_text(head + "".join(rows))
    run = RunFiles.read(folder)
    chart = run_charts._holdings(run)
    assert [tick.label for tick in chart.y_ticks] == ["walking", "runnin…", "sit"]
    assert {tick.label for tick in chart.x_ticks} <= {f"p{i}" for i in range(12)}
    assert len(chart.x_ticks) > 2
