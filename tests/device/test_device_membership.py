"""Devices that come, go, restart, and are not heard of."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from fedapps import client_app, server_app
from fedapps.core import registry
from fedapps.core.errors import RunError
from fedapps.engine import checkpoint
from fedapps.method.update import replace
from fedapps.wire import grid as grid_module
from fedapps.wire import nodes as nodes_module
from fedapps.wire.serial_grid import DeviceGrid
from tests.device.helpers import RUN, newest
from tests.support.clock import passing
from tests.support.marks import THOROUGH
from tests.support.methods import needed


class ChangingGrid(DeviceGrid):
    """Devices of which some are away: `present` gives the ids of nodes, round by round."""

    present: list

    def get_node_ids(self):
        return self.present[0]

    def push_messages(self, messages):
        messages = list(messages)
        if any(message.metadata.message_type == "train" for message in messages):
            self.present.pop(0)
        return super().push_messages(messages)


@pytest.fixture
def run_on(flat_config, no_plots, nodes):
    """Return run(kind, *run_config, **attributes) -> run directory, on such a grid of devices."""

    def run(kind, *run_config, **attributes):
        flat = flat_config(RUN, *run_config)
        grid = kind(client_app.app, flat, nodes)
        vars(grid).update(attributes)
        return server_app.run(grid, Context(1, 0, {}, RecordDict(), flat))

    return run


def test_devices_join_and_leave_between_rounds(read_csv, run_on):
    present = [[1, 2], [1, 2, 3], [3], [3, 1], []]
    folder = run_on(ChangingGrid, 'strategy="fedper" num-rounds=4', present=present)
    there = {}
    for row in read_csv(folder, "clients.csv"):
        there.setdefault(row["round"], []).append(row["client"])
    assert there == {"1": ["0", "1"], "2": ["0", "1", "2"], "3": ["2"], "4": ["0", "2"]}
    events = [tuple(event.values())[:3] for event in read_csv(folder, "events.csv")]
    assert events == [
        ("2", "2", "joined"), ("3", "0", "left"), ("3", "1", "left"), ("4", "0", "joined"),
    ]  # fmt: skip


def test_a_device_restarts_as_another_supernode(nodes, read_csv, capsys, run_on):
    nodes.append(dict(nodes[0]))
    present = [[1, 2, 3], [1, 2, 3, 4], [2, 3, 4], []]
    folder = run_on(ChangingGrid, 'strategy="fedper" num-rounds=3', present=present)
    assert [row["clients"] for row in read_csv(folder, "rounds.csv")] == ["3", "3", "3"]
    assert not [row for row in read_csv(folder, "events.csv") if row["kind"] == "failure"]
    line = "left out: SuperNode 4, client 0: client-id = 0 is also that of SuperNode 1; change one"
    assert capsys.readouterr().out.count(line) == 1


def test_another_device_takes_the_client_id_of_one_that_is_gone(nodes, tmp_path, read_csv, run_on):
    """It brings data and a state folder of its own, so the state of the one before is lost."""
    nodes.append({**nodes[1], "client-id": 0, "state-dir": str(tmp_path / "another")})
    present = [[1, 2, 3], [1, 2, 3, 4], [2, 3, 4], []]
    folder = run_on(ChangingGrid, 'strategy="fedper" num-rounds=3', present=present)
    samples = {row["round"]: row["num_train"] for row in read_csv(folder, "clients.csv")[::3]}
    shares = [np.load(node["data"])["train_labels"].size for node in nodes[:2]]
    assert samples == {"1": str(shares[0]), "2": str(shares[0]), "3": str(shares[1])}
    (lost,) = [row for row in read_csv(folder, "events.csv") if row["kind"] == "state-lost"]
    assert (lost["round"], lost["client"]) == ("3", "0")


GROWING = ["feddyn", "fedfomo", "pfedsim", "fedcmd", "fedfc"]  # whose states are unlike
OTHERS = [*map(THOROUGH, ("fedavg", "fedper", "lgfedavg", "fedap"))]


@pytest.mark.parametrize("strategy", [*GROWING, *OTHERS])
def test_a_resumed_run_has_more_devices(strategy, device_run, nodes, read_csv):
    method = f'strategy="{strategy}" {needed(strategy)} evaluate-every=0'
    folder = device_run(f"{method} num-clients=2", nodes=nodes[:2])
    more = f'{method} num-clients=3 num-rounds=3 resume="{folder}"'
    assert device_run(more) == folder
    rows = read_csv(folder, "rounds.csv")
    assert [(row["clients"], row["failures"]) for row in rows] == [("2", "0")] * 2 + [("3", "0")]
    state, arrays = checkpoint.load(folder).state, checkpoint.load(folder).arrays
    made = registry.strategy_class(strategy)
    rows = (*made.by_client, *made.by_pair)
    assert {name for name in state if name.startswith(rows)} == {
        name for name, value in state.items() if value.shape[:1] == (3,) and name[:5] != "hbar/"
    }
    if strategy == "feddyn":  # w = mean theta_i - hbar / alpha with all three in the last round
        shared = [newest(Path(node["state-dir"])) for node in nodes]
        for key in (key for key in arrays if f"hbar/{key}" in state):
            mean = np.mean([kept[f"g/{key}"] for kept in shared], axis=0)
            np.testing.assert_allclose(state[f"hbar/{key}"], mean, atol=1e-6)


def test_a_run_with_more_devices_says_that_others_are_scored(device_run, nodes, read_csv, capsys):
    folder = device_run("evaluate-clients=1 num-clients=2 num-rounds=1", nodes=nodes[:2])
    told = "evaluate-clients = 1: drawn anew among 3 clients, so from round 2 on"
    assert told not in capsys.readouterr().out
    device_run(f'evaluate-clients=1 num-clients=3 num-rounds=2 resume="{folder}"')
    assert told in capsys.readouterr().out
    assert len(read_csv(folder, "clients.csv")) == 2


def test_a_new_device_has_the_default_cut_if_each_has_one_of_its_own(device_run, nodes, fits):
    method = 'strategy="fedfc" fedfc.cuts="1,3" evaluate-every=0'
    folder = device_run(f"{method} num-clients=2 num-rounds=1", nodes=nodes[:2])
    device_run(f'{method} num-clients=3 num-rounds=2 resume="{folder}"')
    held = {(fit[2].plan.round, fit[2].client): len(fit[2].plan.upload) for fit in fits}
    assert held == {(1, 0): 1, (1, 1): 3, (2, 0): 1, (2, 1): 3, (2, 2): 2}


@pytest.mark.parametrize("more", ['dp.mode="local"', "num-clients=2", 'unseen-clients="0.4"'])
def test_what_does_not_grow(more, device_run, nodes, serial_run):
    first = more if "num-clients" not in more else ""
    folder = device_run(f"num-clients={3 if not first else 2} {first}", nodes=nodes[:2])
    other = more if "num-clients" in more else f"num-clients=3 {more}"
    with pytest.raises(RunError, match=r"other settings: num-clients = \d"):
        device_run(f'{other} num-rounds=3 resume="{folder}"')


def test_a_device_that_is_held_out_waits_for_the_end(device_run, serial_run, union, read_csv):
    """As in one data set: it never trains, has no state, and is scored after the last round."""
    method = 'strategy="fedper" unseen-clients="1" few-shot=2 num-rounds=2'
    mine, theirs = device_run(method), serial_run(union.options, method)
    for name in ("model.safetensors", "clients.csv", "unseen.csv"):
        assert (mine / name).read_bytes() == (theirs / name).read_bytes(), name
    assert [row["client"] for row in read_csv(mine, "unseen.csv")] == ["1"]


def test_a_device_that_is_held_out_and_not_there_in_the_end_is_named(capsys, run_on):
    keys = 'strategy="fedper" unseen-clients="1" num-rounds=2'
    folder = run_on(ChangingGrid, keys, present=[[1, 2, 3], [1, 3], []])
    assert not (folder / "unseen.csv").exists()
    assert "newcomers that are not there: client 1\n" in capsys.readouterr().out


def test_devices_that_do_not_train_are_not_enough_to_begin(run_on):
    keys = 'unseen-clients="0-1" round-timeout=0.01'
    with pytest.raises(RunError, match="0 of 1 SuperNodes"):
        run_on(ChangingGrid, keys, present=[[1, 2]])


class GrowingGrid(DeviceGrid):
    """Devices whose training data become others just before the first message of a kind."""

    grow: Callable
    when: tuple | None

    def push_messages(self, messages):
        messages = list(messages)
        if self.when in {(m.metadata.message_type, m.metadata.group_id) for m in messages}:
            self.when = None
            self.grow()
        return super().push_messages(messages)


@pytest.mark.parametrize("clients", [[1], [0, 1, 2]])
@pytest.mark.parametrize(("strategy", "when", "times"), [
    ("fedper", ("train", "2"), 2), ("fedper", ("evaluate", "2"), 1), ("fedfc", ("train", "2"), 2),
])  # fmt: skip
def test_devices_whose_data_grow_are_asked_anew_and_have_not_failed(
    strategy, when, times, clients, nodes, read_csv, tmp_path, run_on
):
    """Not even a run that no failure may pass ends, nor one in which all of them have grown."""
    sizes, parts = {}, [dict(np.load(node["data"])) for node in nodes]
    for client, (node, part) in enumerate(zip(nodes, parts, strict=True)):
        node["data"] = str(tmp_path / f"{client}.npz")
        np.savez(node["data"], **part)
        sizes[client] = [len(part["train_labels"])]
        sizes[client].append(sizes[client][0] * (1 + (client in clients)))

    def grow():
        for client in clients:
            new = {
                key: np.concatenate([value] * 2) if key.startswith("train_") else value
                for key, value in parts[client].items()
            }
            np.savez(nodes[client]["data"], **new)

    keys = f'strategy="{strategy}" num-rounds=4 max-failures=0'
    folder = run_on(GrowingGrid, keys, grow=grow, when=when)
    events = [[*row.values()] for row in read_csv(folder, "events.csv")]
    told = "its data have grown from {} to {} samples since it was last asked"
    assert [e for e in events if e[2] == "declined"] == [
        ["2", str(c), "declined", told.format(*sizes[c])] for _ in range(times) for c in clients
    ]
    assert not [e for e in events if e[2] == "failure"]
    rows = read_csv(folder, "clients.csv")
    found = {(int(row["round"]), int(row["client"])): int(row["num_train"]) for row in rows}
    assert found == {
        (round_, c): sizes[c][round_ > 2]
        for round_ in (1, 2, 3, 4) for c in sizes if round_ != 2 or c not in clients
    }  # fmt: skip


@pytest.mark.parametrize("claimed", [10**7, 10**12])
def test_who_only_claims_to_have_grown_weighs_as_much_as_it_says_when_it_is_asked(
    claimed, nodes, read_csv, monkeypatch, run_on
):
    """More than `max-samples` is a failure, as ever."""
    fit = client_app._fit

    def lie(space, request, store):
        update = yield from fit(space, request, store)
        lies = (request.client, request.plan.round) == (1, 1)
        return replace(update, num_examples=claimed) if lies else update

    monkeypatch.setattr(client_app, "_fit", lie)
    folder = run_on(DeviceGrid, 'strategy="fedper" num-rounds=2 max-samples=10000000')
    kinds = [row["kind"] for row in read_csv(folder, "events.csv") if row["client"] == "1"]
    assert kinds[0] == ("declined" if claimed == 10**7 else "failure")
    assert {row["num_train"] for row in read_csv(folder, "clients.csv")[1::3]} == {
        str(len(np.load(nodes[1]["data"])["train_labels"]))
    }


class DeafGrid(DeviceGrid):
    """Devices that never get a message of the given rounds, or (type, node)."""

    deaf: set

    def push_messages(self, messages):
        ids = super().push_messages(messages)
        self.messages = [m for m in self.messages if not self.is_lost(m.metadata)]
        return ids

    def is_lost(self, about):
        return {about.group_id, (about.message_type, about.dst_node_id)} & self.deaf


def test_a_lost_device_costs_its_client_only(read_csv, read_rounds, monkeypatch, run_on):
    passing(monkeypatch, grid_module, nodes_module)
    folder = run_on(DeafGrid, 'strategy="fedper" num-rounds=1', deaf={("train", 2)})
    (event,) = read_csv(folder, "events.csv")
    assert (event["client"], event["detail"]) == ("1", "no reply in time")
    assert read_rounds(folder)[0]["failures"] == 1


def test_empty_rounds_are_nothing(read_csv, read_model, monkeypatch, run_on):
    """One device may be all that a round asks; a failing one must not end the run."""
    folders = []
    passing(monkeypatch, grid_module, nodes_module)
    for deaf, rounds_ in (("2", 2), ("none", 1)):
        options = f'strategy="fedper" num-rounds={rounds_} client-state="reset"'
        folders.append(run_on(DeafGrid, options, f'run-name="r{rounds_}"', deaf={deaf}))
    two, one = folders
    assert [row["failures"] for row in read_csv(two, "rounds.csv")] == ["0", "3"]
    assert {e["detail"] for e in read_csv(two, "events.csv")} == {"no reply in time"}
    for key, value in read_model(one).items():
        np.testing.assert_array_equal(read_model(two)[key], value)


class SlowGrid(DeviceGrid):
    """The second of three devices takes longer for round 1 than round 2 does without it."""

    begun = 0  # the last round that has begun

    def push_messages(self, messages):
        messages = list(messages)
        for message in messages:
            if message.metadata.message_type == "train":
                self.begun = int(message.metadata.group_id)
        return super().push_messages(messages)

    def pull_messages(self, message_ids):
        slow = {m.metadata.message_id for m in self.messages if m.metadata.dst_node_id == 2}
        return super().pull_messages({*message_ids} - (slow if self.begun in (1, 2) else set()))


def test_a_device_that_is_too_slow_for_a_round_works_for_no_other_meanwhile(
    read_csv, monkeypatch, run_on
):
    """Round 3 begins without it, too: its answer comes only then."""
    passing(monkeypatch, grid_module, nodes_module)
    folder = run_on(SlowGrid, 'strategy="fedper" num-rounds=4 evaluate-every=0')
    rows = read_csv(folder, "rounds.csv")
    assert [(row["clients"], row["failures"]) for row in rows] == [
        ("3", "1"), ("2", "0"), ("2", "0"), ("3", "0"),
    ]  # fmt: skip
    events = [tuple(event.values())[:3] for event in read_csv(folder, "events.csv")]
    assert events == [
        ("1", "1", "failure"), ("1", "1", "left-out"), ("2", "1", "left"), ("4", "1", "joined"),
    ]  # fmt: skip
