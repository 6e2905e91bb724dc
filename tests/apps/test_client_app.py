"""The ClientApp: each client of a message does its work or fails alone, and says why."""

import json
import os
import re
import subprocess
import sys
from functools import partial
from unittest.mock import Mock

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from fedapps import client_app, server_app
from fedapps.core import config, registry
from fedapps.core.errors import MisfitError, RunError
from fedapps.engine.checks import check_plans
from fedapps.engine.store import ClientStore
from fedapps.method import aggregation
from fedapps.method.flower import BaseClient
from fedapps.method.update import ClientUpdate, Failure, replace
from fedapps.models.layers import take
from fedapps.training.plan import Plan
from fedapps.training.sketch import sketch as sketch_of
from fedapps.training.workspace import workspace
from fedapps.wire.hello import pack_greeting, unpack_hello
from fedapps.wire.questions import pack_question, unpack_answers
from fedapps.wire.replies import unpack_reply
from fedapps.wire.requests import Request, RoundInfo, pack_requests
from fedapps.wire.serial_grid import DeviceGrid, SerialGrid
from fedapps.wire.steps import pack_step, unpack_step
from tests.support import ROOT

EVERYBODY = "fraction-train=1.0 num-clients=4"


@pytest.fixture
def break_fit(monkeypatch):
    """Return break_fit(clients, act): act(client, plan, received, fit) replaces their fit."""
    train = BaseClient.train_round

    def apply(broken, act):
        def train_round(client, plan, received):
            fit = partial(train, client)
            if broken is not None and client.client not in broken:
                return fit(plan, received)
            return act(client, plan, received, fit)

        monkeypatch.setattr(BaseClient, "train_round", train_round)

    return apply


def no_luck(client, plan, received, fit):
    fit(plan, received)
    raise ValueError(f"no luck\nwith client {client.client}")


def diverge(client, plan, received, fit):
    update = fit(plan, received)
    next(iter(update.arrays.values()))[0] = np.nan
    return update


@pytest.mark.parametrize("nodes", [1, 3])
def test_one_fails_alone(serial_run, tiny_npz, break_fit, read_csv, read_rounds, read_model, nodes):
    done = {}

    def record_or_fail(client, plan, received, fit):
        if client.client in (1, 3):
            return no_luck(client, plan, received, fit)
        done[client.client] = fit(plan, received)
        return done[client.client]

    break_fit(None, record_or_fail)
    folder = serial_run(tiny_npz, EVERYBODY, 'strategy="fedavg" num-rounds=1', num_supernodes=nodes)
    assert [tuple(event.values()) for event in read_csv(folder, "events.csv")] == [
        ("1", "1", "failure", "ValueError: with client 1"),
        ("1", "3", "failure", "ValueError: with client 3"),
    ]
    (row,) = read_rounds(folder)
    assert (row["clients"], row["failures"]) == (4, 2)
    assert 2 * row["bytes_up"] == row["bytes_down"]  # the two that failed sent nothing
    first, second = (done[client] for client in (0, 2))
    n = first.num_examples, second.num_examples
    for key, array in read_model(folder).items():
        both = [update.arrays[key].astype(np.float64) for update in (first, second)]
        mean = (n[0] * both[0] + n[1] * both[1]) / sum(n)
        assert np.array_equal(array, mean.astype(np.float32))


@pytest.mark.parametrize("limit", [0, 1, 2, -1])
def test_a_round_survives_max_failures(serial_run, tiny_npz, break_fit, read_rounds, limit):
    break_fit({0, 2}, no_luck)
    options = [tiny_npz, EVERYBODY, f'strategy="fedavg" max-failures={limit}']
    if limit in (0, 1):
        with pytest.raises(RunError) as caught:
            serial_run(*options)
        text = f"round 1: 2 of 4 clients failed (max-failures = {limit}); "
        assert str(caught.value) == text + "client 0: ValueError: with client 0"
    else:
        assert [row["failures"] for row in read_rounds(serial_run(*options))] == [2, 2]


def test_a_failed_evaluation_is_one_row(serial_run, tiny_npz, monkeypatch, read_csv, read_rounds):
    evaluate = BaseClient.evaluate_round

    def evaluate_round(client, plan, received):
        if client.client == 2:
            raise KeyError("gone")
        return evaluate(client, plan, received)

    monkeypatch.setattr(BaseClient, "evaluate_round", evaluate_round)
    folder = serial_run(tiny_npz, EVERYBODY, 'strategy="fedavg" num-rounds=1')
    (event,) = read_csv(folder, "events.csv")
    assert (event["client"], event["detail"]) == ("2", "KeyError: 'gone'")
    clients = read_csv(folder, "clients.csv")
    assert [row["client"] for row in clients] == ["0", "1", "3"]
    mean = np.mean([float(row["accuracy_personalized"]) for row in clients])
    assert read_rounds(folder)[0]["accuracy_personalized"] == pytest.approx(mean, abs=1e-12)


@pytest.mark.parametrize("presum", ["true", "false"])
def test_who_diverges_fails_alone(serial_run, tiny_npz, break_fit, read_csv, read_model, presum):
    """Also with presum, where its NaN would otherwise be in the mean of the whole SuperNode."""
    options = [tiny_npz, EVERYBODY, f'strategy="fedper" num-rounds=1 presum={presum}']
    break_fit({0, 2}, no_luck)
    without = serial_run(*options)
    break_fit({0, 2}, diverge)
    folder = serial_run(*options)
    events = read_csv(folder, "events.csv")
    assert [event["client"] for event in events] == ["0", "2"]
    cause = "training diverged: conv1.conv.weight is not finite"
    assert {event["detail"] for event in events} == {cause}
    expected = read_model(without)
    assert all(np.array_equal(a, expected[key]) for key, a in read_model(folder).items())
    for run in (without, folder):  # a failure leaves no state of its round
        assert sorted(path.name for path in (run / "clients").iterdir()) == ["1", "3"]


def test_an_interrupt_is_no_failure_of_a_client(serial_run, tiny_npz, break_fit):
    break_fit({2}, Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        serial_run(tiny_npz, EVERYBODY, 'strategy="fedavg"')


def test_means_of_supernodes_are_the_mean(serial_run, tiny_npz, read_model, read_rounds):
    options = [tiny_npz, EVERYBODY, 'strategy="fedper"']
    plain = serial_run(*options, num_supernodes=2)
    summed = serial_run(*options, "presum=true", num_supernodes=2)
    for key, array in read_model(plain).items():
        np.testing.assert_allclose(read_model(summed)[key], array, rtol=1e-6, atol=1e-6)
    for before, after in zip(read_rounds(plain), read_rounds(summed), strict=True):
        for key in ("clients", "failures", "bytes_up", "bytes_down", "train_macs", "cost_paper"):
            assert after[key] == before[key]
        assert after["train_loss"] == pytest.approx(before["train_loss"], rel=1e-4)


def test_with_presum_one_client_of_a_supernode_carries_the_mean():
    updates = [
        ClientUpdate(4, {"w": np.array([1.0, 5.0], np.float32)}, 10, {"loss": 1}, 10.0),
        ClientUpdate(7, {"w": np.array([4.0, 8.0], np.float32)}, 20, {"loss": 2}, 20.0),
    ]
    first, second = aggregation.presummed(updates)
    told = (first.client, first.num_examples, first.metrics, first.weight)
    assert told == (4, 10, {"loss": 1}, 30)
    assert first.arrays["w"].tolist() == [3.0, 7.0]
    assert (second.client, second.num_examples, second.metrics) == (7, 20, {"loss": 2})
    assert (second.arrays, second.weight) == ({}, 0.0)
    assert aggregation.presummed([]) == []


def test_presum_is_refused_where_clients_upload_different_layers(flat_config, monkeypatch):
    """The mean of an array over its carriers would weigh what all clients of a SuperNode weigh."""

    def partly(strategy, round_, client):
        shared = strategy.layout.names if client % 2 else strategy.layout.body
        return strategy.exchange(round_, shared, strategy.stage(round_, strategy.layout.names))

    def check(presum):
        settings = config.read(flat_config(f'strategy="fedavg" num-clients=4 presum={presum}'))
        strategy = registry.strategy_class("fedavg")(workspace(settings))
        check_plans(strategy)

    check("true")
    monkeypatch.setattr(registry.strategy_class("fedavg"), "plan", partly)
    check("false")
    with pytest.raises(RunError) as caught:
        check("true")
    assert str(caught.value) == (
        "presum = true: in round 1 clients 0 and 1 upload different layers, and a SuperNode has "
        "one weight for all; use false"
    )


def test_no_supernode_averages_different_layers(serial_run, tiny_npz, read_csv, monkeypatch):
    """Plans that differ in a round that nobody checks at the start: no model is spoiled by them."""
    plan_of = registry.strategy_class("fedavg").plan

    def partly(strategy, round_, client):
        plan = plan_of(strategy, round_, client)
        return replace(plan, upload=strategy.layout.body) if (round_, client) == (2, 0) else plan

    monkeypatch.setattr(registry.strategy_class("fedavg"), "plan", partly)
    options = [tiny_npz, EVERYBODY, 'strategy="fedavg" num-rounds=3 evaluate-every=0']
    plain = serial_run(*options, "presum=false", num_supernodes=2)
    assert [row["failures"] for row in read_csv(plain, "rounds.csv")] == ["0", "0", "0"]
    folder = serial_run(*options, "presum=true", num_supernodes=2)
    failed = [row for row in read_csv(folder, "events.csv") if row["kind"] == "failure"]
    assert {row["round"] for row in failed} == {"2"}
    assert "0" in {row["client"] for row in failed}
    assert len(failed) < 4  # those of the other SuperNode count
    text = r"presum = true: clients 0 and \d upload different layers; use false"
    assert all(re.fullmatch(text, row["detail"]) for row in failed)


@pytest.fixture
def node(flat_config, tiny_npz, tmp_path):
    """Return node(strategy) -> (workspace, send): send(requests, ...) -> (updates, failures)."""

    def make(strategy):
        flat = flat_config(tiny_npz, f'strategy="{strategy}"')
        space = workspace(config.read(flat))
        (tmp_path / "run").mkdir(exist_ok=True)

        own = space.resident.fingerprint

        def send(requests, kind="train", fingerprint=own, flat=flat, sketch=""):
            info = RoundInfo(str(tmp_path / "run"), fingerprint, sketch=sketch)
            message = pack_requests(requests, info, 1, kind, "1")
            context = Context(1, 1, {}, RecordDict(), flat)
            return unpack_reply(requests, client_app.app(message, context), space.layout)

        return space, send

    return make


def make_request(space, client, download, upload, round_=1):
    plan = Plan(round=round_, download=download, stages=(), upload=upload)
    arrays = take(space.model, space.layout.shared(download))
    return Request(client, plan, arrays)


def test_a_client_without_work_returns_what_it_received(node):
    space, send = node("fedavg")
    layers = space.layout.names
    request = make_request(space, 2, layers, layers)
    (update,), failures = send([request])
    assert failures == []
    assert update.num_examples == len(space.population.share(2).train) == update.weight
    assert update.arrays.keys() == request.arrays.keys()
    for key, array in request.arrays.items():
        assert np.array_equal(update.arrays[key], array)


def test_a_server_with_another_type_of_processor_is_accepted(node, tiny_npz, flat_config, caplog):
    """Without vector instructions, PyTorch draws weights with other last digits."""
    space, send = node("fedbabu")
    code = (
        "import json, sys; from fedapps.training.workspace import Workspace as W\n"
        "from fedapps.core import config\n"
        "resident = W(config.read(json.loads(sys.argv[1]))).resident\n"
        "print(resident.sketch)"
    )
    flat = json.dumps(flat_config(tiny_npz, 'strategy="fedbabu"'))
    env = os.environ | {"ATEN_CPU_CAPABILITY": "default"}
    argv = [sys.executable, "-c", code, flat]
    sketch = subprocess.check_output(argv, cwd=ROOT, env=env, text=True).strip()
    other = "feedbeef"  # a processor without vector instructions has the same digest there
    body = space.layout.body
    requests = [make_request(space, client, body, body) for client in (0, 3)]
    for _ in range(2):
        updates, failures = send(requests, fingerprint=other, sketch=sketch)
        assert (len(updates), failures) == (2, [])
    told = [line for line in caplog.messages if "last digits of the initial model" in line]
    assert told == [
        f"last digits of the initial model are not the server's ({space.resident.fingerprint} here,"
        f" {other} there), as on another type of processor: so are those of the results"
    ]
    changed = {key: array.copy() for key, array in space.initial.items()}
    changed["fc1.fc.weight"][3, 5] += 0.01
    for wrong in (sketch_of(changed), "", "nan", sketch.replace(" ", " 9")):
        cause = (
            f"RuntimeError: the initial model here ({space.resident.fingerprint}) is not the"
            f" server's ({other}): use the same versions of torch and numpy on all machines"
        )
        refused = [Failure(client, cause) for client in (0, 3)]
        assert send(requests, fingerprint=other, sketch=wrong) == ([], refused)


@pytest.mark.parametrize("strategy", ["fedper", "fedbabu", "local"])
def test_a_client_refuses_to_upload_its_personal_layers(node, strategy):
    space, send = node(strategy)
    names = space.layout.names
    private = names if strategy == "local" else space.layout.head
    uploads = (names, space.layout.head, ())
    requests = [make_request(space, client, (), layers) for client, layers in enumerate(uploads)]
    updates, failures = send(requests)
    assert [(update.client, update.arrays) for update in updates] == [(2, {})]
    told = (", ".join(sorted(private)), "fc2")
    cause = "PermissionError: the plan uploads {}: personal layers never leave"
    assert failures == [Failure(client, cause.format(text)) for client, text in enumerate(told)]


def test_a_request_that_cannot_be_read_fails_all_its_clients(node):
    space, send = node("fedavg")
    layers = space.layout.names
    requests = [make_request(space, client, layers, layers) for client in (0, 1)]
    requests[1].arrays["fc2.fc.bias"][0] = np.inf
    updates, failures = send(requests)
    assert updates == []
    cause = "BadMessage: values in fc2.fc.bias are not finite"
    assert failures == [Failure(0, cause), Failure(1, cause)]


def test_a_download_that_lacks_an_array_fails_its_client_only(node):
    space, send = node("fedavg")
    layers = space.layout.names
    requests = [make_request(space, client, layers, layers) for client in (0, 1)]
    del requests[0].arrays["conv1.conv.bias"]
    updates, failures = send(requests)
    assert [update.client for update in updates] == [1]
    assert failures == [Failure(0, "KeyError: 'conv1.conv.bias'")]


def test_a_supernode_that_cannot_load_the_data_says_so_for_each_client(node, flat_config, tmp_path):
    space, send = node("fedavg")
    requests = [make_request(space, client, (), ()) for client in (0, 5)]
    flat = flat_config(f'dataset="{tmp_path}/gone.npz"')
    updates, failures = send(requests, flat=flat)
    assert updates == []
    cause = f"{tmp_path}/gone.npz: no such file"
    assert failures == [Failure(0, cause), Failure(5, cause)]


def test_training_sees_the_state_before_its_round_evaluation_after(node, tmp_path, monkeypatch):
    space, send = node("fedper")
    seen = []

    class Spy(registry.client_class("fedper")):
        def note(self):
            seen.append({key: float(value) for key, value in self.state.items()})
            self.state.clear()

        def evaluate_round(self, plan, received):
            self.note()
            return super().evaluate_round(plan, received)

        def train_round(self, plan, received):
            self.note()
            result = super().train_round(plan, received)
            self.state["mark"] = space.dataset.tensors(np.arange(1))[1].sum() + 10
            return result

    monkeypatch.setattr(registry, "client_class", lambda name: Spy)
    store = ClientStore(tmp_path / "run" / "clients" / "2")
    for round_ in (3, 4):
        store.save(round_, {"mark": space.dataset.tensors(np.arange(1))[1].sum() + round_})
    for kind in ("train", "evaluate"):
        _, failures = send([make_request(space, 2, (), (), round_=4)], kind)
        assert failures == []
    assert seen == [{"mark": 3.0}, {"mark": 10.0}]
    assert store.load_version(5)[1]["mark"] == 10
    assert store.load_version(4)[1]["mark"] == 3


def test_nothing_is_stored_for_clients_that_keep_nothing(serial_run, tiny_npz):
    folder = serial_run(tiny_npz, 'strategy="fedavg" num-rounds=1')
    assert not (folder / "clients").exists()


def test_a_supernode_says_hello(flat_config, tiny_npz):
    grid = SerialGrid(client_app.app, flat_config(tiny_npz), 3)
    space = workspace(config.read(flat_config(tiny_npz)))
    fleet = server_app.meet(server_app.node_registry(grid, space), space)
    assert (fleet.nodes, fleet.workers) == ([1, 2, 3], 1)


DEVICE_RUN = 'dataset="device" input-shape="1,8,8" num-classes=3 num-clients=2'


@pytest.mark.parametrize("empty", ["train", "test", ""])
def test_an_idle_supernode_says_itself_why(empty, flat_config, make_npz, tmp_path, capsys):
    """Whoever looks after a device sees its lines only, and the server none about its data."""
    node, expected, why = {}, 'it has no data, but the run has dataset = "device"', ""
    if empty:
        path = make_npz(tmp_path / "own.npz", **{empty: 0})
        node = {"client-id": 1, "data": str(path), "state-dir": str(tmp_path / "state")}
        why = f"{path}: {empty}_images has shape [0, 8, 8]; every side must be at least 1"
        why, expected = f"client 1: {why}\n", MisfitError("").told
    grid = DeviceGrid(client_app.app, flat_config(DEVICE_RUN), [node])
    ids = grid.push_messages([pack_greeting(1)])
    (reply,) = grid.pull_messages(ids)
    assert unpack_hello(reply).problem == expected
    assert capsys.readouterr().out == f"{why}left out: {expected}\n"


@pytest.mark.parametrize("kind", ["train", "evaluate", "query.ask", "query.step"])
def test_data_that_no_longer_fit_are_told_in_no_reply(kind, flat_config, tmp_path, capsys):
    """Whatever is asked, the device itself prints which value it is."""
    arrays = {"inputs": np.ones((20, 4)), "targets": np.arange(20) % 2}
    np.savez(path := tmp_path / "own.npz", **arrays)
    node = {"client-id": 1, "data": str(path), "state-dir": str(tmp_path / "state")}
    keys = 'dataset="device" input-shape="4" num-classes=2 num-clients=2 model="mlp"'
    flat = flat_config(keys, 'strategy="fedavg" secure-sum=true')
    grid = DeviceGrid(client_app.app, flat, [node])

    def send(message):
        (reply,) = grid.pull_messages(grid.push_messages([message]))
        return reply

    assert not unpack_hello(send(pack_greeting(1))).problem
    arrays["inputs"][7, 2] = 5.5e300
    np.savez(path, **arrays)
    space, info = workspace(config.read(flat)), RoundInfo(str(tmp_path), "", run_id="r")
    requests = [make_request(space, 1, (), ())]
    if kind == "query.ask":
        _, failures = unpack_answers([1], send(pack_question([1], 1, "samples", "")))
    elif kind == "query.step":
        _, failures = unpack_step([1], send(pack_step(info, 1, 1, "keys", {1: b""})))
    else:
        reply = send(pack_requests(requests, info, 1, kind, "1"))
        _, failures = unpack_reply(requests, reply, space.layout)
    assert failures == [Failure(1, MisfitError("").told)]
    assert f"{path}: inputs[7] holds 5.5e+300" in capsys.readouterr().out


@pytest.mark.parametrize("task", ["classification", "multilabel"])
def test_a_personalization_that_diverged_is_told(task, serial_run, tmp_path, read_csv, caplog):
    """Its model says class 0, or no label, which can even look better."""
    draws, size = np.random.default_rng(0), 120
    targets = draws.integers(2, size=size if task == "classification" else (size, 3))
    arrays = {"inputs": draws.normal(size=(size, 4)).astype(np.float32), "targets": targets}
    np.savez(tmp_path / "own.npz", groups=np.arange(size) % 4, **arrays)
    keys = f'''dataset="{tmp_path}/own.npz" partitioner="natural" model="mlp" num-rounds=1
        num-clients=0 strategy="fedavg" fraction-train=1.0'''
    events = read_csv(serial_run(keys, "finetune-lr=1e30"), "events.csv")
    assert [(row["client"], row["kind"]) for row in events] == [
        (str(c), "diverged") for c in range(4)
    ]
    (line,) = (line for line in caplog.messages if "diverged" in line)
    assert line.startswith("round 1: personalization diverged, client 0 (0), 1 (1), ")
    caplog.clear()
    assert not read_csv(serial_run(keys, "finetune-lr=0.1"), "events.csv")
    assert "diverged" not in caplog.text
