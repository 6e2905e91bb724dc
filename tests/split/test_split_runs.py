"""Whole runs of split learning: bytes, costs, a lone sample, a late client, bad input."""

import gc
import json
import signal
import threading
import weakref
from threading import Event

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch import nn

from fedapps.core import config
from fedapps.core.errors import RunError
from fedapps.data.spec import Spec, image_spec
from fedapps.models import MODELS
from fedapps.models.blocks import of_images
from fedapps.split import connection
from fedapps.split import strategy as split_strategy
from fedapps.split.client import Link, SplitClient
from fedapps.split.session import Session
from fedapps.training.workspace import workspace
from tests.support.clock import PATIENCE, until
from tests.support.devices import node_configs
from tests.support.split_float64 import SPLIT
from tests.support.split_rounds import RUN, let_time_pass


@pytest.mark.parametrize(("strategy", "together"), [
    ('strategy="fedfc" fedfc.cuts="2"', max),
    ('strategy="splitlearning" splitlearning.cut=2', sum),  # one client after another
    ('strategy="sflv2" sflv2.cut=2 sflv2.order="client"', sum),
    ('strategy="sflv2" sflv2.cut=2 sflv2.order="batch"', max),
])  # fmt: skip
def test_virtual_time_has_the_bytes_of_the_channel_and_the_work_of_the_server(
    strategy, together, serial_run, tiny_npz, read_rounds, workspace_of, fits, tmp_path
):
    """Weights, features, gradients and labels of each client; the server's MACs are the rest."""
    speeds = "macs = 1e6\ndown = 2e4\nup = 1e4"
    (tmp_path / "devices.toml").write_text(
        f'[[device]]\nname = "one"\n{speeds}\n[server]\nmacs = 1e7'
    )
    folder = serial_run(
        f"{tiny_npz} {strategy} num-clients=3 fraction-train=1.0 num-rounds=1 evaluate-every=0",
        f'devices="{tmp_path / "devices.toml"}"',
    )
    (row,), space = read_rounds(folder), workspace_of(folder)
    weights = 4 * sum(space.initial[k].size for k in space.layout.keys_of(space.layout.names[:2]))
    width = int(np.prod(space.trainer.profile.shapes[space.layout.names[2]]))
    work = {request.client: update.metrics["macs"] for _, _, request, update in fits}
    seconds = []
    for client, macs in work.items():
        samples = len(space.population.share(client).train)
        down, up = weights + samples * 4 * width, weights + samples * (4 * width + 8)
        seconds.append(down / 2e4 + macs / 1e6 + up / 1e4)
    server = (row["train_macs"] - sum(work.values())) / 1e7
    assert server > 0
    assert row["virtual_seconds"] == pytest.approx(together(seconds) + server, rel=1e-12)


def test_a_round_that_is_over_leaves_nothing_in_memory(serial_run, tiny_npz, monkeypatch):
    """Without Python's search for cycles; the channel holds the last round until the next begins.

    While it lasts, it holds the layers of no client but the last one that was done.
    """
    freed, held = [], []

    class Watched(Session):
        def __init__(self, rules):
            super().__init__(rules)
            freed.append(Event())
            weakref.finalize(self, freed[-1].set)

        def send(self, gradients):
            held.append(len(self.relayed))
            super().send(gradients)

    monkeypatch.setattr(split_strategy, "Session", Watched)
    base = f"{tiny_npz} num-clients=3 fraction-train=1.0 num-rounds=4 evaluate-every=0"
    gc.disable()
    try:
        serial_run(base, 'strategy="splitlearning"')
        assert len(freed) == 4
        assert all(event.wait(PATIENCE) for event in freed[:3])
    finally:
        gc.enable()
    assert max(held) <= 1


def test_a_batch_size_can_be_larger_than_all_data(serial_run, tiny_npz, untimed_rounds):
    runs = [serial_run(tiny_npz, RUN, f"batch-size={size}") for size in (120, 10**9)]
    assert untimed_rounds(runs[0]) == untimed_rounds(runs[1])


@pytest.mark.parametrize("devices", [False, True])
@pytest.mark.parametrize(("hook", "streams"), [("setup", 0), ("loss", 1)])
def test_ctrl_c_waits_for_no_client(
    hook, streams, devices, serial_run, make_npz, tmp_path, monkeypatch, capsys
):
    """They learn that the run has ended when they next need the channel, and end silently."""
    work, stopped, begun, waited = getattr(SplitClient, hook), Event(), [], []
    opened, connect = [], connection.Connection

    def wait(client, *args):
        begun.append(client.client)
        if begun[2:] == [client.client]:  # all have begun
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        waited.append(stopped.wait(PATIENCE))
        return work(client, *args)

    def note(*args):
        opened.append(args)
        return connect(*args)

    monkeypatch.setattr(SplitClient, hook, wait)
    monkeypatch.setattr(connection, "Connection", note)
    data = [make_npz(tmp_path / f"{client}.npz", seed=client) for client in range(3)]
    options = 'dataset="device" input-shape="1,8,8" num-classes=3'
    nodes = node_configs(data, tmp_path) if devices else ()
    with pytest.raises(KeyboardInterrupt, match="interrupted"):
        serial_run(RUN, options if devices else f'dataset="{data[0]}"', node_configs=nodes)
    told = {path: path.read_text() for path in tmp_path.rglob("log.txt")}
    assert len(told) == 1 and "run directory" in capsys.readouterr().out
    stopped.set()
    until(lambda: not [t for t in threading.enumerate() if t.name.startswith(("cli", "dev"))])
    assert capsys.readouterr() == ("", "")
    assert {path: path.read_text() for path in tmp_path.rglob("log.txt")} == told
    assert sorted(begun) == [0, 1, 2] and waited == [True] * 3
    assert len(opened) == streams


def test_no_warning_of_the_leak_that_only_score_last_measures(serial_run, tiny_npz, caplog):
    serial_run(f'{tiny_npz} strategy="splitlearning" num-clients=3 num-rounds=1')
    assert not [text for text in caplog.messages if "declares" in text]


def test_costs_are_those_of_training_the_whole_model(serial_run, tiny_npz, read_rounds):
    """Also of a lone sample: conv4 ends on a map of one pixel, and 45 over 44 leave one.

    For the server's BatchNorm it is skipped as in FedAvg. FedFC's server has one copy of its layers
    for all clients, so that it updates fewer parameters.
    """
    base = 'model="conv4" num-clients=2 partitioner="iid" fraction-train=1.0 num-rounds=1'
    more = "batch-size=44 finetune-epochs=0 evaluate-clients=1"
    names = ("fedavg", *SPLIT, 'sflv1" sflv1.sync="round')
    folders = [serial_run(tiny_npz, base, more, f'strategy="{name}"') for name in names]
    whole, *others = (read_rounds(folder)[0] for folder in folders)
    for name, split in zip(names[1:], others, strict=True):
        assert split["failures"] == whole["failures"] == 0, name
        assert split["train_macs"] == whole["train_macs"], name
        assert (split["cost_paper"] == whole["cost_paper"]) == (name != "fedfc"), name
        assert split["train_loss"] > 0, name
    (events,) = {(folder / "events.csv").read_text() for folder in folders}
    assert events.count("skipped") == 2


def test_where_nobody_can_train_nothing_changes(serial_run, tiny_npz, read_model, workspace_of):
    """Batches of one sample, and a BatchNorm that needs two."""
    options = 'strategy="fedfc" fedfc.cuts="2" model="conv4" batch-size=1 num-rounds=1'
    folder = serial_run(tiny_npz, options, "finetune-epochs=0")
    initial = workspace_of(folder).initial
    for key, value in read_model(folder).items():
        np.testing.assert_array_equal(value, initial[key], err_msg=key)


@pytest.mark.parametrize("name", [*SPLIT, 'sflv1" sflv1.sync="round'])
def test_a_round_without_clients_trains_and_costs_nothing(name, serial_run, tiny_npz, read_rounds):
    """Also the first round, and one after a round with clients."""
    folder = serial_run(
        f'{tiny_npz} strategy="{name}" num-clients=3 fraction-train=1.0 num-rounds=3 '
        "devices=lognormal dropout=0.7 seed=3 evaluate-every=0 finetune-epochs=0"
    )
    rows = read_rounds(folder)
    assert [row["clients"] for row in rows] == [0, 1, 0]
    for key in ("train_macs", "cost_paper", "bytes_down", "bytes_up"):
        assert [row[key] > 0 for row in rows] == [False, True, False], key
    times = [row["virtual_seconds"] for row in rows]
    assert times[0] == 0 < times[1] == times[2]


def test_a_client_that_is_lost_on_the_channel_is_not_averaged(
    serial_run, tiny_npz, monkeypatch, read_csv, read_rounds, clock, sessions
):
    """It replies in time, but says too late on the channel that it is done."""
    done = Link.done

    def late(self, layers):
        if self.client == 1:
            until(lambda: {0, 2} == sessions[-1]._done)
            let_time_pass(clock, sessions[-1], 0.75)
            until(lambda: sessions[-1].lost)
        done(self, layers)

    monkeypatch.setattr(Link, "done", late)
    folder = serial_run(
        f'{tiny_npz} strategy="sflv2" sflv2.order="batch" num-clients=3 fraction-train=1.0 '
        "num-rounds=1 step-timeout=0.75 evaluate-every=0"
    )
    (row,) = read_rounds(folder)
    assert (row["clients"], row["failures"]) == (3, 1)
    (event,) = read_csv(folder, "events.csv")
    assert event["client"] == "1"
    assert event["detail"] == "sent nothing in 0.75 s (step-timeout)"


@pytest.mark.parametrize(("bad", "says"), [
    ('strategy="fedfc" fedfc.cuts="1,2"', 'fedfc.cuts = "1,2": must be one number, one for'),
    ('strategy="fedfc" fedfc.cuts="4"', "fedfc.cuts = 4: must be from 1 to 3"),
    ('strategy="sflv1" sflv1.cut=9', "sflv1.cut = 9: must be from 1 to 3"),
    ('strategy="sflv2" bn-stats="local" model="lenet5"', 'needs bn-stats = "shared"'),
    ('strategy="fedfc" prox-mu=0.1', "does not support prox-mu"),
    (
        'strategy="fedfc" channel-nodes=2',
        "channel-nodes = 2: 2 SuperNodes must work at the same time, but 1 can",
    ),
    ('strategy="fedfc" channel-nodes=3', "'num-supernodes=3 client-resources-num-cpus=1 init"),
    ('strategy="fedfc" channel-address="nowhere"', 'channel-address = "nowhere"'),
    ('strategy="fedfc" fedfc.cuts="1,2,99"', "fedfc.cuts = 99: must be from 1 to 3"),
    ('strategy="fedfc" channel-address="127.0.0.1:99999"', "must be host:port"),
    ('strategy="fedfc" channel-address="0.0.0.0:0"', "needs channel-reach"),
    ('strategy="fedfc" channel-tls="here"', 'channel-tls = "here": must be absolute'),
    ('strategy="fedfc" channel-tls="/nowhere"', "has no server.crt"),
])  # fmt: skip
def test_bad_input_ends_the_run_in_one_line(serial_run, tiny_npz, bad, says):
    with pytest.raises(RunError) as caught:
        serial_run(tiny_npz, bad, "num-clients=3", num_supernodes=2)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_model_with_dropout_is_refused(serial_run, tiny_npz, monkeypatch):
    """Masks come from one generator of the process, which its threads would use at any time."""

    def build(shape, classes):
        model = MODELS["cnn"].build(image_spec(shape), Spec((classes,)))
        model.fc1.add_module("drop", nn.Dropout(0.3))
        return model

    monkeypatch.setitem(MODELS, "dropping", of_images(build))
    serial_run(tiny_npz, 'strategy="fedavg" model="dropping" num-clients=3')
    for name in SPLIT:
        with pytest.raises(RunError, match=r'model = "dropping": fc1 has dropout.*be repeated'):
            serial_run(tiny_npz, f'strategy="{name}" model="dropping" num-clients=3')


def test_a_clients_last_layers_are_scored_before_the_servers(serial_run, make_npz, tmp_path, fits):
    """By hand, on its own test images and for the leak on what it has no class of.

    The fine-tuning that follows changes the server's layers too, but not for these figures.
    """
    data = make_npz(tmp_path / "four.npz", classes=4)
    folder = serial_run(
        f'dataset="{data}" partitioner="classes" classes-per-client="0,1/2,3" num-clients=2 '
        'fraction-train=1.0 strategy="fedfc" fedfc.cuts="2" num-rounds=2 evaluate-every=0 lr=0.1 '
        "score-last=true local-epochs=3 finetune-epochs=5"
    )
    space = fits[-1][0].workspace
    server = {k: torch.from_numpy(v) for k, v in load_file(folder / "model.safetensors").items()}
    found, accuracies = [], []
    for client in (0, 1):
        states = [state for mine, state, *_ in fits if mine.client == client]
        own = {k.removeprefix("last/"): v for k, v in states[-1].items() if k.startswith("last/")}
        assert {key.partition(".")[0] for key in own} == {"conv1", "conv2"}
        images, labels = space.samples(1 - client, "test")
        assert not set(labels.tolist()) & {2 * client, 2 * client + 1}
        whole = workspace(config.read(dict(space.settings.flat))).model
        whole.load_state_dict(server | own)
        predicted = whole.eval()(images).argmax(1)
        mine, right = space.samples(client, "test")
        accuracies.append(float((whole(mine).argmax(1) == right).double().mean()))
        found.append(sum(int(p) in (2 * client, 2 * client + 1) for p in predicted) / len(images))
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["leak"] == pytest.approx(sum(found) / 2)
    assert summary["accuracy_last_local"] == pytest.approx(sum(accuracies) / 2)
