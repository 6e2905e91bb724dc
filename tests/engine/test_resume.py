"""A killed run goes on as if nothing had happened; what cannot be used is said, or passed over."""

import csv
import errno
import fcntl
import json
import math
import os
import shutil
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from unittest.mock import Mock

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from fedapps import client_app
from fedapps.compare.runs import read as read_run
from fedapps.core import config, registry
from fedapps.core.errors import RunError
from fedapps.core.files import held
from fedapps.engine import again, best, checkpoint, resume, store
from fedapps.engine.checkpoint import Best, Checkpoint, Progress, needed_after
from fedapps.engine.failures import FailureCounts
from fedapps.engine.federation import Federation
from fedapps.engine.finished import FinishedRun
from fedapps.engine.recovery import SPENT
from fedapps.engine.rounds import Rounds
from fedapps.engine.store import NONE, ClientStore
from fedapps.engine.versions import LOADED, StateVersions
from fedapps.report import directory
from fedapps.report.about import About
from fedapps.report.page.facts import state_of
from fedapps.report.page.reading import RunFiles
from fedapps.report.report import Report
from fedapps.serial import run_serial
from fedapps.tasks import TASKS
from fedapps.training.workspace import workspace
from fedapps.wire.nodes import NodeRegistry
from tests.support import ROOT
from tests.support.clock import until
from tests.support.killed import differences
from tests.support.marks import LONG, THOROUGH
from tests.support.owners import hide

METHODS = registry.names()


def outcomes(program, folder, number, methods):
    """What a program of tests/support says of each method; it is a process of its own."""
    command = [sys.executable, "-m", f"tests.support.{program}", folder, str(number), *methods]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [result["method"] for result in found] == [*methods]
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kills", "methods"),
    [(3, ["fedper", "fedcmd", "feddyn", "fedfc", "fedper@secure"])]
    + [THOROUGH(3, METHODS[::4], id="3-some")]
    + [
        THOROUGH(3, [one], id=f"3-{one}")
        for one in ("fedper@regression", "fedala@tokens", "apfl@multilabel")
    ]
    + [LONG(20, METHODS[start::2], id=f"20-all-{start}") for start in range(2)],
)
def test_a_method_that_was_killed_is_as_if_it_had_not_been(kills, methods, tmp_path):
    found = outcomes("killed", tmp_path, kills, methods)
    assert [result for result in found if result["differs"]] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("share", "methods"),
    [THOROUGH(13, ["fedper"]), LONG(1, ["fedbabu", "fedper", "fedcmd"])],
)
def test_a_run_whose_disk_was_full_is_as_if_it_had_not_been(share, methods, tmp_path):
    """At every write, or every 13th, from which on all fail: one line says so, nothing is lost."""
    for result in outcomes("full_disk", tmp_path, share, methods):
        assert result["differs"] == {} and len(result["said"]) >= 40 // share
        for said in result["said"].values():
            assert said.startswith("RunError: ") and "No space left on device" in said


# Which run, and with which settings ---------------------------------------------------------


@pytest.fixture
def interrupted(serial_run, monkeypatch):
    """Return interrupted(*run_config): the directory of a run of 4 rounds as after the second.

    All checkpoints are kept, also those of other runs of the test.
    """
    monkeypatch.setattr(checkpoint, "KEPT", 100)

    def run(*options):
        folder = serial_run("num-rounds=4", *options, 'run-name="interrupted"')
        back_to(folder, 2)
        return folder

    return run


def back_to(folder, round_):
    """Make a run directory look as after a kill in the round after `round_`."""
    for later in checkpoint.rounds(folder):
        if later > round_:
            (folder / f"checkpoint/round-{later:06d}.fedapps").unlink()
    for name in ("summary.json", "model.safetensors", "classes.csv"):
        (folder / name).unlink()


def resumed(folder, options=""):
    """Go on with a run; returns its directory."""
    return run_serial(config.parse([f'resume="{folder}" {options}']))


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def untold(folder):
    """The contents but for the log, in which a run that is refused says so."""
    return {path: held for path, held in contents(folder).items() if path.name != "log.txt"}


@pytest.fixture
def scored(monkeypatch):
    """Return scored(*scores): the best round is chosen by these, from round 1 on."""
    after = Best.after

    def by(*scores):
        monkeypatch.setattr(
            Best, "after", lambda self, r, _, *rest: after(self, r, scores[r - 1], *rest)
        )

    return by


VALIDATION = 'validation-fraction=0.2 evaluate-on="validation"'


def test_a_run_of_many_clients_has_the_same_states_and_scores(interrupted, serial_run, monkeypatch):
    """With its folders in a tree, and every second client in samples.csv; six are many here."""
    options = ("num-rounds=4", 'strategy="fedper"', VALIDATION, "keep-best=true")
    whole = serial_run(*options)
    for module, name, most in ((store, "FLAT", 3), (store, "BRANCH", 2), (directory, "LISTED", 4)):
        monkeypatch.setattr(module, name, most)
    folder = resumed(interrupted(*options[1:]))
    for part in (".", "best"):
        flat, tree = (
            {(p.parent.name, p.name): p.read_bytes() for p in (run / part).glob(pattern)}
            for run, pattern in ((whole, "clients/*/round-*"), (folder, "clients/*-*/*/round-*"))
        )
        assert flat and flat == tree
    assert (folder / directory.MODEL).read_bytes() == (whole / directory.MODEL).read_bytes()
    listed, every = (directory.lines(run / directory.SAMPLES) for run in (folder, whole))
    assert listed == [row for row in every if row["client"] in "024"] != every
    rows = directory.lines(again.evaluate(folder, {"evaluate-clients": 2}))
    last = [row for row in directory.lines(folder / "clients.csv") if row["round"] == "4"]
    assert len(rows) == 2 and all(row in last for row in rows)


def test_the_command_is_the_directory_alone(interrupted, serial_run):
    """A number may be written in another way; lost states would be in events.csv."""
    whole = serial_run("num-rounds=4", 'strategy="fedper" max-norm=2')
    folder = interrupted('strategy="fedper" max-norm=2')
    assert resumed(folder, "max-norm=2.0") == folder
    assert differences(whole, folder) == []
    assert About.read(folder).resumed == (2,)


def test_each_resumption_is_known(tmp_path):
    about = About.new()
    for rounds in ((5,), (5, 9), (5, 9, 7)):
        about.again(rounds[-1]).write(tmp_path)
        about = About.read(tmp_path)
        assert about.resumed == rounds


def test_latest_is_the_newest_unfinished_run_of_the_same_settings(
    interrupted, serial_run, monkeypatch, capsys
):
    """Also while another run is deleted."""
    folder, glob = interrupted(), Path.glob
    other = serial_run("num-rounds=4 lr=0.04")
    assert "stopped after round" not in capsys.readouterr().out
    assert other != folder
    new = serial_run("num-rounds=4")
    assert f"{folder} with the same settings stopped after round 2" in capsys.readouterr().out
    assert new != folder

    def found(path, pattern):
        yield from glob(path, pattern)
        if pattern.endswith(directory.CHECKPOINTS):
            yield path / "gone" / directory.CHECKPOINTS

    monkeypatch.setattr(Path, "glob", found)
    assert serial_run("num-rounds=4", 'resume="latest"') == folder
    with pytest.raises(RunError, match="no unfinished run with these settings"):
        serial_run("num-rounds=4", 'resume="latest"')  # now it is finished


def test_an_interrupted_run_is_found_behind_any_number_of_finished_ones(
    interrupted, serial_run, monkeypatch
):
    monkeypatch.setattr(resume, "MOST_LOOKED_AT", 2)
    folder = interrupted()
    for name in ("one", "two", "three"):
        shutil.copytree(folder, folder.with_name(name))
        (folder.with_name(name) / "summary.json").write_text('{"finished": true}')
    assert serial_run("num-rounds=4", 'resume="latest"') == folder


def test_somebody_elses_run_in_the_same_folder_is_not_offered(
    interrupted, serial_run, monkeypatch, capsys
):
    folder = interrupted()
    hide(monkeypatch, folder / directory.CHECKPOINTS)
    assert serial_run("num-rounds=4") != folder
    assert "stopped after round" not in capsys.readouterr().out


# Whether the run is still the same ----------------------------------------------------------


def test_a_run_does_not_go_on_with_other_pixels(interrupted, make_npz, tmp_path):
    path = make_npz(tmp_path / "mine.npz")
    folder = interrupted(f'dataset="{path}"')
    before, arrays = contents(folder), dict(np.load(path))
    arrays["test_images"][-1, 0, 0] ^= 1  # a digit of one pixel, in the last sample
    np.savez(path, **arrays)
    with pytest.raises(RunError, match=f"^{folder}: the samples have changed since the run began"):
        resumed(folder)
    assert contents(folder) == before
    arrays["test_images"][-1, 0, 0] ^= 1
    np.savez_compressed(path, **arrays)  # another file, but the same data
    workspace.cache_clear()  # as in a new process
    resumed(folder)


def test_a_run_does_not_go_on_with_other_code(interrupted, monkeypatch, tmp_path):
    model = tmp_path / "mine.py"
    build = "Sequential(nn.Flatten(), nn.Linear(64, 5), nn.Linear(5, *outputs.shape))"
    model.write_text(f"from torch import nn\n\ndef make(inputs, outputs):\n    return nn.{build}\n")
    folder = interrupted('strategy="fedper"', f'model="{model}:make"')
    names = ("strategies.fedper", "clients.fedper")
    sources = [model, *(Path(sys.modules[name].__file__) for name in names)]
    edits, read = {}, Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: edits.get(path) or read(path))
    for source in sources:
        edits[source] = read(source) + b"\nOTHER = 1\n"
        monkeypatch.setattr(registry, "_loaded", {})  # as in a new process
        with pytest.raises(RunError, match=r"code.* ha(s|ve) changed since the run began"):
            resumed(folder)
        edits[source] = b"# only a comment\n" + read(source)
    monkeypatch.setattr(registry, "_loaded", {})
    resumed(folder)


def test_a_run_that_could_not_go_on_with_the_code_is_not_offered(
    interrupted, serial_run, monkeypatch, capsys
):
    """`--resume` would take it, as the newest, and be refused."""
    folder = interrupted()
    source, read = Path(sys.modules["strategies.fedbabu"].__file__), Path.read_bytes
    more = {source: b"\nOTHER = 1\n"}
    for edited, offered in ((True, False), (False, True)):
        with monkeypatch.context() as patch:
            if edited:
                patch.setattr(Path, "read_bytes", lambda path: read(path) + more.get(path, b""))
            patch.setattr(registry, "_loaded", {})  # as in a new process
            serial_run("num-rounds=4")
        told = f"{folder} with the same settings stopped after round 2"
        assert (told in capsys.readouterr().out) == offered


def test_a_run_that_can_offer_nothing_computes_no_fingerprints(tmp_path, monkeypatch):
    monkeypatch.setattr(resume.fingerprints, "fingerprints", None)
    made = config.read(config.defaults() | {"runs-dir": str(tmp_path)})
    resume.offer(SimpleNamespace(settings=made))


def test_the_state_of_another_client_or_round_is_not_taken(interrupted, read_csv):
    folder = interrupted('strategy="fedper" fraction-train=1.0')
    states = folder / "clients"
    newest = {n: states / str(n) / "round-000002.safetensors" for n in (0, 1, 2)}
    newest[1].write_bytes(newest[0].read_bytes())  # of another client
    newest[2].write_bytes(newest[2].with_name("round-000001.safetensors").read_bytes())
    resumed(folder)
    rows = [row for row in read_csv(folder, "events.csv") if row["kind"] == "state-lost"]
    told = "the state of round 2 was expected, but that of round 1 was found"
    assert [(row["round"], row["client"], row["detail"]) for row in rows] == [
        ("3", "1", told),
        ("3", "2", told),
    ]


def test_what_runs_elsewhere_is_neither_offered_nor_gone_on_with(interrupted, serial_run):
    folder = interrupted()
    before = contents(folder)
    hold = (
        "import fcntl, os, sys\n"
        f"handle = os.open({str(folder / '.lock')!r}, os.O_RDWR)\n"
        "fcntl.flock(handle, fcntl.LOCK_EX)\nprint('held', flush=True)\nsys.stdin.read()\n"
    )
    other = subprocess.Popen([sys.executable, "-c", hold], stdin=-1, stdout=-1, text=True)
    with other:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(RunError, match="this run is going on in another process"):
            resumed(folder)
        with pytest.raises(RunError, match="no unfinished run with these settings"):
            serial_run("num-rounds=4", 'resume="latest"')
        assert contents(folder) == before
        other.kill()
    assert serial_run("num-rounds=4", 'resume="latest"') == folder  # however it has ended


def test_a_run_holds_its_directory(serial_run, monkeypatch):
    free, write = [], Report.round

    def look(report, row):
        with held(report.folder) as alone:
            free.append(alone)
        write(report, row)

    monkeypatch.setattr(Report, "round", look)
    folder = serial_run("num-rounds=2")
    assert free == [False, False]
    with held(folder) as alone:
        assert alone


def test_a_checkpoint_of_another_model_is_refused(interrupted):
    folder = interrupted()
    found = checkpoint.load(folder)
    for arrays, line in (
        (found.arrays | {"fc9.fc.weight": np.ones(2, "f4")}, f"^{folder}: fc9.fc.weight"),
        ({k: v for k, v in found.arrays.items() if k != "fc2.fc.bias"}, f"^{folder}: fc2.fc"),
        (found.arrays | {"fc2.fc.bias": np.ones(9, np.float32)}, "fc2.fc.bias has shape"),
    ):
        checkpoint.save(folder, replace(found, arrays=arrays))
        with pytest.raises(RunError, match=line):
            resumed(folder)


def test_a_run_that_is_killed_while_it_is_extended_has_not_finished(serial_run, monkeypatch):
    folder, write = serial_run("num-rounds=2"), Report.round
    assert directory.has_finished(folder) and read_run(folder).finished
    copy = folder.with_name("killed")

    def cut(report, row):
        write(report, row)
        if row.round == 3 and not copy.exists():
            shutil.copytree(folder, copy)  # what a kill leaves at this moment

    monkeypatch.setattr(Report, "round", cut)
    resumed(folder, "num-rounds=4")
    assert directory.has_finished(folder) and read_run(folder).finished
    assert not directory.has_finished(copy) and not read_run(copy).finished
    state = state_of(RunFiles.read(copy), None)
    assert (state.word, state.text) == ("unfinished", "after round 3 of 4")
    assert serial_run("num-rounds=4", 'resume="latest"') == copy
    assert differences(folder, copy) == []


@pytest.mark.parametrize(("options", "refused", "line"), [
    ('devices="{here}/devices.toml"', "", "the devices are not those that the run began with"),
    ("", "metrics-port={port}", r"metrics-port = \d+: cannot be opened"),
    ("", "", "no SuperNodes"),
    ('strategy="splitlearning"', 'channel-address="127.0.0.1:{port}"', "channel-address = "),
    ('strategy="splitlearning"', "channel-nodes=2", "2 SuperNodes must work at the same time"),
])  # fmt: skip
def test_a_finished_run_that_may_not_be_longer_stays_as_it_is(
    options, refused, line, serial_run, tmp_path, monkeypatch
):
    """Whatever refuses it before the first round."""
    path, federation = tmp_path / "devices.toml", tmp_path / "federation"
    speeds = "[[device]]\nname = 'a'\ndown = 1e6\nup = 1e6\nmacs = "
    path.write_text(speeds + "1e9")
    own = options.format(here=tmp_path), f'federation="{federation}"'
    folder = serial_run(f"num-rounds=2 {VALIDATION} keep-best=true num-clients=8", *own,
                        'unseen-clients="0.25" run-name="x"')  # fmt: skip
    path.write_text(speeds + "2e9")
    watched = (folder, federation)
    before = [untold(folder) for folder in watched]
    assert {folder / "unseen.csv", folder / "summary.json"} < before[0].keys()
    if line == "no SuperNodes":
        monkeypatch.setattr(
            NodeRegistry, "wait_for_nodes", Mock(side_effect=RunError("no SuperNodes"))
        )
    with socket.create_server(("127.0.0.1", 0)) as taken:
        refused = refused.format(port=taken.getsockname()[1])
        with pytest.raises(RunError, match=line):
            resumed(folder, f"num-rounds=3 {refused}")
    assert [untold(folder) for folder in watched] == before


@pytest.mark.parametrize("began", ["cpu", "cuda"])
def test_a_run_goes_on_with_the_type_of_processor_that_it_began_with(
    began, interrupted, monkeypatch
):
    """What device=auto has chosen. The clients only say that they see a GPU, or none."""
    see, own = [began == "cuda"], client_app.Hello
    monkeypatch.setattr(client_app, "Hello", lambda **told: own(**told | {"cuda": see[0]}))
    folder = interrupted('device="auto"')
    assert About.read(folder).processor == began
    before = untold(folder)
    see[0] = not see[0]
    cure = "-c device=cpu" if began == "cpu" else "an engine with a GPU: fedapps run"
    with pytest.raises(RunError, match=f'^device = "auto": .* began on {began}; .*{cure}'):
        resumed(folder)
    assert untold(folder) == before
    if began == "cpu":
        resumed(folder, 'device="cpu"')
        return
    with pytest.raises(RunError, match=r'device = "cpu" \(the run has "auto"\)'):
        resumed(folder, 'device="cpu"')
    (folder / "run.json").write_text((folder / "run.json").read_text().replace('"cuda"', '""'))
    resumed(folder)  # as a run of an earlier version
    assert About.read(folder).processor == "cpu"


@pytest.mark.parametrize("wanted", [("auto", "cpu"), ("cpu", "auto"), ("auto", "auto")])
@pytest.mark.parametrize("began", ["cpu", "cuda"])
def test_auto_is_the_type_of_processor_that_a_run_began_with(wanted, began, tmp_path, flat_config):
    """Whether the run is named or looked for, and whichever of both was given first."""
    folder, (first, second) = tmp_path / "runs" / "begun", wanted
    (folder / directory.CHECKPOINTS).mkdir(parents=True)
    (folder / directory.CHECKPOINTS / "round-000001.fedapps").touch()
    directory.configure(folder, flat_config(f'device="{first}"'))
    msgspec.structs.replace(About.new(), processor=began).write(folder)
    asked = f'device="{second}"'
    found = [*resume.unfinished(config.read(flat_config(asked)))]
    if began == "cpu" or first == second:
        assert found == [folder]
        for name in ("latest", folder):
            assert resume.find(config.read(flat_config(asked, f'resume="{name}"'))) == folder
    else:
        assert found == []
        with pytest.raises(RunError, match=f'device = "{second}" .the run has "{first}"'):
            resume.find(config.read(flat_config(asked, f'resume="{folder}"')))


def test_a_run_that_waits_to_go_on_is_as_it_was(interrupted, read_csv, monkeypatch):
    """Until then, its events are kept; it can wait long for devices."""
    folder, wait, stop = interrupted(), NodeRegistry.wait_for_nodes, [True]
    before = untold(folder)

    def waiting(nodes):
        nodes.lookout.event("server", "clock", "it is wrong")
        if stop.pop():
            raise KeyboardInterrupt
        return wait(nodes)

    monkeypatch.setattr(NodeRegistry, "wait_for_nodes", waiting)
    with pytest.raises(KeyboardInterrupt, match=f"before round 3 of 4: {folder} is as it was$"):
        resumed(folder)
    assert untold(folder) == before
    stop.append(False)
    resumed(folder)
    events = [row for row in read_csv(folder, "events.csv") if row["kind"] == "clock"]
    assert [(row["round"], row["detail"]) for row in events] == [("2", "it is wrong")]


def test_a_run_without_anything_left_to_do_says_so_if_it_waits_in_vain(serial_run, monkeypatch):
    folder = serial_run("num-rounds=2")
    before = untold(folder)
    monkeypatch.setattr(NodeRegistry, "wait_for_nodes", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt, match=f"with nothing left to do: {folder} is as it was$"):
        resumed(folder)
    assert untold(folder) == before


@pytest.mark.parametrize("owner, where", [(directory, "configure"), (os, "truncate")])
def test_a_run_that_is_interrupted_while_it_begins_to_go_on_is_complete(
    owner, where, serial_run, read_csv, monkeypatch
):
    """Its summary is gone then, so it is a run of the new settings, with what happened before."""
    folder, wait = serial_run("num-rounds=2"), NodeRegistry.wait_for_nodes
    own = getattr(owner, where)

    def waiting(nodes):
        nodes.lookout.event("server", "clock", "it is wrong")
        return wait(nodes)

    def interrupt(*arguments):
        own(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(NodeRegistry, "wait_for_nodes", waiting)
    with monkeypatch.context() as patch:
        patch.setattr(owner, where, interrupt)
        with pytest.raises(KeyboardInterrupt, match=f"after round 2 of 3; to resume: .*{folder}"):
            resumed(folder, "num-rounds=3")
    assert not directory.is_final(directory.summary(folder)) and directory.summary(folder)
    kinds = [row["kind"] for row in read_csv(folder, "events.csv")]
    assert kinds == ["clock", "interrupted"]
    resumed(folder, "num-rounds=3")
    assert [row["kind"] for row in read_csv(folder, "events.csv")] == ["clock"]
    whole = serial_run("num-rounds=3")
    for name in ("clients.csv", directory.MODEL):
        assert (folder / name).read_bytes() == (whole / name).read_bytes()


def test_other_settings_are_named(interrupted, monkeypatch):
    """`flwr run` alone is told of resume.toml, too."""
    folder, line = interrupted(), r"lr = 0\.7 \(the run has 0\.05\); leave them out"
    with pytest.raises(RunError, match=r"cache-limit = 7 \(the run has \d+\)"):
        resumed(folder, "cache-limit=7")  # train_macs depends on it
    for program in ("fedapps", "flwr-serverapp"):
        monkeypatch.setattr(sys, "orig_argv", ["python", f"/bin/{program}", "serial"])
        with pytest.raises(RunError, match=line) as caught:
            resumed(folder, "lr=0.7")
        assert ("resume.toml" in str(caught.value)) == (program != "fedapps")


def test_tables_of_another_version_get_no_lines_of_this_one(interrupted):
    folder = interrupted()
    for name in ("rounds.csv", "clients.csv"):
        before = (folder / name).read_text()
        head, _, rest = before.partition("\n")
        text = f"{head.rpartition(',')[0]},older\n{rest}"
        (folder / name).write_text(text)
        with pytest.raises(RunError, match=f"{name}: has other columns than this version"):
            resumed(folder)
        assert (folder / name).read_text() == text
        (folder / name).write_text(before)


def test_a_checkpoint_names_no_file_but_the_tables_of_its_run(interrupted, tmp_path):
    folder, victim = interrupted(), tmp_path / "runs" / "mine.txt"
    victim.write_text("mine")
    there = checkpoint.load(folder)
    tables = there.progress.tables | {"../mine.txt": 0}
    progress = msgspec.structs.replace(there.progress, tables=tables)
    checkpoint.save(folder, replace(there, progress=progress))
    with pytest.raises(RunError, match=r"mine\.txt is not a table of a run"):
        for path in (folder / "checkpoint").glob("round-000001*"):
            path.unlink()
        resumed(folder)
    assert victim.read_text() == "mine"


def test_what_is_personal_is_not_for_other_users(serial_run):
    folder = serial_run('strategy="fedper"')
    private = [folder / "checkpoint", folder / "clients", *(folder / "clients").iterdir()]
    assert len(private) > 2 and {path.stat().st_mode & 0o077 for path in private} == {0}


@pytest.mark.parametrize("options", [
    'strategy="fedseq" fedseq.groups=2 fedseq.unfreeze-rounds="0,1" finetune-epochs=2',
    'unseen-clients="0.25" num-clients=8',
])  # fmt: skip
def test_the_phase_after_the_last_round_is_that_of_the_end_only(options, serial_run, monkeypatch):
    """Also if the run is killed right after it has gone on, and has one checkpoint only."""
    longer, folder = (serial_run(options, f"num-rounds={rounds}") for rounds in (4, 2))
    ended = folder.with_name("ended")
    shutil.copytree(folder, ended)
    assert differences(folder, resumed(ended)) == []  # the phase is still there
    single = folder / "checkpoint/round-000001.fedapps"
    single.unlink()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Rounds, "configure_train", Mock(side_effect=KeyboardInterrupt))
        resumed(folder, "num-rounds=4")
    assert not directory.has_finished(folder)
    resumed(folder, "num-rounds=4")
    assert differences(longer, folder) == []
    totals = [{k: v for k, v in json.loads((run / "summary.json").read_text()).items()
               if "total_" in k} for run in (longer, folder)]  # fmt: skip
    assert totals[0] == totals[1]
    with pytest.raises(RunError, match="num-rounds = 3: the run has done 4 rounds"):
        resumed(folder, "num-rounds=3")


@pytest.mark.parametrize("options", [
    'strategy="fedseq" fedseq.groups=2 fedseq.unfreeze-rounds="0,1" finetune-epochs=2',
    'unseen-clients="0.25" num-clients=8',
    "evaluate-every=0",
])  # fmt: skip
def test_a_run_that_is_cut_to_its_rounds_has_their_end(options, serial_run, monkeypatch, capsys):
    """One that was to have more, and one that was longer and lost its end; nothing is lost."""
    shorter, phase = serial_run(options, "num-rounds=2"), "evaluate-every" not in options
    lost = shutil.copytree(shorter, shorter.with_name("lost"))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Rounds, "configure_train", Mock(side_effect=KeyboardInterrupt))
        resumed(lost, "num-rounds=4")
    monkeypatch.setattr(checkpoint, "KEPT", 100)
    interrupted = serial_run(options, "num-rounds=4")
    back_to(interrupted, 2)
    capsys.readouterr()
    for folder in (lost, interrupted):
        resumed(folder, "num-rounds=2")
        assert directory.has_finished(folder)
        assert differences(shorter, folder) == []
        resumed(folder, "num-rounds=2")  # now they are there
        repeated = capsys.readouterr().out.count("round 2 is repeated as the end of the run")
        assert repeated == (folder == interrupted or phase)  # without it, none has been lost
    if phase:  # without it, a longer run keeps the evaluation
        longer = serial_run(options, "num-rounds=4")
        assert differences(longer, resumed(lost, "num-rounds=4")) == []


def test_all_rounds_that_are_repeated_are_told(serial_run, monkeypatch, capsys):
    monkeypatch.setattr(checkpoint, "KEPT", 100)
    options = "checkpoint-every=2 evaluate-every=0 num-rounds={}"
    folder, shorter = (serial_run(options.format(rounds)) for rounds in (6, 4))
    back_to(folder, 4)
    capsys.readouterr()
    resumed(folder, "num-rounds=4")
    line = "num-rounds = 4: rounds 3 to 4 are repeated as the end of the run"
    assert line in capsys.readouterr().out.splitlines()
    assert differences(shorter, folder) == []


def test_a_round_that_was_no_end_is_none_without_the_checkpoint_before(interrupted):
    folder = interrupted("evaluate-every=0")
    (folder / "checkpoint/round-000001.fedapps").unlink()
    before = contents(folder)
    with pytest.raises(RunError, match="num-rounds = 2: round 2 was not the end of this run, and"):
        resumed(folder, "num-rounds=2")
    assert contents(folder) == before


def test_a_run_that_has_all_its_rounds_says_so(serial_run, capsys):
    folder = serial_run("num-rounds=2")
    before = (folder / "model.safetensors").read_bytes()
    capsys.readouterr()
    resumed(folder, "num-rounds=2")
    line = f"run directory: {folder}, has all its 2 rounds; a larger num-rounds extends it"
    assert capsys.readouterr().out.splitlines()[0] == line
    assert (folder / "model.safetensors").read_bytes() == before


def test_what_depends_on_the_number_of_rounds_is_said_of_the_new_one(serial_run, capsys):
    options = 'strategy="fedseq" fedseq.groups=2 fedseq.unfreeze-rounds="0,2" lr-schedule="cosine"'
    folder = serial_run(options, "num-rounds=2")
    assert "1 of 2 parts stay frozen all 2 rounds" in capsys.readouterr().out
    resumed(folder, "num-rounds=3")
    said = capsys.readouterr().out
    assert "round 2 depends on the number of rounds" in said and "stay frozen" not in said


@pytest.mark.parametrize(("schedule", "told"), [("constant", False), ("cosine", True)])
def test_a_schedule_of_the_server_alone_depends_on_the_number_of_rounds(
    schedule, told, serial_run, capsys
):
    """Its rates are in no client's plan."""
    folder = serial_run(f'strategy="centralized" lr-schedule="{schedule}" num-rounds=2')
    capsys.readouterr()
    resumed(folder, "num-rounds=3")
    assert ("round 2 depends on the number of rounds" in capsys.readouterr().out) == told


@pytest.mark.parametrize(
    ("options", "rounds", "enough", "too_many"),
    [  # of 3 parts of a body the last is unfrozen after 2T/3 rounds, a warm-up is over after T/2
        ('strategy="fedseq"', 3, 4, 5),
        ('strategy="pfedsim"', 4, 7, 8),
    ],
)
def test_a_schedule_does_not_go_back(options, rounds, enough, too_many, serial_run, monkeypatch):
    """A longer run is refused that would freeze what is trained, or share what is personal."""
    folder = serial_run(options, f"num-rounds={rounds} finetune-epochs=0")
    monkeypatch.setattr(Rounds, "run", lambda *arguments: None)  # what is asked is what begins
    with pytest.raises(RunError, match=f"num-rounds = {too_many}: .* other layers"):
        resumed(folder, f"num-rounds={too_many}")
    resumed(folder, f"num-rounds={enough}")


@pytest.mark.parametrize("strategy", [THOROUGH("pfedsim"), "fedap", "fedcmd"])
def test_a_warm_up_does_not_end_where_it_went_on(strategy, serial_run, monkeypatch):
    """It takes half of the rounds. What follows is prepared at its end, and not later."""
    monkeypatch.setattr(checkpoint, "KEPT", 100)
    options = f'strategy="{strategy}" model="lenet5" evaluate-every=0'
    options += " fedcmd.selection-fraction=0.5" if strategy == "fedcmd" else ""
    whole, longer = (serial_run(options, f"num-rounds={rounds}") for rounds in (4, 8))
    killed = shutil.copytree(longer, longer.with_name("killed"))
    back_to(killed, 2)
    with pytest.raises(RunError, match=r"num-rounds = 4: .* round 2 would be the last before"):
        resumed(killed, "num-rounds=4")
    back_to(whole, 2)
    other = differences(longer, resumed(whole, "num-rounds=8"))  # it may end later
    assert other == (["events.csv"] if strategy == "fedcmd" else [])  # a layer was chosen before


@pytest.mark.parametrize("resume", ["{tmp}/none", "{tmp}", "relative"])
def test_what_is_no_run(resume, tmp_path):
    resume = resume.format(tmp=tmp_path)
    with pytest.raises(RunError, match=f"{resume} is not a run directory"):
        config.parse([f'resume="{resume}"'])


def test_a_run_that_goes_on_has_checkpoints_and_keeps_them(serial_run, read_csv):
    """Or whoever reads the run would take the last old one for the run's end."""
    folder = serial_run("checkpoint-every=0")
    assert not (folder / "checkpoint").exists()
    with pytest.raises(RunError, match=r"it has finished, and has no checkpoint .* new run$"):
        resumed(folder, "num-rounds=3")
    folder = serial_run("num-rounds=2")
    with pytest.raises(RunError, match="checkpoint-every = 0: a resumed run must"):
        resumed(folder, "num-rounds=3 checkpoint-every=0")
    assert checkpoint.rounds(folder) == [1, 2]
    assert len(read_csv(folder, "rounds.csv")) == 2  # it is as it was


def test_a_run_without_a_checkpoint_is_not_offered_to_go_on(serial_run, monkeypatch, tmp_path):
    """It was stopped in its first round, say."""
    options, folder = ('run-name="early"', "num-rounds=2"), tmp_path / "runs" / "early"
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt, match="no results yet"):
        patch.setattr(Rounds, "configure_train", Mock(side_effect=KeyboardInterrupt))
        serial_run(*options)
    with pytest.raises(RunError, match=f"{folder} exists; .* or delete it, as it has no che"):
        serial_run(*options)
    with pytest.raises(RunError, match=r"no checkpoint of a finished round .*; begin it anew: del"):
        resumed(folder)
    shutil.rmtree(folder)
    assert serial_run(*options) == folder
    with pytest.raises(RunError, match=f'or go on with that run: resume="{folder}"$'):
        serial_run(*options)


# Broken files -------------------------------------------------------------------------------


def test_of_a_broken_checkpoint_the_one_before_is_taken(serial_run, tmp_path, capsys):
    """Which files are broken, `test_a_checkpoint_is_read_whole_or_not_at_all` says."""
    whole = serial_run('num-rounds=3 strategy="fedper"')
    folder = tmp_path / "copy"
    shutil.copytree(whole, folder)
    newest = folder / "checkpoint/round-000003.fedapps"
    newest.write_bytes(newest.read_bytes()[:-1])
    resumed(folder)
    assert "round-000003.fedapps is skipped" in capsys.readouterr().out
    assert differences(whole, folder) == []


def test_who_only_reads_a_run_deletes_nothing(serial_run, capsys):
    """It may be on: a checkpoint that cannot be read now may be one that is new."""
    folder = serial_run("num-rounds=2")
    (folder / "checkpoint/round-000002.fedapps").write_bytes(b"x")
    before = contents(folder)
    assert FinishedRun.open(folder).round == 1
    with held(folder), pytest.raises(RunError, match="is going on in another process"):
        resumed(folder)
    assert contents(folder) == before
    assert capsys.readouterr().out.count("is skipped") == 1  # the second one read nothing


@pytest.mark.parametrize(("files", "content", "line"), [
    ("checkpoint/*", b"x", "no checkpoint can be used"),
    ("rounds.csv", b"round\n", r"rounds\.csv has 6 bytes, but it had"),  # it lost lines
])  # fmt: skip
def test_without_a_checkpoint_that_is_whole_there_is_no_resuming(files, content, line, serial_run):
    folder = serial_run()
    for path in folder.glob(files):
        path.write_bytes(content)
    with pytest.raises(RunError, match=line):
        resumed(folder)


@settings(max_examples=200)
@given(st.binary(max_size=300), st.integers(0, 10**9))
def test_a_checkpoint_is_read_whole_or_not_at_all(noise, place):
    progress = Progress(
        round=3, seconds=1.5, tables={"rounds.csv": 7}, classes=[], versions={1: 2}, best=Best(),
        failures=FailureCounts(), source="", clients=3,
    )  # fmt: skip
    arrays = {"b": np.arange(3, dtype=np.float32), "a": np.float32(2)[None]}
    state = {"votes": np.eye(2, dtype=int), "known": np.array(True), "none": np.zeros((0, 3))}
    packed = Checkpoint(progress, arrays, state).pack()
    read = Checkpoint.unpack(packed)
    assert read.progress.round == 3
    assert read.progress.versions == {1: 2}
    for old, new in ((arrays, read.arrays), (state, read.state)):
        assert list(old) == list(new)  # the order, too
        for key in old:
            assert new[key].dtype == old[key].dtype
            np.testing.assert_array_equal(old[key], new[key])
            assert new[key].flags.writeable
    broken = bytearray(packed)
    broken[place % len(packed)] ^= 0xFF
    for content in (noise, bytes(broken), packed[: place % len(packed)], packed + b"x"):
        with pytest.raises(ValueError, match="truncated or was altered"):
            Checkpoint.unpack(content)


@pytest.mark.parametrize(("value", "kind"), [
    ([1, 2], "a list"), ({"b": np.zeros(2)}, "a dict"), (None, "None"), (3, "an int"),
    (np.array(["a"]), "of dtype <U1, which no checkpoint holds"),
    (np.zeros(2, complex), "of dtype complex128, which no checkpoint holds"),
])  # fmt: skip
def test_a_state_that_would_come_back_as_something_else_is_named(value, kind):
    """A list, for example, comes back as an array, to which `+` does not append."""
    progress = Progress(
        round=1, seconds=0, tables={}, classes=[], versions={}, best=Best(),
        failures=FailureCounts(), source="", clients=3,
    )  # fmt: skip
    line = rf'^self\.state\["seen"\] is {kind}: must be a NumPy array of numbers, such as np'
    with pytest.raises(RunError, match=line):
        Checkpoint(progress, {}, {"one": np.ones(1), "seen": value}).pack()


def test_a_power_cut_takes_nothing_that_a_resumed_run_needs(serial_run, monkeypatch):
    """Each of these files was flushed to disk after it was written."""
    sync, on_disk = os.fsync, set()

    def record(handle):
        sync(handle)
        about = os.fstat(handle)
        on_disk.add((about.st_ino, about.st_mtime_ns))

    monkeypatch.setattr(os, "fsync", record)
    folder = serial_run('strategy="fedper" dp.mode="local" num-rounds=2')
    needed = [folder / "run.json", folder / SPENT]
    needed += [*folder.glob("checkpoint/*"), *folder.glob("clients/*/*")]
    assert len(needed) > 2 + 2
    about = {path: path.stat() for path in needed}
    assert [p for p in needed if (about[p].st_ino, about[p].st_mtime_ns) not in on_disk] == []


def test_client_states_do_not_wait_for_the_disk_if_no_run_can_be_resumed(serial_run, monkeypatch):
    sync, flushed = os.fsync, []

    def note(handle):
        sync(handle)
        flushed.append(Path(os.readlink(f"/proc/self/fd/{handle}")))

    monkeypatch.setattr(os, "fsync", note)
    folder = serial_run('strategy="fedper" num-rounds=2 checkpoint-every=0')
    assert flushed and [*folder.glob("clients/*/*.safetensors")]
    assert not [path for path in flushed if folder / "clients" in path.parents]


# What clients keep --------------------------------------------------------------------------


def test_the_older_checkpoint_finds_its_states(tmp_path):
    """Of all versions those stay that a run needs from either checkpoint on."""
    import torch

    for every in (1, 2, 5):
        store, rounds = ClientStore(tmp_path / str(every)), []
        for last in range(1, 30):
            if last % 3:
                rounds.append(last)
                stored = ClientStore(store.folder, needed_after(last, every))
                stored.save(last, {"x": torch.tensor(last)})
            there = [done for done in range(0, last) if done % every == 0][-2:]
            for done in there:
                wanted = max((r for r in rounds if r <= done), default=NONE)
                assert store.load_version(done + 1)[0] == wanted


def test_a_lost_state_is_told_once():
    """Also of a client that is only scored from then on, and so saves no other state."""
    versions = StateVersions({7: 4})
    told = [versions.see(round_, 7, {LOADED: found}) for round_, found in ((5, 2), (6, 2), (7, 1))]
    lost = "the state of round {} was expected, but that of round {} was found"
    assert told == [lost.format(4, 2), "", lost.format(2, 1)]


# Privacy, the best round, another look -------------------------------------------------------


def test_a_repeated_release_counts_again(interrupted):
    folder = interrupted('dp.mode="central" dp.noise-multiplier=5.0 dp.delta=1e-3')
    (folder / SPENT).write_text("3")  # killed in the third round
    resumed(folder)
    assert json.loads((folder / SPENT).read_text()) == 5  # 1, 2, 3, and again 3, 4
    (folder / SPENT).unlink()
    back_to(folder, 2)
    with pytest.raises(RunError, match="epsilon is unknown"):
        resumed(folder)


def test_an_altered_count_of_releases_is_refused(interrupted):
    folder = interrupted('strategy="fedper" dp.mode="local" dp.noise-multiplier=0.1 num-clients=4')
    assert len(json.loads((folder / SPENT).read_text())) == 4  # one for each client
    for altered in ("3", "[3, 3]", "[[3, 3, 3, 3]]", '["x", 3, 3, 3]', "[3, 3"):
        (folder / SPENT).write_text(altered)
        with pytest.raises(RunError) as refused:
            resumed(folder)
        assert str(refused.value).startswith(f"{folder / SPENT}: ")
        assert str(refused.value).endswith("; epsilon is unknown")


@pytest.mark.parametrize("links", [True, False])
def test_the_best_round_is_kept_with_its_personal_layers(serial_run, read_csv, monkeypatch, links):
    if not links:  # as on exFAT
        monkeypatch.setattr(
            os, "link", Mock(side_effect=PermissionError("Operation not permitted"))
        )
    options = 'strategy="fedper" num-rounds=4 fraction-train=1.0 num-clients=3 lr=0.3'
    chosen = 'validation-fraction=0.2 evaluate-on="validation" keep-best=true'
    folder = serial_run(options, chosen)
    scores = [float(row["accuracy_personalized"]) for row in read_csv(folder, "rounds.csv")]
    top = 1 + int(np.argmax(scores))
    shorter = serial_run(options, chosen, f"num-rounds={top}")
    for path in ("model.safetensors", f"clients/1/round-{top:06d}.safetensors"):
        kept, wanted = load_file(folder / directory.BEST / path), load_file(shorter / path)
        assert kept.keys() == wanted.keys()
        assert all(np.array_equal(kept[key], wanted[key]) for key in kept)


@pytest.mark.parametrize("strategy", ["fedcmd", "fedfomo"])
def test_the_best_round_is_scored_as_an_end(serial_run, read_csv, scored, capsys, strategy):
    """Chosen on validation samples, and only then scored on test samples."""
    scored(0.5, 0.9, 0.1, 0.2)
    options = f'strategy="{strategy}" num-clients=3 validation-fraction=0.2'
    chosen = serial_run(options, 'num-rounds=4 evaluate-on="validation" keep-best=true')
    ended = serial_run(options, "num-rounds=2")
    kept = chosen / directory.BEST
    told = "best round on validation samples is 2; to score it on test samples: fedapps evaluate"
    assert f"{told} {kept} -c evaluate-on=test" in " ".join(capsys.readouterr().out.split())
    assert kept.stat().st_mode & 0o77 == 0, "it tells of single clients"
    again.evaluate(kept, {})
    assert "evaluation 1 of round 2 on validation samples: " in capsys.readouterr().out
    table = again.evaluate(kept, {"evaluate-on": "test"})
    told = capsys.readouterr().out
    assert "evaluation 2 of round 2 on test samples with " in told and "was not kept" not in told
    there = [row for row in read_csv(ended, "clients.csv") if row["round"] == "2"]
    assert [*csv.DictReader(table.open())] == there
    line = "best: holds the best round of a run; resume the run itself"
    with pytest.raises(RunError, match=line):
        resumed(kept, "num-rounds=6")


def test_a_best_round_that_was_not_kept_is_not_told_to_be_there(serial_run, scored, capsys):
    scored(0.5, 0.4, 0.9, 0.2)
    folder = serial_run(f"num-rounds=2 keep-best=true {VALIDATION}")
    assert "the best round on validation samples is 1" in capsys.readouterr().out
    resumed(folder, "num-rounds=3 keep-best=false")
    assert "to score it on test samples" not in capsys.readouterr().out
    resumed(folder, "num-rounds=4 keep-best=false")
    assert FinishedRun.open(folder / directory.BEST).round == 1  # which was the best of two


def test_a_run_that_stopped_before_it_kept_its_best_round(serial_run, scored, monkeypatch):
    scored(0.5, 0.9, 0.1)
    options, keep = f"num-rounds={{}} keep-best=true {VALIDATION}", best.keep
    wanted = load_file(serial_run(options.format(2)) / "best/model.safetensors")

    def full(run, found):
        if found.progress.round == 2:
            raise RunError("the disk is full")
        keep(run, found)

    with monkeypatch.context() as patch:
        patch.setattr(best, "keep", full)
        with pytest.raises(RunError, match="the disk is full"):
            serial_run(options.format(3), 'run-name="stopped"')
    folder = serial_run(options.format(3), 'resume="latest"')
    assert folder.name == "stopped"
    kept = load_file(folder / "best/model.safetensors")
    assert all(np.array_equal(kept[key], wanted[key]) for key in wanted)


def test_patience_ends_a_run_which_only_more_of_it_extends(serial_run, scored, capsys):
    """A kill between its last checkpoint and its summary leaves it so, too."""
    scored(0.5, 0.6, 0.6, 0.2, 0.9, 0.3)  # the best is the second
    options = f"num-rounds=6 patience={{}} {VALIDATION}"
    ended, longer = serial_run(options.format(2)), serial_run(options.format(3))
    assert json.loads((ended / "summary.json").read_text())["round"] == 4
    killed = shutil.copytree(ended, ended.with_name("killed"))
    (killed / "summary.json").unlink()
    capsys.readouterr()
    resumed(killed)
    assert differences(ended, killed) == []
    assert capsys.readouterr().out.splitlines()[0] == (
        f"run directory: {killed}, was ended by patience = 2 after round 4 of 6; "
        "a larger patience extends it"
    )
    resumed(ended, "patience=3")
    assert differences(longer, ended) == []


def test_a_longer_run_does_not_choose_a_round_that_it_does_not_evaluate(
    serial_run, scored, capsys, monkeypatch
):
    """Of five rounds, the fifth is evaluated as the last only, and would be the best."""
    scored(None, 0.5, None, 0.6, 0.9, 0.4, None, 0.3, None, 0.2)
    options = f"num-rounds={{}} evaluate-every=2 patience=2 keep-best=true {VALIDATION}"
    longer, folder = serial_run(options.format(10)), serial_run(options.format(5))
    assert checkpoint.load(folder).progress.best == Best(0.9, 5, diverged=0)
    assert checkpoint.load(folder / directory.BEST).progress.round == 5
    capsys.readouterr()
    resumed(folder, "num-rounds=5")
    assert checkpoint.load(folder).progress.best == Best(0.9, 5, diverged=0)
    kept = {path: path.read_bytes() for path in (folder / "best").rglob("*") if path.is_file()}
    with monkeypatch.context() as patch, pytest.raises(RunError, match="beyond its budget"):
        patch.setattr(Federation, "check", Mock(side_effect=RunError("beyond its budget")))
        resumed(folder, "num-rounds=10")
    assert {path: path.read_bytes() for path in kept if path.exists()} == kept
    capsys.readouterr()
    resumed(folder, "num-rounds=10")
    assert "round 4 is the best so far, but was not kept" in capsys.readouterr().out
    found = [checkpoint.load(run).progress for run in (longer, folder)]
    assert found[0].round == found[1].round == 8
    assert found[0].best == found[1].best == Best(0.6, 4, 2, diverged=0)
    assert not (folder / directory.BEST).exists()


def test_rounds_in_which_nobody_personalizes_choose_nothing(serial_run, read_csv, scored):
    scored(None, 0.5, 0.1, 0.6, 0.9, 0.7)
    options = 'num-rounds=6 patience=1 keep-best=true evaluate-every=2 evaluate-rounds="3,5"'
    folder = serial_run(options, VALIDATION)
    rounds = [row["round"] for row in read_csv(folder, "rounds.csv") if row["accuracy_initial"]]
    assert rounds == ["2", "3", "4", "5", "6"]  # the third did not end it
    assert checkpoint.load(folder).progress.best == Best(0.7, 6, 0, diverged=0)


def test_a_score_that_is_not_finite_is_no_best_and_costs_no_checkpoint(serial_run, scored):
    """JSON, in which a checkpoint keeps the best score, has no number for it."""
    scored(math.inf, math.nan, 0.5, -math.inf, math.inf, math.nan)
    folder = serial_run(f"num-rounds=6 keep-best=true {VALIDATION}")
    best = checkpoint.load(folder).progress.best
    assert (best.round, best.score, best.since) == (3, 0.5, 3)


def test_of_errors_with_fewer_diverged_clients_the_first_of_the_least_is_the_best():
    so_far, metric = Best(), TASKS["regression"].lead
    for round_, (score, diverged, top, since) in enumerate((
        (2.0, 2, 1, 0), (1.0, 2, 2, 0), (3.0, 1, 3, 0), (0.5, 2, 3, 1), (3.0, 1, 3, 2),
        (math.nan, 0, 3, 3), (2.5, 1, 7, 0), (9.0, 0, 8, 0), (0.1, 1, 8, 1),
    ), 1):  # fmt: skip
        so_far = so_far.after(round_, score, metric, diverged)
        assert (so_far.round, so_far.since) == (top, since)


def test_a_best_score_of_an_earlier_version_is_followed_by_better_ones():
    """It has not counted who diverged, so the first better score decides."""
    so_far = msgspec.json.decode(b'{"score": 1.0, "round": 3}', type=Best)
    metric = TASKS["regression"].lead
    assert so_far.after(4, 2.0, metric, 1).round == 3
    now = so_far.after(4, 0.5, metric, 1)
    assert (now.round, now.after(5, 0.4, metric, 2).round) == (4, 4)


def test_a_best_round_that_was_not_kept_is_told(serial_run, scored, capsys):
    scored(0.5, 0.9, 0.1, 0.95, 0.2)
    folder = serial_run("num-rounds=3", VALIDATION)
    for rounds, told in ((4, True), (5, False)):  # round 4 is the best, and kept
        capsys.readouterr()
        resumed(folder, f"keep-best=true num-rounds={rounds}")
        assert ("round 2 is the best so far, but was not kept" in capsys.readouterr().out) == told
        assert (folder / directory.BEST / "model.safetensors").exists()


@pytest.mark.parametrize("key", ["keep-best=true", "patience=2"])
def test_test_samples_choose_nothing(key, serial_run):
    with pytest.raises(RunError, match="would choose by test samples"):
        serial_run(key)


@pytest.mark.parametrize("method", [THOROUGH("fedper"), "fedcmd", "ditto", THOROUGH("fedap")])
def test_another_look_at_a_run_is_its_own_evaluation(method, serial_run, read_csv):
    model = 'model="lenet5"' if method == "fedap" else ""
    folder = serial_run(f'strategy="{method}" num-rounds=3 {model}')
    table = read_csv(folder, again.evaluate(folder, {}).name)
    own = [line for line in read_csv(folder, "clients.csv") if line["round"] == "3"]
    assert table == own
    changes, settings = {"evaluate-clients": 2}, "evaluate-clients=2"
    if method != "ditto":  # which does not fine-tune
        changes = {"finetune-epochs": 3, "finetune-part": "head"}
        settings = 'finetune-epochs=3 finetune-part="head"'
    longer = read_csv(folder, again.evaluate(folder, changes).name)
    other = serial_run(f'strategy="{method}" num-rounds=3 {settings} {model}')
    assert longer == [line for line in read_csv(other, "clients.csv") if line["round"] == "3"]
    lines = read_csv(folder, directory.EVALUATIONS)
    assert [line["settings"] for line in lines] == ["", settings]
    with pytest.raises(RunError, match=r"lr = 0\.5 .*another training"):
        again.evaluate(folder, {"lr": 0.5})


@pytest.mark.parametrize("damage", ["missing", "truncated"])
def test_a_client_that_has_lost_its_state_is_not_scored_without_it(damage, serial_run, tmp_path):
    folder = tmp_path / "copied in part"
    shutil.copytree(serial_run('num-rounds=2 strategy="fedper" fraction-train=1.0'), folder)
    newest = folder / "clients/1/round-000002.safetensors"
    if damage == "missing":
        shutil.rmtree(newest.parent)
    else:
        newest.write_bytes(newest.read_bytes()[:-1])
    found = "none was" if damage == "missing" else "that of round 1 was"
    with pytest.raises(RunError, match=f"client 1: the state of round 2 was expected, but {found}"):
        again.evaluate(folder, {})
    assert not [*folder.glob("evaluation*")]
    run = FinishedRun.open(folder)
    run.client(0)
    with pytest.raises(RunError, match="client 1: the state of round 2 was expected"):
        run.client(1)


def test_two_evaluations_at_once_both_get_their_line(serial_run, read_csv, monkeypatch):
    """One has made the table and is about to write its line when the other comes."""
    folder, flock, waits = serial_run("num-rounds=1"), fcntl.flock, Event()
    with ThreadPoolExecutor(1) as other, (folder / directory.EVALUATIONS).open("w") as table:
        fcntl.flock(table, fcntl.LOCK_EX)
        # what it does before it waits for the table is done
        monkeypatch.setattr(fcntl, "flock", lambda *how: (waits.set(), flock(*how)))
        done = other.submit(again.evaluate, folder, {})
        until(lambda: waits.is_set() or done.done())
        assert (folder / "evaluation-1.csv").read_text()
        table.write("evaluation,settings\n7,mine\n")
        table.flush()
        fcntl.flock(table, fcntl.LOCK_UN)
        done.result(60)
    lines = read_csv(folder, directory.EVALUATIONS)
    assert [(line["evaluation"], line["settings"]) for line in lines] == [("7", "mine"), ("1", "")]


@pytest.mark.parametrize("name", ["evaluation-1.csv", directory.EVALUATIONS])
def test_an_evaluation_that_cannot_be_written_leaves_nothing(name, serial_run, monkeypatch):
    folder = serial_run("num-rounds=1")
    scored, score = [], FinishedRun.evaluate
    monkeypatch.setattr(FinishedRun, "evaluate", lambda *own: scored.append(own) or score(*own))
    before = {*folder.iterdir()}
    with refused(folder / name), pytest.raises(RunError, match=f"cannot write .*{name}: Permiss"):
        again.evaluate(folder, {})
    assert {*folder.iterdir()} == before
    # nobody is scored for a table that cannot be written
    assert bool(scored) == (name == directory.EVALUATIONS)


@contextmanager
def refused(path):
    """Let nobody open a file to write it, not even root."""
    on = [True]

    def hook(event, arguments):
        if on and event == "open" and arguments[0] == str(path) and arguments[2] & os.O_CREAT:
            raise PermissionError(errno.EACCES, "Permission denied")

    sys.addaudithook(hook)  # which stays
    yield
    on.clear()


def test_a_best_round_after_the_checkpoint_of_a_killed_run_is_not_kept(serial_run, scored, capsys):
    """It goes on with other evaluations, and so never chooses it."""
    scored(0.5, 0.6, 0.9, None, None, 0.3)
    folder = serial_run("num-rounds=3 checkpoint-every=2 keep-best=true", VALIDATION)
    (folder / "checkpoint/round-000003.fedapps").unlink()
    assert checkpoint.rounds(folder / directory.BEST) == [3]
    capsys.readouterr()
    resumed(folder, "num-rounds=6 evaluate-every=6")
    assert "round 2 is the best so far, but was not kept" in capsys.readouterr().out
    assert checkpoint.load(folder).progress.best.round == 2
    assert not (folder / directory.BEST).exists()
