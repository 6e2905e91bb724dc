"""Personal layers on a device: they stay there, and last from run to run."""

import os
import re
import stat
import subprocess
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from fedapps.core import config, registry
from fedapps.core.errors import RunError
from fedapps.device import personalized
from fedapps.device.device import Device, DeviceStore, StateRun, device_workspace
from fedapps.engine import checkpoint
from fedapps.engine.store import ClientStore
from fedapps.engine.versions import OTHER_DATA
from fedapps.report import directory
from fedapps.wire import exchange
from fedapps.wire.requests import RoundInfo
from tests.device.helpers import DEVICES, RUN, newest
from tests.support.fits import fail_fits, hooked
from tests.support.killed import differences


def test_personal_layers_survive_a_new_run_only_with_keep(device_run, nodes, fits, capsys):
    device_run('strategy="fedper"')
    before = newest(Path(nodes[1]["state-dir"]))
    assert before
    assert capsys.readouterr().out.count("keeps state; found none") == DEVICES
    starts = []

    def second(state):
        fits.clear()
        device_run(f'strategy="fedper" num-rounds=1 lr=1e-30 client-state="{state}"')
        starts.append({c.client: s for c, s, *_ in fits}[1])

    second("keep")  # with a rate of nothing what a round starts from is what it ends with
    for key, value in before.items():
        if key.startswith("model/"):
            np.testing.assert_array_equal(starts[0][key].numpy(), value)
    text = "keeps state; found the state of round 2 of an earlier run"
    assert capsys.readouterr().out.count(text) == DEVICES
    second("reset")
    initial = fits[0][0].workspace.initial
    for key in before:
        if key.startswith("model/"):
            expected = initial[key.removeprefix("model/")]
            np.testing.assert_array_equal(starts[1][key].numpy(), expected)
    assert capsys.readouterr().out.count("resets state; found the state of round 1") == DEVICES


def test_what_belongs_to_the_run_before_is_left_behind(device_run, nodes):
    """FedDyn's server begins with a mean of 0, and norms of another model's say little."""
    run = 'strategy="feddyn" clip-percentile=50 client-state="keep"'
    device_run(run)
    folder = Path(nodes[1]["state-dir"])
    before = newest(folder)
    assert any(value.any() for key, value in before.items() if key.startswith("g/"))
    device_run(run, "num-rounds=1 lr=1e-30")  # nothing moves, so g_i - alpha (theta - w) = 0
    after = newest(folder)
    assert not any(value.any() for key, value in after.items() if key.startswith("g/"))
    norms = [key for key in before if key.startswith("norms/")]
    assert norms
    for key in norms:  # two rounds of the same steps, then one
        assert 2 * len(after[key]) == len(before[key])


def test_clients_vote_again_for_a_personal_layer_in_a_new_run(device_run, nodes, read_csv):
    run = 'strategy="fedcmd" fedcmd.selection-fraction=0.5 fraction-train=1.0 client-state="keep"'
    device_run(run)
    assert any(key.startswith("model/") for key in newest(Path(nodes[1]["state-dir"])))
    events = read_csv(device_run(run), "events.csv")
    assert not [event for event in events if event["kind"] == "failure"]
    votes = [event["client"] for event in events if event["kind"] == "vote"]
    assert sorted(votes) == ["0", "1", "2"]


def test_devices_go_back_with_a_run_that_is_resumed(device_run, nodes, monkeypatch):
    """What they stored after the checkpoint goes; the run ends as one that was not killed."""
    monkeypatch.setattr(checkpoint, "KEPT", 100)
    options = 'strategy="fedper" num-rounds=4 client-state="reset" evaluate-every=0'
    whole = device_run(options, 'run-name="whole"')
    states = [newest(Path(node["state-dir"])) for node in nodes]
    killed = device_run(options, 'run-name="killed"')
    for round_ in (3, 4):
        (killed / f"checkpoint/round-{round_:06d}.fedapps").unlink()
    for node in nodes:  # what an earlier state must not come from
        for path in Path(node["state-dir"]).rglob("round-00000[34].safetensors"):
            path.write_bytes(b"of the rounds after the checkpoint")
    device_run(f'resume="{killed}" {options}')
    assert differences(whole, killed) == []
    for node, state in zip(nodes, states, strict=True):
        again = newest(Path(node["state-dir"]))
        assert again.keys() == state.keys()
        assert all(np.array_equal(again[key], state[key]) for key in state)


def test_a_device_whose_data_change_during_a_run_says_so(device_run, nodes, tmp_path, read_csv):
    options = 'strategy="fedper" client-state="reset" evaluate-every=0'
    folder, own = device_run(options), np.load(nodes[1]["data"])
    arrays = {key: own[key] for key in own}
    arrays["train_images"] = arrays["train_images"][::-1]
    nodes[1]["data"] = str(tmp_path / "new.npz")
    np.savez(nodes[1]["data"], **arrays)
    device_run(f'resume="{folder}" num-rounds=4')
    rows = [row for row in read_csv(folder, "events.csv") if row["kind"] == "data-changed"]
    assert [(row["round"], row["client"]) for row in rows] == [("3", "1")]
    rows = read_csv(device_run(options), "events.csv")
    assert not [row for row in rows if row["kind"] == "data-changed"]


def test_methods_and_models_in_one_folder_do_not_mix(device_run, nodes):
    device_run('strategy="fedper" num-rounds=1')
    state = Path(nodes[0]["state-dir"])
    before = newest(state)
    device_run('strategy="fedrep" num-rounds=1 client-state="reset"')
    device_run('strategy="fedper" num-rounds=1 model="mlp" client-state="reset"')
    folders = sorted(path.name.rpartition("-")[0] for path in state.glob("*/"))
    assert folders == ["fedper-cnn", "fedper-mlp", "fedrep-cnn"]
    (kept,) = state.glob("fedper-cnn-*")
    after = load_file(sorted(kept.glob("*.safetensors"))[-1])
    assert after.keys() == before.keys()
    for key, value in before.items():
        np.testing.assert_array_equal(after[key], value)


@pytest.mark.parametrize("method", ["fedper", "fedseq"])
def test_runs_with_other_personal_layers_have_states_of_their_own(method, flat_config, nodes):
    """Else a server could get a layer that an earlier run has promised to leave on the device."""
    options = (
        "", "bn-local=true", 'bn-stats="local"', "head-layers=2", 'fedper.personal-layers="fc2"',
        'input-shape="1,8,8" num-classes=4',
        "lr=0.5 seed=3 fedrep.head-epochs=3",  # these say nothing of layers
    )  # fmt: skip
    run = f'strategy="{method}" fedseq.base="fedper" model="lenet5"'
    folders = []
    for number, option in enumerate(options):
        settings = config.read(flat_config(RUN, run, option))
        device = Device.of(nodes[0])
        info = RoundInfo("/runs/x", "", run_id=str(number))
        folders.append(device.store(device_workspace(settings, device), info).folder)
    assert folders[-1] == folders[0] and len({*folders}) == len(options) - 1


def test_nobody_else_may_enter_the_state_folder(device_run, nodes):
    state = Path(nodes[0]["state-dir"])
    state.mkdir()
    state.chmod(0o755)  # whatever the umask is
    device_run('strategy="fedper" num-rounds=1')
    for folder in (state, *state.glob("*/")):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_two_devices_cannot_share_a_state_folder(device_run, nodes, read_csv):
    nodes[2]["state-dir"] = nodes[1]["state-dir"]
    events = read_csv(device_run('strategy="fedper" num-rounds=1'), "events.csv")
    failed = {event["client"] for event in events if event["kind"] == "failure"}
    assert failed in ({"1"}, {"2"})
    assert "every device needs one of its own" in events[0]["detail"]


@pytest.fixture
def began(flat_config, nodes):
    """Return began(run, ...) -> the second device's store, as a process of that run has it."""
    settings = config.read(flat_config(RUN, 'strategy="fedper"'))
    device = Device.of(nodes[1])
    space = device_workspace(settings, device)
    return lambda run, **info: device.store(space, RoundInfo("/runs/x", "", run_id=run, **info))


def marked(value):
    return {"w": torch.full((2,), float(value))}


AGAIN = {"resumed": [1]}


@pytest.mark.parametrize(("then", "how"), [("b", {}), ("a", AGAIN)], ids=["new", "resumed"])
def test_a_process_that_ends_after_its_run_leaves_the_next_ones_state_alone(began, then, how):
    """It trained for round 3 when its run ended; in the next one nothing has come so far."""
    late = began("a")
    late.save(1, marked(1))
    store = began(then, **how)
    store.save(2, marked(20))
    with pytest.raises(RunError) as caught:
        late.save(3, marked(3))
    assert began(then, **how).load_version(4)[1]["w"].tolist() == [20.0, 20.0]
    assert str(caught.value) == (
        f"{store.folder}: run {then}{' (resumption 1)' if how else ''} uses it now, so nothing "
        "more of run a is written; let one run at a time use the same method and model on a device"
    )
    began("c")
    assert began("c").load_version(1)[1]["w"].tolist() == [20.0, 20.0]


def test_a_message_from_before_a_resumption_does_not_take_the_state_back(began):
    began("a").save(1, marked(1))
    resumed = began("a", **AGAIN)
    resumed.save(2, marked(20))
    line = "from attempt 0 of the run, which has been resumed since then (attempt 1)"
    with pytest.raises(RunError, match=re.escape(line)):
        began("a")
    resumed.save(3, marked(30))
    assert began("a", **AGAIN).load_version(4)[1]["w"].tolist() == [30.0, 30.0]


def test_what_killed_processes_have_half_written_goes_when_a_run_begins(began, nodes):
    """Wherever it lies: models lie in the state folder itself, states in that of their method."""
    state, ended = Path(nodes[1]["state-dir"]), subprocess.Popen(["true"])
    ended.wait()
    others = began("a").folder.with_name("fedavg-cnn-00000000")
    others.mkdir()
    names = (".personalized.safetensors", ".initial-model-0.safetensors", ".run.json")
    left, going_on = (
        [folder / f"{name}.{pid}.tmp" for name in names for folder in (state, others)]
        for pid in (ended.pid, os.getppid())
    )
    for path in (*left, *going_on):
        path.write_text("half")
    began("b")
    assert [*filter(Path.exists, left)] == [] and all(path.exists() for path in going_on)


@pytest.mark.parametrize(("resumed", "left"), [
    ([5, 9], 5),  # of what it knows, rounds 6 and 7 were undone while it was away
    ([9, 5], 5), ([6], 6), ([9, 8], 7), ([0, 3], -1),
])  # fmt: skip
def test_a_device_that_was_away_goes_back_before_all_that_was_undone(began, resumed, left):
    for round_ in range(1, 8):
        began("a", needed=4).save(round_, marked(round_))
    store = began("a", resumed=resumed)
    assert store.load_version(10)[0] == left
    store.save(10, marked(10))
    assert began("a", resumed=resumed).load_version(11)[0] == 10
    assert began("a", resumed=[*resumed, 10]).load_version(11)[0] == 10


def test_a_process_that_ends_late_leaves_the_next_model_alone(device_run, nodes, monkeypatch):
    scored, save = [], DeviceStore.save_personalized

    def note(store, client):
        scored.append((store, client))
        save(store, client)

    monkeypatch.setattr(DeviceStore, "save_personalized", note)
    device_run('strategy="fedper" num-rounds=1')
    late = [(s, c) for s, c in scored if s.folder.parent == Path(nodes[1]["state-dir"])][-1]
    device_run('strategy="fedper" num-rounds=1 seed=1')
    model = Path(nodes[1]["state-dir"]) / personalized.FILE
    before = model.read_bytes()
    with pytest.raises(RunError, match="let one run at a time use the same method and model on"):
        save(*late)
    assert model.read_bytes() == before


def test_a_device_flushes_its_state_also_in_a_run_without_checkpoints(
    device_run, nodes, monkeypatch
):
    """The next run goes on from it."""
    sync, flushed = os.fsync, set()
    monkeypatch.setattr(os, "fsync", lambda handle: (sync(handle), flushed.add(os.fstat(handle))))
    device_run('strategy="fedper" num-rounds=1 checkpoint-every=0')
    states = [*Path(nodes[1]["state-dir"]).glob("*/round-*.safetensors")]
    assert states
    assert {path.stat().st_ino for path in states} <= {about.st_ino for about in flushed}


def test_a_power_cut_while_a_run_begins_loses_nothing(tmp_path):
    store = ClientStore(tmp_path)
    for round_ in (4, 5):
        store.save(round_, marked(round_))
    (tmp_path / "round-000004.safetensors").unlink()  # what `begin` does first
    assert store.begin(from_newest=True) == 5
    assert store.begin(from_newest=True) == 0  # again: the state before round 1 is what it was
    assert store.load_version(1)[1]["w"].tolist() == [5.0, 5.0]
    store.begin(from_newest=False)
    assert store.load_version(1)[1] == {}
    assert store.begin(from_newest=True) is None


def test_a_new_run_begins_from_the_newest_state_that_is_intact(tmp_path):
    store = ClientStore(tmp_path)
    for round_ in (4, 5):
        store.save(round_, marked(round_))
    newest = tmp_path / "round-000005.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1])
    assert store.begin(from_newest=True) == 4
    assert store.load_version(1)[1]["w"].tolist() == [4.0, 4.0]
    assert [path.name for path in tmp_path.iterdir()] == ["round-000000.safetensors"]


@pytest.mark.parametrize(
    ("strategy", "spoil"),
    [("fedper", "model/fc2.fc.weight"), ("ditto", "v/fc2.fc.weight"), ("fedper", "loss")],
)
def test_what_is_refused_is_not_kept(device_run, monkeypatch, tmp_path, read_csv, strategy, spoil):
    """Else one run with broken data would spoil all later ones of that device."""
    cls = registry.client_class(strategy)
    train_round = cls.train_round

    def diverge(self, plan, received):
        update = train_round(self, plan, received)
        if self.client == 1 and spoil in self.state:
            self.state[spoil] = self.state[spoil] * 1e9
        elif self.client == 1:
            update.metrics[spoil] = 1e30
        return update

    monkeypatch.setattr(cls, "train_round", diverge)
    events = read_csv(device_run(f'strategy="{strategy}" num-rounds=1'), "events.csv")
    failures = {e["client"]: e["detail"] for e in events if e["kind"] == "failure"}
    assert failures.keys() == {"1"}
    assert f"training diverged: {'a loss' if spoil == 'loss' else spoil} " in failures["1"]
    assert failures["1"].endswith("(max-value)")
    kept = {path.parts[-3] for path in tmp_path.glob("state-*/*/round-*.safetensors")}
    assert kept == {"state-0", "state-2"}


def test_a_device_writes_why_it_failed_beside_its_state(device_run, nodes, monkeypatch):
    """The server's words name the run directory; a device does not write where a server says."""

    def fail(client, own, *given):
        if client.client == 1:
            raise ValueError("no luck with this device")
        return own(*given)

    hooked(monkeypatch, "fedper", "train_round", fail)
    folder = device_run('strategy="fedper" num-rounds=1')
    text = (Path(nodes[1]["state-dir"]) / "log.txt").read_text("utf-8")
    assert "round 1, client 1, train\nTraceback" in text and "no luck with this device" in text
    assert "Traceback" not in (folder / "log.txt").read_text("utf-8")


def test_an_old_state_that_fails_training_is_named(device_run, tmp_path, read_csv, monkeypatch):
    """The advice comes before the path, which can be longer than what the server hears."""
    advice = 'client-state = "reset" drops the old state'

    def failures(*run_config):
        events = read_csv(device_run('strategy="fedper"', *run_config), "events.csv")
        mine = {e["detail"] for e in events if e["client"] == "1" and "diverged" in e["detail"]}
        assert mine
        return mine

    with monkeypatch.context() as patch:
        cls = registry.client_class("fedper")
        train_round = cls.train_round

        def diverge(self, plan, received):
            update = train_round(self, plan, received)
            update.metrics["loss"] = 1e30 if plan.round > 1 else 1.0
            return update

        patch.setattr(cls, "train_round", diverge)
        assert not any(advice in detail for detail in failures("num-rounds=2"))
    (state,) = tmp_path.glob("state-1/fedper-*/round-000001.safetensors")
    huge = {key: torch.from_numpy(value) * 1e30 for key, value in load_file(state).items()}
    ClientStore(state.parent).save(1, huge)
    (detail,) = failures("num-rounds=1")
    assert f"; {advice} that it began from, {state.parent}"[:100] in detail


@pytest.mark.parametrize(("keys", "failing", "told"), [
    ("evaluate-every=0", (3,), "4"),
    ("evaluate-every=1", (3, 4), "3"),  # by the evaluation
    ("evaluate-every=0 secure-sum=true", (), "3"),  # whose first message trains nothing
])  # fmt: skip
def test_changed_data_are_told_once_by_the_first_reply(
    keys, failing, told, device_run, nodes, make_npz, monkeypatch, read_csv, tmp_path
):
    options = f'strategy="fedper" client-state="reset" {keys}'
    folder = device_run(options)
    nodes[1]["data"] = str(make_npz(tmp_path / "new.npz", train=48, seed=99))
    fail_fits(monkeypatch, lambda round_, client: client == 1 and round_ in failing)
    device_run(f'resume="{folder}" num-rounds=4 {options}')
    rows = [row for row in read_csv(folder, "events.csv") if row["kind"] == "data-changed"]
    assert [(row["round"], row["client"]) for row in rows] == [(told, "1")]


def test_changed_data_are_told_although_a_reply_is_lost_or_the_run_killed(
    device_run, nodes, make_npz, monkeypatch, read_csv, tmp_path
):
    """The first reply that says so is lost; the second counts, and a kill takes its row along."""
    options = 'strategy="fedper" client-state="reset" evaluate-every=0 checkpoint-every=1'
    folder, unpack, lost = device_run(options), exchange.unpack_reply, []
    nodes[1]["data"] = str(make_npz(tmp_path / "new.npz", train=48, seed=99))

    def lossy(part, *reply):
        updates, failures = unpack(part, *reply)
        kept = [u for u in updates if lost or OTHER_DATA not in u.metrics]
        lost.extend(u.client for u in updates if u not in kept)
        return kept, failures

    def told():
        rows = [row for row in read_csv(folder, "events.csv") if row["kind"] == "data-changed"]
        return [(row["round"], row["client"]) for row in rows]

    monkeypatch.setattr(exchange, "unpack_reply", lossy)
    device_run(f'resume="{folder}" num-rounds=4 {options}')
    assert lost == [1] and told() == [("4", "1")]
    (folder / directory.CHECKPOINTS / "round-000004.fedapps").unlink()
    device_run(f'resume="{folder}" num-rounds=6 {options}')
    assert told() == [("4", "1")]


def test_whose_state_it_is_must_be_readable(tmp_path, monkeypatch):
    store = DeviceStore(tmp_path, run=StateRun("a", 0))
    assert store.state_run() is None
    (tmp_path / "run.json").write_text('{"run": "a"')
    refused = pytest.raises(
        RunError, match=rf"^{tmp_path}/run\.json: cannot be read \(.*; delete it$"
    )
    with refused:
        store.state_run()

    for name in ("stat", "read_bytes"):  # a folder of root, say
        monkeypatch.setattr(Path, name, Mock(side_effect=PermissionError(13, "Permission denied")))
    with refused:
        store.state_run()
