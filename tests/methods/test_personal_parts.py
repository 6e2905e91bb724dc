"""LG-FedAvg, FedPer and FedBN: what stays with a client, and who guards it."""

import msgspec
import pytest

from fedapps.core import registry
from fedapps.core.errors import RunError
from fedapps.method import replace
from fedapps.method.local import begin
from tests.support.methods import rehearsal_of


def test_lg_fedavg_after_a_warm_up(serial_run, fits, read_rounds):
    folder = serial_run('strategy="lgfedavg" lgfedavg.warmup-rounds=1 num-rounds=4')
    everything, last = 4 * 185_219, 4 * 1_539
    rows, seen = read_rounds(folder), set()
    for row in rows[1:]:
        clients = {f[0].client for f in fits if f[2].plan.round == row["round"]}
        fresh = clients - seen
        seen |= clients
        assert row["bytes_down"] == len(fresh) * everything + (3 - len(fresh)) * last
        assert row["bytes_up"] == 3 * last
    assert rows[0]["bytes_up"] == 3 * everything and rows[0]["phase"] == "train-warmup"
    missing = 6 - len(seen)  # evaluated with the warm-up's layers, which they lack
    assert rows[-1]["bytes_eval"] == missing * everything + (6 - missing) * last


def test_fedbn_is_fedavg_with_its_option(serial_run):
    option = serial_run('strategy="fedbn" model="lenet5"')
    general = serial_run('strategy="fedavg" model="lenet5" bn-local=true')
    assert (option / "clients.csv").read_bytes() == (general / "clients.csv").read_bytes()


@pytest.mark.parametrize("layer", ["fc2:rest", "fc2:norms"])
def test_a_client_guards_its_personal_layers(serial_run, monkeypatch, layer):
    plan = registry.strategy_class("fedper").plan

    def curious(self, round_, client):
        return msgspec.structs.replace(plan(self, round_, client), upload=(layer,))

    monkeypatch.setattr(registry.strategy_class("fedper"), "plan", curious)
    if layer == "fc2:rest":
        with pytest.raises(RunError, match=r"the plan uploads fc2.*personal layers"):
            serial_run('strategy="fedper"')
    else:
        serial_run('strategy="fedper"')


@pytest.mark.parametrize(("method", "keys"), [
    ("fedas", ""),
    ("fedbn", ""),
    ("fedper", ""),
    ("fedrep", ""),
    ("perfreezeclip", ""),
    ("fedproto", ""),
    ("fedseq", 'fedseq.base="fedper"'),
    ("pfedhn", "pfedhn.personal-head=true pfedhn.hidden-size=2"),
    ("fedcmd", "fedcmd.selection-fraction=0.34"),
    ("fedcmd", 'fedcmd.layer="fc1"'),
    ("lgfedavg", ""),
    ("lgfedavg", "lgfedavg.warmup-rounds=1"),
    ("fedap", "fedap.warmup=0.34"),
])  # fmt: skip
def test_what_has_stayed_on_a_client_is_not_uploaded(tiny_npz, method, keys):
    """Whatever plan a server sends: of the layers that training has left on the client."""
    base = f'{tiny_npz} model="lenet5" num-clients=2 fraction-train=1.0 num-rounds=3 local-epochs=2'
    run = rehearsal_of(method, f'{base} strategy="{method}" {keys}')
    run.rounds(2)
    plan, kept = run.strategy.plan(3, 0), run.make(0).kept()
    stayed = kept.keys() - {*run.layout.shared(plan.also_keep)}
    assert stayed
    for layer in run.layout.layers_of(stayed):
        with pytest.raises(PermissionError, match=f"the plan uploads {layer}"):
            run.train(0, replace(plan, upload=(layer,)))


@pytest.mark.parametrize("method", ["fedap", "pfedsim"])
def test_no_model_is_dropped_after_a_warm_up_of_no_round(method, tiny_npz):
    """After another one, no round of a later run begins with it: all layers are downloaded."""
    keys = f'{tiny_npz} model="lenet5" strategy="{method}" {method}.warmup=0.5'
    for rounds, dropped in ((1, ()), (2, ("model/",))):
        run = rehearsal_of(method, f"{keys} num-rounds={rounds}")
        assert run.make(0).of_one_run() == dropped
        assert bool(run.strategy.warmup) == bool(dropped)


@pytest.mark.parametrize(("method", "keys", "stays"), [
    ("lgfedavg", "", True), ("lgfedavg", "lgfedavg.warmup-rounds=1", False),
    ("fedap", "fedap.warmup=0.34", False), ("fedap", "fedap.warmup=0.0", True),
    ("fedap", "fedap.warmup=0.3", True),  # of 3 rounds, that is none
])  # fmt: skip
def test_a_devices_next_run_can_begin_with_rounds_of_fedavg(tiny_npz, method, keys, stays):
    """What an earlier run has left there is kept only if no round of the next one uploads it."""
    base = f'{tiny_npz} model="lenet5" num-clients=2 fraction-train=1.0 num-rounds=3 local-epochs=2'
    run, again = (rehearsal_of(method, f'{base} strategy="{method}" {keys}') for _ in range(2))
    run.rounds(3)
    client = run.make(0)
    begin(client)
    assert stays == any(name.startswith("model/") for name in client.state)
    again.clients = {0: client.state}
    again.rounds(3)
