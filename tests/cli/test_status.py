"""`fedapps status`: of a run directory, and of a SuperLink that config.toml names."""

import json
import os
import sys
import time
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import msgspec
import pytest

from fedapps import cli
from fedapps.core.files import held, write_whole
from fedapps.report import status
from fedapps.report.rows import RoundRow
from fedapps.report.summary import TOTALS
from fedapps.wire import contacts
from fedapps.wire.contacts import Contact, Contacts
from fedapps.wire.health import DAY, Health, differences, problems
from fedapps.wire.nodes import BUSY
from tests.support import ROOT
from tests.support.made_runs import add_round, begin_run, finished_run, shown
from tests.support.reports import made_means

VERSIONS = {"fedapps": "0.1.0", "flwr": "1.41.0", "torch": "2.9.1", "python": "3.11.7"}
DEVICES = 30
GONE = (7, 12)  # not seen since yesterday


def healthy(now, **other):
    about = {"clock": now, "disk": 12 * 10**9, "certificate": now + 300.5 * DAY} | VERSIONS
    return Health(**about | other)


def put_devices(folder, now):
    """Write devices.json: 30 of 32 devices have been there, and two of them are gone."""
    devices = [
        Contact(client=client, node=str(2**63 + client), there=client not in GONE,
                seen=now - (86400 * 2 if client in GONE else 3), answered=now - 5, ahead=0.25,
                within=0.5, health=healthy(now))
        for client in range(DEVICES)
    ]  # fmt: skip
    devices[4].warnings = {"clock": "its clock is 100 s behind the server's: set it"}
    devices[5].health = healthy(now, torch="2.8.0", disk=10**8)
    devices[6].health = None
    for client, ago in ((8, 130), (9, 130), (11, 5)):
        devices[client].asked = now - ago  # the last one not for long
    known = Contacts(written=now - 4, server=healthy(now), devices=devices)
    known.left_out = ["SuperNode 99, client 3: client-id = 3 is also that of " + "x" * 90]
    write_whole(folder / contacts.FILE, msgspec.json.encode(known))


@pytest.fixture
def going(tmp_path):
    """The directory of a run on 32 devices that goes on, with failures of two causes."""
    report = begin_run(tmp_path, "num-rounds=20", clients=32)
    for round_ in (1, 2):
        add_round(report, round_, failures=1)
    for client, cause in [(7, "no reply in time"), (12, "no reply in time"), (3, "OSError: full")]:
        report.event(2, client, "failure", cause)
    report.event(2, 7, "failure", "no reply in time")
    put_devices(report.folder, time.time())
    with held(report.folder):
        yield report.folder


def test_an_operator_sees_who_is_missing_and_why_clients_fail(going, capsys):
    """Of many devices; the page's example has the other lines, and the cells of the table."""
    lines = shown(capsys, going)
    assert lines[3] == "devices: 28 of 32 take part, 1 left out, as of 4 s ago"
    assert lines[4:7] == [
        "waits for: clients 8-9, asked 2 min ago",
        "not there: clients 7, 12, last contact 2 days ago",
        "have never taken part: clients 30-31",
    ]
    assert "left out: SuperNode 99, client 3: client-id = 3 is also" in lines[7]
    text = "\n".join(lines)
    first = text.index("failed 3 x: clients 7, 12: no reply in time")
    assert first < text.index("failed 1 x: clients 3: OSError: full")
    assert [line.split()[0] for line in lines[-DEVICES:]] == [*map(str, range(DEVICES))]
    assert max(map(len, lines)) <= 100


def test_what_is_said_of_many_devices_is_one_line(going, capsys):
    known = msgspec.json.decode((going / contacts.FILE).read_bytes(), type=Contacts)
    for one in known.devices:
        one.warnings = {"version": "its torch is another: update it"} if one.client > 3 else {}
    known.devices[5].warnings["clock"] = "its clock is slow"
    known.warnings = {"version": "its torch is another: update it"}
    known.devices[12].seen -= 86400 * 3
    write_whole(going / contacts.FILE, msgspec.json.encode(known))
    lines = shown(capsys, going)
    assert [line for line in lines if line.startswith(("version: ", "clock: ", "not there: "))] == [
        "not there: client 12, last contact 5 days ago",
        "not there: client 7, last contact 2 days ago",
        "version: server: its torch is another: update it",
        "version: clients 4-29: its torch is another: update it",
        "clock: client 5: its clock is slow",
    ]


def test_a_device_that_is_busy_is_listed_once(going, capsys):
    """It is left out, but it is there; of those that are gone, nothing else says it."""
    known = msgspec.json.decode((going / contacts.FILE).read_bytes(), type=Contacts)
    known.devices[9].there, known.devices[9].left_out = False, True
    known.left_out = [f"SuperNode {known.devices[9].node}, client 9: {BUSY}"]
    write_whole(going / contacts.FILE, msgspec.json.encode(known))
    lines = shown(capsys, going)
    gone = [line for line in lines if line.startswith("not there: ")]
    assert gone == ["not there: clients 7, 12, last contact 2 days ago"]
    assert sum("client 9: it has not answered in time" in line for line in lines) == 1


def test_a_device_that_has_just_come_is_starting_and_not_away(going, capsys):
    """Which client a new SuperNode is, nobody knows before it answers."""
    known = msgspec.json.decode((going / contacts.FILE).read_bytes(), type=Contacts)
    known.starting = [known.devices[12].node, "4803620782426304522"]
    known.devices[12].seen = known.written
    write_whole(going / contacts.FILE, msgspec.json.encode(known))
    lines = shown(capsys, going)
    (at,) = [n for n, line in enumerate(lines) if line.startswith("starting: ")]
    assert lines[at : at + 3] == [
        "starting: client 12, SuperNode 4803620782426304522",
        "not there: client 7, last contact 2 days ago",
        "have never taken part: clients 30-31",
    ]


def test_a_run_directory_is_found_without_a_look_at_its_clients(going, monkeypatch):
    (going / "clients" / "7").mkdir(parents=True)
    assert status.find(going.parent) == going
    monkeypatch.setattr(type(going), "glob", None)
    assert status.find(going) == going


def test_what_a_stranger_wrote_into_a_run_does_nothing_to_the_terminal(going, capsys):
    put_devices(going, time.time())
    year = json.loads((going / "run.json").read_text("utf-8"))["started"][:4]
    for name, before in (("events.csv", "no reply in time"), ("run.json", year)):
        text = (going / name).read_text("utf-8").replace(before, f"\\u001b[2J{before}")
        (going / name).write_text(text if name == "run.json" else text.replace("\\u001b", "\x1b"))
    lines = shown(capsys, going)
    assert "\x1b" not in "".join(lines) and "?[2Jno reply in time" in "".join(lines)
    assert f"started ?[2J{year}" in lines[1]


def test_a_table_that_cannot_be_parsed_is_as_one_that_is_not_there(going, capsys):
    """It has a cell that is two lines for some and one for others."""
    with (going / "events.csv").open("a", encoding="utf-8", newline="") as table:
        table.write("1,0,failure,a\rb\n")
    lines = shown(capsys, going)
    assert any("2/20" in line or "round 2" in line for line in lines), lines
    assert not any("no reply in time" in line for line in lines)


WARDS = VERSIONS | {"clock": 0.0, "disk": 12 * 10**9, "certificate": 3240.5 * DAY}


def put_wards(folder):
    """Write devices.json of the page's example, at time 0; what a run knows, it finds out here."""
    server = Health(**WARDS | {"disk": 764 * 10**8, "certificate": 300.5 * DAY})
    devices = [
        Contact(client=0, there=True, seen=-6, ahead=0.1, within=0.2),
        Contact(client=1, there=True, seen=-6, ahead=-100.2, within=0.2),
        Contact(client=2, there=False, seen=-26 * 3600, ahead=-0.3, within=0.4),
        Contact(client=3, there=True, seen=-130, asked=-130, ahead=0.2, within=0.2),
    ]
    others = {1: {"torch": "2.8.0", "disk": 81 * 10**9}, 2: {"disk": 95 * 10**8}}
    for one in devices:
        one.health = Health(**WARDS | others.get(one.client, {}))
        one.warnings = problems(one.health, 0) | differences(one.health, server, one.clock)
    new = ["4803620782426304522"]
    known = Contacts(written=-6, server=server, devices=devices, starting=new)
    write_whole(folder / contacts.FILE, msgspec.json.encode(known))


def test_the_page_shows_what_is_printed(tmp_path, capsys, monkeypatch):
    """docs/devices.md: a clock, a version; one is asked, one gone, one new, one never there."""
    report = begin_run(tmp_path, "num-rounds=50", clients=5, name="wards")
    means = made_means({"accuracy_initial": 0.8, "accuracy_personalized": 0.913})
    costs = dict.fromkeys(("seconds", *TOTALS), 0)
    report.round(RoundRow(round=12, phase="train", clients=3, train_loss=1, means=means, **costs))
    for round_ in (3, 5, 5):
        report.event(round_, 2, "failure", "no reply in time")
    put_wards(report.folder)
    about = json.loads((report.folder / "run.json").read_text())
    about |= {"started": "2026-11-25T09:14:02+00:00", "versions": VERSIONS}
    (report.folder / "run.json").write_text(json.dumps(about))
    monkeypatch.setattr(status, "time", SimpleNamespace(time=lambda: 0.0))
    disk = SimpleNamespace(disk_usage=lambda _: SimpleNamespace(free=764 * 10**8))
    monkeypatch.setattr(status, "shutil", disk)
    with held(report.folder):
        run, *lines = (line.rstrip() for line in shown(capsys, report.folder))
    assert run == f"run {report.folder}"
    page = (ROOT / "docs" / "devices.md").read_text("utf-8")
    wanted = page.partition("```\nrun /home/me/fedapps-runs/wards\n")[2].partition("\n```\n")[0]
    assert lines == wanted.splitlines()


def test_json_has_it_all(going, capsys):
    (line,) = shown(capsys, going, "--json")
    found = json.loads(line)
    assert found["state"] == "running" and found["round"] == 2 and found["missing"] == [30, 31]
    assert found["failures"] == {"7": 2, "12": 1, "3": 1}
    assert found["devices"]["devices"][7]["node"] == str(2**63 + 7)
    assert found["figures"]["bytes_down"] == 2_000_000
    assert found["totals"]["bytes_down"] == 4_000_000


def test_a_folder_of_runs_stands_for_the_newest(tmp_path, capsys):
    for name, age in (("old", 100), ("new", 50)):
        report = begin_run(tmp_path, name=name)
        os.utime(report.folder / "config.toml", (time.time() - age,) * 2)
    assert shown(capsys, tmp_path)[0] == f"run {tmp_path / 'new'}"
    assert shown(capsys, tmp_path / "old")[1].startswith("unfinished, round 0 of 3; started 2")
    report = begin_run(tmp_path / "federation", name="run-0001")
    assert shown(capsys, tmp_path)[0] == f"run {report.folder}"


def test_a_run_that_is_over_waits_for_nobody(going, capsys):
    (going / "summary.json").write_text('{"finished": true}')
    assert not any("waits for" in line for line in shown(capsys, going))


def test_an_interrupted_run_that_is_resumed_runs_already_while_it_waits(going, capsys):
    """Its directory is as it was until the first round can begin."""
    (going / "summary.json").write_text('{"finished": false, "stopped": "Ctrl-C"}')
    assert shown(capsys, going)[1].startswith("running, ")


def test_a_run_that_is_over_says_so(tmp_path, capsys):
    folder = finished_run(tmp_path, clients=3)
    with held(folder):  # whoever looks at it now
        assert shown(capsys, folder)[1].startswith("finished, round 3 of 3; started 2")
    (folder / "summary.json").unlink()
    lines = shown(capsys, folder)
    assert "its process was killed: resume it" in " ".join(" ".join(lines).split())


def test_what_is_no_run_is_refused(tmp_path, capsys):
    (tmp_path / "config.toml").write_text("[superlink]")  # as in Flower's home folder
    for place in (tmp_path, tmp_path / "x"):
        assert cli.main(["status", str(place)]) == 1
        assert f"{place}: is no run directory, and there is none in it" in capsys.readouterr().err


@pytest.mark.parametrize("every", ["-1", "0", "nan", "inf", "1e+300"])
def test_seconds_that_nobody_can_wait_are_refused(every, tmp_path, capsys):
    folder = finished_run(tmp_path, clients=3)
    capsys.readouterr()
    assert cli.main(["status", str(folder), "--every", every]) == 1
    out, err = capsys.readouterr()
    assert (out, err) == (
        "",
        f"error: --every {every}: must be seconds, above 0 and at most 86400\n",
    )


@pytest.mark.parametrize("terminal", [False, True])
def test_it_is_shown_again_until_ctrl_c(terminal, going, capsys, monkeypatch):
    waited = []

    def sleep(seconds):
        waited.append(seconds)
        if len(waited) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("fedapps.cli.status.time", SimpleNamespace(sleep=sleep))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    monkeypatch.setenv("TERM", "xterm")
    looks, read = [], status.read
    monkeypatch.setattr(status, "read", lambda folder: looks.append(folder) or read(folder))
    assert cli.main(["status", str(going), "--every", "2.5"]) == (0 if terminal else 130)
    assert waited == [2.5] * 3 and looks == [going] * 3
    out = capsys.readouterr().out
    assert "devices: 28 of 32 take part" in out


LISTED = {
    "ls": {"success": True, "runs": [{
        "run-id": "5", "status": "running", "elapsed": 61, "status-details": "N/A",
        "pending-at": "2026-11-22 03:59:24Z",
    }]},
    "supernode": {"success": True, "nodes": [
        {"node-id": "77", "status": "online", "online-at": "2026-11-22 03:00:00Z"},
        {"node-id": "78", "status": "offline", "online-at": "2026-11-20 03:00:00Z",
         "offline-at": "2026-11-21 04:00:00Z"},
        {"node-id": "81", "status": "offline", "online-at": "2026-11-20 03:00:00Z",
         "offline-at": "N/A"},
        {"node-id": "79", "status": "registered", "created-at": "2026-11-20 01:00:00Z"},
        {"node-id": "80", "status": "unregistered", "created-at": "2026-11-20 01:00:00Z"},
    ]},
}  # fmt: skip


@pytest.fixture
def site(flwr, tmp_path):
    """A SuperLink whose `flwr` answers with LISTED, or an error for another name."""
    known = '[superlink]\ndefault = "site"\n[superlink.site]\naddress = "a:9093"\n'
    (tmp_path / "config.toml").write_text(known + '[superlink.other]\naddress = "b:9093"\n')
    flwr(
        f"import json\nlisted = {LISTED!r}\n"
        "error = {'success': False, 'error-message': 'no such SuperLink'}\n"
        "print('-', json.dumps(listed[sys.argv[1]] if 'site' in sys.argv else error))\n"
    )


def test_a_superlink_of_config_toml_shows_its_runs_and_supernodes(site, tmp_path, capsys):
    assert shown(capsys, "site", "--home", tmp_path) == [
        "SuperLink site",
        "run 5  running  since 2026-11-22 03:59:24Z  61 s",
        "1 of 4 SuperNodes are online",
        "SuperNode 77                    online      since 2026-11-22 03:00:00Z",
        "SuperNode 78                    offline     since 2026-11-21 04:00:00Z",
        "SuperNode 81                    offline     not heard of for a minute",
        "SuperNode 79                    registered  since 2026-11-20 01:00:00Z",
    ]
    (line,) = shown(capsys, "site", "--home", tmp_path, "--json")
    assert json.loads(line)["supernodes"] == LISTED["supernode"]["nodes"]
    assert cli.main(["status", "other", "--home", str(tmp_path)]) == 1
    assert "no such SuperLink" in capsys.readouterr().err


@pytest.mark.parametrize(("word", "minutes", "told"), [
    ("starting", 60, True), ("starting", -60, False), ("running", 60, False),
])  # fmt: skip
def test_a_run_that_does_not_begin_is_explained(word, minutes, told, flwr, tmp_path, capsys):
    """Its server loads Flower for longer than a claim holds, again and again."""
    since = f"{datetime.now(UTC) - timedelta(minutes=minutes):%Y-%m-%d %H:%M:%SZ}"
    run = LISTED["ls"]["runs"][0] | {"status": word, "pending-at": since}
    listed = LISTED | {"ls": {"success": True, "runs": [run]}}
    flwr(f"import json\nprint(json.dumps({listed!r}[sys.argv[1]]))")
    (tmp_path / "config.toml").write_text('[superlink.site]\naddress = "a:9093"\n')
    lines = shown(capsys, "site", "--home", tmp_path)
    assert lines[1].startswith(f"run 5  {word}  since {since}")
    (after,) = [line.strip() for line in lines[2:] if "devices.md#" in line] or [""]
    assert bool(after) == told and all("process" in line for line in lines if "30 s" in line)
    page = (ROOT / "docs" / "devices.md").read_text("utf-8")
    assert not told or "\n## A run that does not begin\n" in page
    assert not told or "devices.md#a-run-that-does-not-begin" in after


@pytest.mark.parametrize("known", ["", '[superlink]\ndefault = "nope"\n[superlink.site]\n'])
def test_a_word_that_is_neither_a_run_nor_a_superlink_leaves_the_home_as_it_is(
    known, tmp_path, monkeypatch, capsys
):
    """Flower would answer with an error of its own, and make a config.toml."""
    home = tmp_path / "home"
    if known:
        home.mkdir()
        (home / "config.toml").write_text(known)
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.chdir(tmp_path)
    assert cli.main(["status", "nope", "--home", str(home)]) == 1
    told = capsys.readouterr().err
    assert told.strip().endswith("nope: no run directory, and no SuperLink in config.toml")
    assert sorted(tmp_path.rglob("*")) == before


def test_a_config_toml_that_is_no_toml_is_named(tmp_path, capsys):
    (tmp_path / "config.toml").write_text("[superlink")
    assert cli.main(["status", "site", "--home", str(tmp_path)]) == 1
    assert f"{tmp_path}/config.toml: cannot be read (" in capsys.readouterr().err
