"""What Prometheus gets of a run and of a device, read back by its own parser."""

import csv
import json
import re
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from functools import partial

import msgspec
import pytest

from deploy.deployment import free_port
from fedapps.core import prometheus
from fedapps.core.errors import RunError
from fedapps.device import exporter as of_device
from fedapps.device import supernode
from fedapps.report import exporter
from fedapps.report.page import reading
from fedapps.report.report import Report
from fedapps.wire import contacts, health
from tests.cli.test_status import DEVICES, GONE, VERSIONS, put_devices
from tests.support import ROOT
from tests.support.made_runs import add_round, begin_run
from tests.support.marks import extra
from tests.support.tls import make_tls

parser = extra("prometheus_client.parser")
FIGURE = re.compile(r"fedapps_\w+")


def scraped(port):
    """The samples at a port: value by name and labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        text = answer.read().decode()
    families = parser.text_string_to_metric_families(text)
    samples = [sample for family in families for sample in family.samples]
    found = {(s.name, frozenset(s.labels.items())): s.value for s in samples}
    assert len(found) == len(samples), "no figure twice"
    return found


def of(name, **labels):
    return f"fedapps_{name}", frozenset(labels.items())


@pytest.fixture
def folder(tmp_path):
    report = begin_run(tmp_path, "num-rounds=20", clients=32)
    add_round(report, 1, failures=1)
    for client in (7, 7, 12):
        report.event(1, client, "failure", 'a "cause"\\n of <ours>')
    put_devices(report.folder, time.time())
    return report.folder


def test_the_figures_are_those_of_the_run_directory(folder):
    def rows(name):
        with (folder / name).open(newline="") as file:
            return [*csv.DictReader(file)]

    port = free_port()
    with prometheus.serving(port, exporter.of_run(folder)):
        before = scraped(port)
        report_later(folder)
        found = scraped(port)
    assert before[of("round_figure", column="round")] == 1
    rounds, events = rows("rounds.csv"), rows("events.csv")
    assert len(rounds) == 2
    for column, text in rounds[-1].items():
        if column != "phase" and text:
            assert found[of("round_figure", column=column)] == float(text), column
    for column in ("bytes_down", "bytes_up", "failures"):
        total = sum(float(row[column]) for row in rounds)
        assert found[of("rounds_sum_total", column=column)] == total
    kinds = Counter(row["kind"] for row in events)
    assert {kind: found[of("events_total", kind=kind)] for kind in kinds} == kinds
    failed = Counter(row["client"] for row in events if row["kind"] == "failure")
    assert failed == {"7": 2, "12": 1}
    for client in map(str, range(32)):  # Prometheus sees no increase from nothing to a first one
        assert found[of("failures_total", client=client)] == failed[client]
    known = contacts.read(folder)
    for one in known.devices:
        who = {"client": str(one.client)}
        assert found[of("device_there", **who)] == (one.client not in GONE)
        assert found[of("device_last_contact_timestamp_seconds", **who)] == one.seen
        assert found[of("device_clock_ahead_seconds", **who)] == 0.25
        assert found[of("device_clock_within_seconds", **who)] == 0.5
        if one.health:
            assert found[of("device_disk_free_bytes", **who)] == one.health.disk
            assert found[of("device_info", **who, **VERSIONS | {"torch": one.health.torch})] == 1
    for client in map(str, range(DEVICES, 32)):  # the two that have never been there
        assert found[of("device_there", client=client)] == 0
        assert of("device_last_contact_timestamp_seconds", client=client) not in found
    assert found[of("devices_left_out")] == 1
    assert of("device_info", client="6", **VERSIONS) not in found, "it has not told"
    assert found[of("warning", who="client 4", kind="clock")] == 1
    assert found[of("run_running")] == 0 and found[of("rounds_planned")] == 20


def test_a_device_that_is_connected_but_left_out_is_told_apart_from_one_that_is_gone(folder):
    known = contacts.read(folder)
    known.devices[9].there, known.devices[9].left_out = False, True
    (folder / contacts.FILE).write_bytes(msgspec.json.encode(known))
    found = {metric.name: metric for metric in exporter.of_run(folder)()}
    both = [
        {int(sample.labels["client"]) for sample in found[name].samples if sample.value == 1}
        for name in ("fedapps_device_there", "fedapps_device_left_out")
    ]
    assert both == [{*range(DEVICES)} - {*GONE, 9}, {9}]


def report_later(folder):
    """Add a round to the tables: the figures are made anew at each visit."""
    head, row = (folder / "rounds.csv").read_text().splitlines()
    cells = dict(zip(head.split(","), row.split(","), strict=True))
    again = cells | {"round": "2", "bytes_up": "5", "accuracy_personalized": "0.5"}
    with (folder / "rounds.csv").open("a") as file:
        file.write(",".join(again.values()) + "\n")


def test_a_visit_parses_only_what_is_new(folder, monkeypatch):
    """A run of days has hundreds of thousands of events, and a visit every few seconds."""
    parsed, parse = [], reading.rows_of

    def counted(lines):
        found = parse(lines)
        parsed.append(len(found))
        return found

    def events():
        (metric,) = [metric for metric in figures() if metric.name == "fedapps_events"]
        return {sample.labels["kind"]: sample.value for sample in metric.samples}

    monkeypatch.setattr(reading, "rows_of", counted)
    figures = exporter.of_run(folder)
    before, first = events(), sum(parsed)
    with (folder / "events.csv").open("a") as file:
        file.write("1,3,failure,late\n")
    assert events() == before | {"failure": before["failure"] + 1}
    assert sum(parsed) == first + 1


def test_a_port_in_use_is_refused_and_given_back(folder):
    port = free_port()
    refused = pytest.raises(RunError, match=rf"^metrics-port = {port}: cannot be opened on 127")
    serve = partial(prometheus.serving, port, exporter.of_run(folder))
    with serve(), refused, serve():
        pass
    with serve():
        pass
    with prometheus.serving(0, exporter.of_run(folder)):
        pass


def test_without_the_package_a_run_says_what_to_install(monkeypatch):
    monkeypatch.setattr(prometheus.importlib.util, "find_spec", lambda _: None)
    prometheus.check_installed(0)
    with pytest.raises(RunError, match="metrics-port = 9464: prometheus-client is not installed"):
        prometheus.check_installed(9464)


def test_a_run_serves_its_figures_while_it_goes_on(serial_run, tiny_npz, monkeypatch):
    port, seen, round_ = free_port(), [], Report.round

    def scrape(report, row):
        round_(report, row)
        seen.append(scraped(port))

    monkeypatch.setattr(Report, "round", scrape)
    serial_run(tiny_npz, f"num-clients=4 num-rounds=2 metrics-port={port}")
    assert [found[of("round_figure", column="round")] for found in seen] == [1, 2]
    assert {found[of("run_running")] for found in seen} == {1}
    assert not [name for name, _ in seen[0] if name.startswith("fedapps_device")]


def test_a_device_serves_what_its_server_would_learn(tmp_path):
    state = tmp_path / "state"
    (state / "fedper-cnn-12345678").mkdir(parents=True)
    (state / "fedper-cnn-12345678" / "round-000002.safetensors").write_bytes(b"")
    (state / "log.txt").write_text(
        "2026-11-22 03:59:24 round 1, client 4, train\nTraceback\n 2 lines\n\n"
        "2026-11-22 04:59:24 round 2, client 4, train\nTraceback\n"
    )
    tls = make_tls(tmp_path / "tls")
    words = ["x", "--root-certificates", str(tls / "ca.crt"), "--node-config"]
    words.append(f'client-id=4 data="/data/a.npz" state-dir="{state}"')
    port = free_port()
    with prometheus.serving(port, of_device.of_device(words)):
        found = scraped(port)
    me = health.of_this_machine(state, (tls / "ca.crt",))
    versions = {name: getattr(me, name) for name in health.PACKAGES}
    assert found[of("supernode_info", client="4", **versions)] == 1
    ends = found[of("supernode_certificate_expiry_timestamp_seconds")]
    assert ends == me.certificate > time.time()
    written = (state / "fedper-cnn-12345678" / "round-000002.safetensors").stat().st_mtime
    assert found[of("supernode_state_timestamp_seconds")] == written
    assert found[of("supernode_failures_total")] == 2
    assert found[of("supernode_disk_free_bytes")] > 0


@pytest.mark.parametrize(("words", "port", "rest"), [
    (["x", "--a", "b"], 0, ["x", "--a", "b"]),
    (["x", "--metrics-port", "9464", "--a"], 9464, ["x", "--a"]),
    (["x", "--a", "--metrics-port=0"], 0, ["x", "--a"]),
])  # fmt: skip
def test_flower_does_not_see_the_port(words, port, rest):
    assert of_device.without_port(words) == (port, rest)


PORT = "--metrics-port"


@pytest.mark.parametrize("words", [[PORT], [f"{PORT}=-1"], [PORT, "65536"]])
def test_what_is_no_port_is_refused(words):
    with pytest.raises(RunError, match="must be a port from 1 to 65535"):
        of_device.without_port(words)


def test_a_supernode_without_a_state_folder_has_no_figures(monkeypatch):
    words = ["x", "--metrics-port", "9464", "--node-config", "partition-id=0"]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(RunError, match="names no state-dir"):
        supernode.serve_figures()


def test_a_supernode_that_serves_figures_ends(tmp_path):
    """A server of figures that is stopped only when its context is thrown away hangs for ever."""
    words = ["x", f"{PORT}={free_port()}", "--node-config", f'state-dir="{tmp_path}"']
    code = f"import sys; from fedapps.device import supernode; sys.argv = {words}"
    run = [sys.executable, "-c", f"{code}; supernode.serve_figures(); sys.exit(7)"]
    assert subprocess.run(run, timeout=100).returncode == 7


def test_dashboard_and_alarms_use_figures_that_there_are(folder):
    port = free_port()
    with prometheus.serving(port, exporter.of_run(folder)):
        names = {name for name, _ in scraped(port)}
    of_devices = {family.name for family in of_device.figures("0", folder, None)}
    names |= {f"{name}{end}" for name in of_devices for end in ("", "_total")}
    names.add("fedapps_supernode_certificate_expiry_timestamp_seconds")
    alarms = (ROOT / "deploy" / "alarms.yml").read_text("utf-8")
    board = json.loads((ROOT / "deploy" / "grafana.json").read_text("utf-8"))
    asked = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    used = {name for text in [*asked, alarms] for name in FIGURE.findall(text)}
    assert len(used) >= 10 and used <= names, used - names
    assert {f"fedapps_device{end}" for end in ("_there", "s_left_out")} <= {*FIGURE.findall(alarms)}


def test_a_state_that_is_deleted_while_it_is_looked_at_costs_no_figure(tmp_path):
    (tmp_path / "fedper-cnn").mkdir()
    (tmp_path / "fedper-cnn/round-000001.safetensors").symlink_to("gone")  # seen, and not there
    (tmp_path / "personalized.safetensors").touch()
    written = (tmp_path / "personalized.safetensors").stat().st_mtime
    values = {s.name: s.value for m in of_device.figures("1", tmp_path, None) for s in m.samples}
    assert values["fedapps_supernode_state_timestamp_seconds"] == written
