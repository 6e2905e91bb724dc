"""A device counts its own updates, and keeps to its own budget."""

import json
import re
import shutil
from pathlib import Path

import pytest

from fedapps import client_app
from fedapps.core import config, registry
from fedapps.core.errors import RunError
from fedapps.device import personalized, spending
from fedapps.device.device import Device
from fedapps.engine import checks, privacy_mode, summing
from fedapps.engine.accounting import alone, composed
from fedapps.engine.rounds import Rounds
from fedapps.method.update import replace
from fedapps.split import client as split_client
from fedapps.split import strategy as split_strategy
from fedapps.wire.questions import pack_question
from fedapps.wire.serial_grid import SerialGrid
from tests.device.helpers import RUN as DEVICES
from tests.device.helpers import left_out

DELTA = 1e-5
RUN = (
    'strategy="fedavg" model="lenet5" local-epochs=1 dp.mode="local" dp.clip-norm=0.01 '
    f"dp.secret-noise=true dp.delta={DELTA} evaluate-every=0"
)


def counts(nodes):
    paths = [Path(node["state-dir"]) / "privacy.json" for node in nodes]
    return [json.loads(path.read_text())["updates"] if path.exists() else {} for path in paths]


@pytest.mark.parametrize("mode", ["local", "central", "distributed"])
def test_updates_of_all_runs_are_counted_by_their_noise(device_run, nodes, mode):
    """In a central run of one round with Poisson sampling, only those that are asked count."""
    summed = str(mode == "distributed").lower()
    run = RUN, f'dp.mode="{mode}" dp.sampling="fixed" secure-sum={summed}'
    device_run(*run, "num-rounds=2")
    assert counts(nodes) == [{"1.0": 2}] * 3
    device_run(*run, "num-rounds=1 dp.noise-multiplier=4.0")
    assert counts(nodes) == [{"1.0": 2, "4.0": 1}] * 3
    device_run(*run, 'num-rounds=1 dp.mode="none"')
    # an update without noise says more than all others: a budget that is set later must know of it
    assert counts(nodes) == [{"1.0": 2, "4.0": 1, "0.0": 1}] * 3


@pytest.mark.parametrize(("mode", "counted"), [("local", {"1.0": 2}), ("none", {"0.0": 2})])
def test_a_state_folder_that_somebody_deletes_is_made_again(
    mode, counted, device_run, nodes, read_csv, monkeypatch
):
    """After the first of three rounds; what it held is lost, but the device goes on."""
    evaluated = Rounds.aggregate_evaluate

    def and_delete(rounds, round_, replies):
        evaluated(rounds, round_, replies)
        if round_ == 1:
            shutil.rmtree(nodes[0]["state-dir"])

    monkeypatch.setattr(Rounds, "aggregate_evaluate", and_delete)
    folder = device_run(RUN, f'dp.mode="{mode}" num-rounds=3 evaluate-every=1')
    assert {row["failures"] for row in read_csv(folder, "rounds.csv")} == {"0"}
    assert counts(nodes)[0] == counted
    assert Path(nodes[0]["state-dir"]).stat().st_mode & 0o777 == 0o700


def test_a_device_refuses_itself_beyond_its_budget(device_run, nodes, read_csv, capsys):
    """It has two updates left when the run begins, of three rounds."""
    nodes[1]["dp-budget"] = budget = alone(1.0).epsilon(3, DELTA) + 1e-6
    device_run(RUN, "num-rounds=1")
    folder = device_run(RUN, "num-rounds=3")
    assert counts(nodes) == [{"1.0": 4}, {"1.0": 3}, {"1.0": 4}]
    (failure,) = [row for row in read_csv(folder, "events.csv") if row["kind"] == "failure"]
    assert (failure["round"], failure["client"]) == ("3", "1")
    line = failure["detail"]
    pattern = (
        rf"dp-budget = {budget:g}: this device has spent an epsilon of (\S+), and one more round"
        r" would make it (\S+) \(delta 1e-05\)"
    )
    assert f"warning: round 3, client 1, train: {line}; its trace" in capsys.readouterr().out
    told = [float(number) for number in re.fullmatch(pattern, line).groups()]
    assert told == pytest.approx([alone(1.0).epsilon(n, DELTA) for n in (3, 4)], rel=5e-3)

    capsys.readouterr()
    folder = device_run(RUN, "num-rounds=1")
    (detail,) = left_out(read_csv, folder).values()
    assert detail == f"SuperNode 2, client 1: {line}"
    assert f"left out: {line}" in capsys.readouterr().out
    assert {row["client"] for row in read_csv(folder, "clients.csv")} == {"0", "2"}
    assert counts(nodes)[1] == {"1.0": 3}


@pytest.fixture
def unchecked(monkeypatch):
    """A server that has left out its own checks of plans, and whether a client has trained."""
    for module in (checks, privacy_mode):
        monkeypatch.setattr(module, "check_plan", lambda *_: None)
    monkeypatch.setattr(split_strategy, "check_settings", lambda *_: None)
    monkeypatch.setattr(summing, "_cannot", lambda *_: "")
    seen = []
    for module, name in ((split_client, "connection"), (client_app.together, "round_of")):
        monkeypatch.setattr(module, name, lambda *_: seen.append(1))
    return seen


@pytest.mark.parametrize(("mode", "method", "more"), [
    ("local", "splitlearning", {}),  # each batch would leave on the channel, without noise
    ("local", "fedavg", {"sends": {"phi/x": (1,)}}),
    ("central", "fedavg", {"sends": {"phi/x": (1,)}}),
    ("distributed", "fedavg", {"upload": ()}),
])  # fmt: skip
def test_a_plan_with_more_than_noisy_layers_is_refused_before_anything_is_done(
    mode, method, more, device_run, nodes, unchecked, monkeypatch
):
    """Whether the device has a budget or not."""
    strategy = registry.strategy_class("fedavg")
    plan = strategy.plan
    monkeypatch.setattr(strategy, "plan", lambda *of: replace(plan(*of), **more))
    nodes[0]["dp-budget"] = 100.0
    summed = str(mode == "distributed").lower()
    keys = f'strategy="{method}" dp.mode="{mode}" dp.sampling="fixed" secure-sum={summed}'
    with pytest.raises(RunError, match=rf'3 of 3 clients failed .*: dp\.mode = "{mode}": this str'):
        device_run(RUN, keys, "num-rounds=1")
    assert not unchecked and counts(nodes) == [{}] * 3


@pytest.fixture
def heedless(monkeypatch):
    """A server that asks all devices, whatever their greetings say of budgets."""
    joined = Device._joined

    def answer(device, *greeting):
        with monkeypatch.context() as patch:
            patch.setattr(spending, "check", lambda *_: None)
            return joined(device, *greeting)

    monkeypatch.setattr(Device, "_joined", answer)


def files_of(node):
    """What a device keeps: its states, whose run they are, and its personalized model."""
    folder = Path(node["state-dir"])
    found = [*folder.glob("*/*"), folder / personalized.FILE]
    return {path: path.read_bytes() for path in found if not path.name.startswith("log")}


@pytest.mark.parametrize("more", ["", 'dp.mode="none"', "dp.secret-noise=false"])
def test_beyond_its_budget_a_device_is_not_scored_either(
    more, device_run, nodes, read_csv, heedless
):
    """In another run, whose server heeds no greeting: nothing that it keeps is touched."""
    own = 'strategy="fedper" evaluate-every=1 client-state="reset"'
    nodes[1]["dp-budget"] = alone(1.0).epsilon(2, DELTA) + 1e-6
    folder = device_run(RUN, own, "num-rounds=2")
    assert "1" in {row["client"] for row in read_csv(folder, "clients.csv")}
    before = files_of(nodes[1])
    assert {path.name for path in before} >= {"run.json", personalized.FILE}
    folder = device_run(RUN, own, more, "num-rounds=1")
    events = [row for row in read_csv(folder, "events.csv") if row["kind"] == "failure"]
    assert [row["client"] for row in events] == ["1", "1"]  # in training and evaluation
    assert all(row["detail"].startswith("dp-budget = ") for row in events)
    assert {row["client"] for row in read_csv(folder, "clients.csv")} == {"0", "2"}
    assert files_of(nodes[1]) == before


def test_a_run_scores_a_device_until_it_has_refused_to_train(device_run, nodes, read_csv):
    """It has the personalized model of that round, and is in no later one, nor in a resumed run."""
    own = 'strategy="fedper" evaluate-every=1 run-name="x"'
    nodes[1]["dp-budget"] = alone(1.0).epsilon(1, DELTA) + 1e-6
    folder = device_run(RUN, own, "num-rounds=4 checkpoint-every=1")
    rounds = {client: [] for client in "012"}
    for row in read_csv(folder, "clients.csv"):
        rounds[row["client"]].append(row["round"])
    assert rounds == {"0": [*"1234"], "1": ["1", "2"], "2": [*"1234"]}
    kinds = [(e["round"], e["kind"]) for e in read_csv(folder, "events.csv") if e["client"] == "1"]
    assert kinds == [("2", "failure"), ("2", "left-out"), ("3", "left")]
    before = files_of(nodes[1])
    device_run(RUN, own, f'num-rounds=5 checkpoint-every=1 resume="{folder}"')
    assert left_out(read_csv, folder).keys() == {"1"} and files_of(nodes[1]) == before
    assert "1" not in {r["client"] for r in read_csv(folder, "clients.csv") if r["round"] == "5"}


@pytest.mark.parametrize(("secret", "told"), [
    ("true", "samples: answers get no noise"),
    ("false", "the run's noise comes from its seed"),  # be it of the device's latest run
])  # fmt: skip
def test_with_a_budget_a_device_answers_no_question(secret, told, flat_config, nodes):
    """Whatever the noise: answers have none, and are not counted."""
    nodes[0]["dp-budget"] = 8.0
    options = f'strategy="fedavg" dp.mode="central" dp.secret-noise={secret}'
    grid = SerialGrid(client_app.app, flat_config(DEVICES, options), 1)
    (node,) = grid.get_node_ids()
    grid.contexts[node].node_config = nodes[0]
    sent = grid.push_messages([pack_question([0], node, "samples", "")])
    with pytest.raises(RunError, match=f"^dp-budget = 8: {told}"):
        grid.pull_messages(sent)


@pytest.mark.parametrize("updates", [{"1.0": 3}, {"0.5": 1, "8.0": 100}, {"50.0": 7}])
def test_epsilon_is_that_of_the_accountant(updates):
    """Which has fewer orders, so that it finds a little more."""
    parts = [(alone(float(noise)), count) for noise, count in updates.items()]
    found = spending.epsilon(spending.Spent(updates), DELTA)
    assert found <= composed(parts, DELTA) and found == pytest.approx(
        composed(parts, DELTA), rel=2e-2
    )


def test_epsilon_of_nothing_and_of_no_noise():
    assert spending.epsilon(spending.Spent(), DELTA) == 0.0
    for noise in ("0.0", "5e-324", "1e-200", "1e-160"):
        assert spending.epsilon(spending.Spent({noise: 1, "1.0": 1}), DELTA) == float("inf")


def test_after_an_update_with_hardly_any_noise_a_budget_is_spent(tmp_path):
    run = RUN, 'dataset="device"'
    spending.count(
        config.read(config.parse([*run, "dp.noise-multiplier=1e-200"])).dp, tmp_path, None
    )
    with pytest.raises(RunError, match=r"^dp-budget = 8: .* so its epsilon has no limit any more"):
        spending.check(config.read(config.parse([*run])).dp, tmp_path, 8.0)


@pytest.mark.parametrize("options", ['dp.mode="none"', "dp.noise-multiplier=0.0"])
def test_with_a_budget_there_must_be_noise(device_run, nodes, read_csv, options):
    nodes[0]["dp-budget"] = 1000
    found = left_out(read_csv, device_run(RUN, options, "num-rounds=1"))
    assert "dp-budget = 1000: the run has no noise" in found["0"] and found.keys() == {"0"}


@pytest.mark.parametrize("before", ['dp.mode="none"', "dp.secret-noise=false"])
def test_a_budget_that_is_set_later_knows_of_updates_without_noise(
    before, device_run, nodes, read_csv
):
    """As the ledger does; whoever owns the device can begin anew."""
    device_run(RUN, before, "num-rounds=1")
    nodes[1]["dp-budget"] = 1000
    found = left_out(read_csv, device_run(RUN, "num-rounds=1"))
    assert found.keys() == {"1"} and counts(nodes)[1] == {"0.0": 1}
    assert "epsilon has no limit any more" in found["1"]
    assert "remove privacy.json from its state-dir" in found["1"]
    assert nodes[1]["state-dir"] not in found["1"]  # the server need not hear where that is
    (Path(nodes[1]["state-dir"]) / "privacy.json").unlink()
    assert not left_out(read_csv, device_run(RUN, "num-rounds=1"))
    assert counts(nodes)[1] == {"1.0": 1}


NO_BUDGETS = ["8", True, -1, 0, 0.0, float("inf"), float("nan")]
NO_DELTAS = ["1e-5", True, 0, 0.0, 1.0, float("nan")]


@pytest.mark.parametrize(
    ("key", "given"),
    [
        *(("dp-budget", given) for given in NO_BUDGETS),
        *(("dp-delta", given) for given in NO_DELTAS),
    ],
)
def test_a_budget_is_a_number_above_0_and_a_delta_one_below_1(key, given):
    """A budget of 0 would look like the server's `dp.budget=0`, which means any."""
    node = {"client-id": 0, "data": "/a", "state-dir": "/b"}
    with pytest.raises(RunError, match=f'^node-config: {key} = "{given}": must be a number'):
        Device.of(node | {key: given})
    both = Device.of(node | {"dp-budget": 8, "dp-delta": 1e-7})
    assert (both.budget, both.delta) == (8.0, 1e-7)
    assert (Device.of(node).budget, Device.of(node).delta) == (None, DELTA)


def test_a_count_that_cannot_be_read_is_no_zero(tmp_path):
    (tmp_path / "privacy.json").write_text("{")
    dp = config.read(config.parse([RUN, 'dataset="device"'])).dp
    for act in (spending.check, spending.count):
        with pytest.raises(RunError, match=r"cannot be read .* epsilon is unknown"):
            act(dp, tmp_path, 8.0)


def test_noise_that_the_server_can_subtract_counts_as_none(device_run, nodes, read_csv):
    """The server knows the seed, from which it is drawn unless it is secret."""
    seeded = RUN, "dp.secret-noise=false num-rounds=1"
    nodes[0]["dp-budget"] = 1000
    (detail,) = left_out(read_csv, device_run(*seeded)).values()
    assert "the run's noise comes from its seed, which the server knows" in detail
    assert counts(nodes) == [{}, {"0.0": 1}, {"0.0": 1}]


def test_a_device_counts_at_its_own_delta(device_run, nodes, read_csv):
    """The smaller it is, the larger is the epsilon; a run's larger one changes nothing.

    It holds when the run begins, and in each round.
    """
    budget = (alone(1.0).epsilon(2, 1e-7) + alone(1.0).epsilon(3, 1e-7)) / 2
    nodes[0] |= {"dp-budget": budget, "dp-delta": 1e-7}
    assert alone(1.0).epsilon(3, DELTA) < budget
    folder = device_run(RUN, "dp.delta=0.01 num-rounds=3")
    (failure,) = [row for row in read_csv(folder, "events.csv") if row["kind"] == "failure"]
    assert (failure["round"], failure["client"]) == ("3", "0")
    assert failure["detail"].endswith("(delta 1e-07)")
    (detail,) = left_out(read_csv, device_run(RUN, "dp.delta=0.01 num-rounds=1")).values()
    assert detail.endswith("(delta 1e-07)")
    assert counts(nodes) == [{"1.0": 2}, {"1.0": 4}, {"1.0": 4}]


@pytest.mark.parametrize("delta", [1e-6, 0.04, 0.999999])
def test_a_run_can_make_a_budget_stricter_but_not_looser(delta, tmp_path):
    """The larger the delta, the smaller is the epsilon of the same updates."""
    dp = config.read(config.parse([RUN, f'dataset="device" dp.delta={delta}'])).dp
    counted = min(delta, DELTA)
    budget = alone(1.0).epsilon(3, counted) * (1 + 1e-6)
    for _ in range(3):
        spending.count(dp, tmp_path, budget)
    with pytest.raises(RunError, match=rf"one more round would make it \S+ \(delta {counted:g}\)"):
        spending.count(dp, tmp_path, budget)
