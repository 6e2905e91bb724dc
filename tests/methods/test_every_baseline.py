"""What holds for all baselines: bytes, state, clipping, BatchNorm settings, failures."""

import inspect
import re

import numpy as np
import pytest
import torch
from safetensors.numpy import load, save
from torch.utils.flop_counter import FlopCounterMode

from fedapps.core import config, registry
from fedapps.core.errors import RunError
from fedapps.engine.clocks import clock
from fedapps.method import rehearse, replace
from fedapps.method.flower import BaseStrategy
from fedapps.models.layers import put, run
from tests.support import ROOT
from tests.support.marks import THOROUGH
from tests.support.methods import each_method, needed, rehearsal_of
from tests.support.references import ALL, BODY, HEAD
from tests.support.split_float64 import SPLIT


@pytest.mark.parametrize("method", ["feddyn", "perfedavg", "fedcmd", "pfedsim", "fedfomo", "fedap"])
def test_all_clients_fail_is_one_line(serial_run, monkeypatch, method):
    def fail(*arguments, **options):
        raise ValueError("no luck")

    monkeypatch.setattr("fedapps.training.trainer.Trainer.train", fail)
    with pytest.raises(RunError, match=r"3 of 3 clients failed .all failed.*no luck"):
        serial_run(f'strategy="{method}" model="lenet5"')


@pytest.mark.parametrize(
    "option", ["bn-local=true", THOROUGH('bn-stats="local"'), 'bn-stats="batch"']
)
@pytest.mark.parametrize("method", ["ditto", "feddyn", "fedrod", "perfedavg", "fedfomo", "pfedsim"])
def test_batchnorm_settings_go_with_every_method(serial_run, read_rounds, method, option):
    options = f'strategy="{method}" model="lenet5" evaluate-every=0 {option}'
    rows = read_rounds(serial_run(options))
    assert [row["failures"] for row in rows] == [0, 0]


def test_clipping_reaches_every_training(serial_run, read_model, fits):
    for option in ('"centralized"', '"fedavg" server-data=0.5'):
        free, clipped = (
            read_model(serial_run(f"strategy={option} max-norm={limit}")) for limit in (0, 0.001)
        )
        assert not np.array_equal(free["fc2.fc.weight"], clipped["fc2.fc.weight"])
    fits.clear()
    serial_run('strategy="ditto" num-rounds=1')
    serial_run('strategy="ditto" num-rounds=1 max-norm=0.0001')
    (one, free, *_), (two, clipped, *_) = fits[0], fits[3]
    assert one.client == two.client
    assert not torch.equal(free["v/fc2.fc.weight"], clipped["v/fc2.fc.weight"])


@pytest.mark.parametrize(("method", "down", "up", "evaluation"), [
    ("lgfedavg", [HEAD] * 3, [HEAD] * 3, HEAD),
    ("fedrod", [ALL] * 3, [ALL] * 3, ALL),
    ("pfedsim", [ALL, ALL, BODY], [ALL] * 3, BODY),  # warm-up, newcomers, then the body
    ("feddyn", [ALL] * 3, [ALL] * 3, ALL),
    ("perfedavg", [ALL] * 3, [ALL] * 3, ALL),
    ("ditto", [ALL] * 3, [ALL] * 3, 0),
    ("local", [0] * 3, [0] * 3, 0),
    ("centralized", [0] * 3, [0] * 3, ALL),
    ("pfedhn", [ALL] * 3, [ALL] * 3, ALL),
    ("fedfomo", [0, ALL, ALL], [ALL, ALL + 1, ALL + 1], 0),  # and one affinity
])  # fmt: skip
def test_bytes(small, serial_run, read_rounds, method, down, up, evaluation):
    rows = read_rounds(serial_run(small, f'strategy="{method}" num-rounds=3'))
    assert [row["bytes_down"] for row in rows] == [2 * 4 * n for n in down]
    assert [row["bytes_up"] for row in rows] == [2 * 4 * n for n in up]
    assert rows[-1]["bytes_eval"] == 2 * 4 * evaluation


@pytest.mark.parametrize("method", [
    *("apfl", "ditto", "fedala", "fedap", "fedas", "fedcmd", "feddbe", "fedem", "fedfomo"),
    *("fedpac", "fedproto", "fedrod", "moon", "perfedavg", "pfedme", "scaffold"),
])  # fmt: skip
def test_train_macs_are_those_that_torch_counts(flat_config, tiny_npz, method):
    """Of all that clients compute in two rounds: what hooks do beside the steps costs, too."""
    options = f'strategy="{method}" model="lenet5" num-clients=2 fraction-train=1.0 num-rounds=2'
    keys = f'batch-size=32 perfedavg.mode="hf" {needed(method)}'  # two, the last smaller
    made = config.read(flat_config(tiny_npz, options, keys))
    original = registry.client_class(made.strategy)

    class Counted(original):
        def train_round(self, plan, received):
            first = original(self.workspace, self.client, dict(self.state))
            first.train_round(plan, received)  # runs the model also to count its layers, once
            self.workspace.trainer.__post_init__()  # it forgets the outputs of frozen layers
            with FlopCounterMode(display=False) as counter:
                update = super().train_round(plan, received)
            assert update.metrics["macs"] == counter.get_total_flops() / 2
            return update

    rehearse(registry.strategy_class(made.strategy), Counted, made).rounds(2)


@pytest.mark.parametrize("method", ["fedem", "knnper"])
def test_what_an_evaluation_computes_before_the_score_costs(flat_config, tiny_npz, method):
    """Of a client that never trained: M models on its samples, or the body on those it keeps."""
    keys = f'strategy="{method}" model="lenet5" num-clients=2 knnper.capacity=9'
    made = rehearsal_of(method, config.read(flat_config(tiny_npz, keys)))
    client = made.make(0)
    x, layers = client.train_data[0], made.layout.body if method == "knnper" else made.layout.names
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        run(client.model.eval(), x[:1], layers)
    times = 9 if method == "knnper" else 3 * len(x)
    assert made.evaluate(0)["finetune_macs"] == times * counter.get_total_flops() / 2


@pytest.mark.parametrize("method", each_method(leave_out=SPLIT))
def test_what_virtual_time_keeps_in_the_state_disturbs_no_method(tiny_npz, method):
    keys = f'num-clients=2 local-epochs=2 devices="lognormal" {needed(method)}'
    runs = [rehearsal_of(method, f'{tiny_npz} strategy="{method}" {keys}') for _ in range(2)]
    clock(runs[0].strategy)
    for made in runs:
        made.rounds(2)
    arrays, expected = (made.strategy.arrays for made in runs)
    assert all(np.array_equal(arrays[key], value) for key, value in expected.items())


@pytest.mark.parametrize("method", ["fedfomo", "pfedsim", "fedap", "pfedhn"])
def test_a_new_strategy_goes_on_from_server_state(serial_run, monkeypatch, method):
    """In every round a new object takes over from what a file holds: nothing changes."""
    base = f'strategy="{method}" num-rounds=3 evaluate-every=0 model="lenet5"'
    plain = serial_run(base)
    configure = BaseStrategy.configure_train

    def taken_over(self, server_round, arrays, config, grid):
        content = load(save(self.state))
        fresh = type(self)(self.workspace)
        fresh.event, fresh._callbacks = self.event, self._callbacks
        fresh.arrays.update(self.arrays)
        fresh.state.update(content)
        assert fresh.state.keys() == self.state.keys()
        for key, value in content.items():
            assert value.dtype == self.state[key].dtype and value.shape == self.state[key].shape
        self.__dict__ = fresh.__dict__
        return configure(self, server_round, arrays, config, grid)

    monkeypatch.setattr(BaseStrategy, "configure_train", taken_over)
    again = serial_run(base)
    for name in ("clients.csv", "model.safetensors"):
        assert (plain / name).read_bytes() == (again / name).read_bytes()


def test_last_local_is_the_model_after_training(serial_run, read_csv, fits, read_rounds):
    folder = serial_run('strategy="fedavg" score-last=true num-rounds=2')
    space = fits[0][0].workspace
    last = {client.client: update.arrays for client, _, _, update in fits}
    rows = [row for row in read_csv(folder, "clients.csv") if row["round"] == "2"]
    for row in rows:
        client = int(row["client"])
        if client not in last:
            assert row["accuracy_last_local"] == row["accuracy_initial"]
            continue
        put(space.model, last[client])
        x, y = space.samples(client, "test")
        with torch.no_grad():
            right = (space.model.eval()(x).argmax(1) == y).double().mean()
        assert float(row["accuracy_last_local"]) == pytest.approx(float(right))
    mean = np.mean([float(row["accuracy_last_local"]) for row in rows])
    assert read_rounds(folder)[-1]["accuracy_last_local"] == pytest.approx(mean)
    assert read_rounds(serial_run('strategy="fedavg"'))[-1]["accuracy_last_local"] is None


def test_scoring_the_last_local_model_changes_no_other_figure(serial_run, read_csv):
    """Above all not fine-tuning, which begins at the received model again."""
    base = 'strategy="fedavg" num-rounds=2 fraction-train=1.0 finetune-epochs=2'
    plain, both = (
        read_csv(serial_run(base, f"score-last={on}"), "clients.csv") for on in ("false", "true")
    )
    for one, other in zip(plain, both, strict=True):
        assert one["accuracy_last_local"] == "" != other["accuracy_last_local"]
        assert one | {"accuracy_last_local": ""} == other | {"accuracy_last_local": ""}


def test_who_trains_nothing_in_a_round_has_no_new_last_local_model(tiny_npz):
    run = rehearsal_of("fedavg", f'{tiny_npz} strategy="fedavg" score-last=true')
    run.train(0, replace(run.strategy.plan(1, 0), stages=()))
    assert not run.clients[0]


@pytest.mark.parametrize("method", ["apfl", "fedala", "feddyn", "perfedavg", "pfedme", "scaffold"])
def test_weights_that_no_batch_uses_stay_as_they_were_made(tiny_npz, unused_branch, method):
    keys = f"num-clients=2 fraction-train=1.0 local-epochs=1 fedala.ala-layers=2 {needed(method)}"
    run = rehearsal_of(method, f'{tiny_npz} {unused_branch} strategy="{method}" {keys}')
    run.rounds(3)
    for key, value in run.strategy.workspace.initial.items():
        own = [kept[f"mine/{key}"] for kept in run.clients.values() if method == "apfl"]
        for now in (run.strategy.arrays[key], *own):
            stays = np.allclose(now, value, rtol=0, atol=1e-7)
            assert stays == key.startswith("1.unused"), key


SENT = {  # by method and prefix of what its plans send beside layers: the words for it
    "fedap": {"inputs": "mean and standard deviation of each input channel"},
    "fedas": {"fisher": "trace of the Fisher information"},
    "fedcmd": {"scores": "a score for each layer", "phi": "the personal layer"},
    "feddbe": {"z": "the mean of its features"},
    "fedem": {"c": "each shared model"},
    "fedfomo": {"affinity": "how much lower its validation loss is"},
    "fedpac": {"first": "how much the features vary", "own": "mean features and sample counts"},
    "fedproto": {"p": "the mean features of each class"},
    "scaffold": {"c": "its mean gradient"},
}


def test_the_page_says_what_clients_send_beside_layers():
    page = (ROOT / "docs" / "methods.md").read_text("utf-8")
    page = page.partition("## What the server sees")[2].partition("\n## ")[0]
    for method, words in SENT.items():
        assert f"| `{method}` |" in page, f"docs/methods.md, What the server sees: no {method}"
        row = re.search(rf"^\| `{method}` \| (.*) \|$", page, re.M).group(1)
        assert all(word in row for word in words.values()), method


@pytest.mark.parametrize("method", registry.names())
def test_what_clients_send_beside_layers_is_known(method, tiny_npz):
    """Of each method whose strategy sends such arrays, in any of three rounds."""
    cls = registry.strategy_class(method)
    if not re.search(r"sends=|both_ways", inspect.getsource(inspect.getmodule(cls))):
        assert method not in SENT
        return
    late = {"fedap": "fedap.warmup=0.5", "fedcmd": "fedcmd.selection-fraction=0.5"}
    more = f"{late.get(method, '')} validation-fraction=0.2 {needed(method)}"
    keys = f'{tiny_npz} strategy="{method}" num-clients=4 num-rounds=3 local-epochs=1 {more}'
    run, found = rehearse(cls, registry.client_class(method), keys), set()
    for round_ in (1, 2, 3):
        plans = [run.strategy.plan(round_, client) for client in run.strategy.clients]
        found |= {name.partition("/")[0] for plan in plans for name in plan.sends}
        run.rounds(1)
    assert found == SENT.get(method, {}).keys(), f"{method}: its words in SENT"
