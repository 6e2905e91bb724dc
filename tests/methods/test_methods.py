"""The conformance test: it runs over every method that the registry finds.

A new pair `strategies/x.py`, `clients/x.py` is tested by what stands here before it has a test of
its own: its plans are valid, its bytes exact, frozen parts unchanged, personal parts stay, runs
repeat bit by bit, and state survives.
"""

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from fedapps.core import config, log, registry
from fedapps.method import BaseStrategy
from fedapps.models.layers import run
from fedapps.serial import run_serial
from fedapps.training.workspace import Workspace
from tests.support.fits import recorded_fits
from tests.support.killed import differences
from tests.support.methods import needed
from tests.support.tiny import BASE

METHODS = registry.names()


def options(method: str, tiny: str) -> str:
    return f'{tiny} strategy="{method}" local-epochs=2 evaluate-every=0 {needed(method)}'


def training_rows(rounds: list[dict[str, str]]) -> list[dict[str, str]]:
    return [row for row in rounds if row["phase"] != "finetune"]


def through_channel(client, plan):
    """Bytes (up, down) of split learning: features and int64 labels, gradients, relayed layers."""
    if plan.channel is None:
        return 0, 0
    images, labels = client.train_data
    features = run(client.model, images[:1], client.layout.names).nbytes
    steps = plan.stages[0].epochs * len(labels)
    layers = client.layout.shared(client.layout.names) if plan.channel.relay else ()
    relayed = sum(client.workspace.initial[key].nbytes for key in layers)
    return steps * (features + 8) + relayed, steps * features + relayed


@pytest.fixture(scope="module", params=METHODS)
def method(request):
    """Each method."""
    return request.param


@pytest.fixture(scope="module")
def once(method, tiny_npz, tmp_path_factory):
    """A run of the method on one SuperNode: its directory, and its local trainings."""
    runs = tmp_path_factory.mktemp("once")
    flat = config.parse([BASE, options(method, tiny_npz), f'runs-dir="{runs}"'])
    with recorded_fits() as fits:
        return run_serial(flat, plots=False), fits


def test_same_numbers_on_any_supernodes(method, once, serial_run, tiny_npz, untimed_rounds):
    first, _ = once
    assert [row["round"] for row in training_rows(untimed_rounds(first))] == ["1", "2"]
    other = serial_run(options(method, tiny_npz), num_supernodes=4)  # with one client or two each
    assert differences(first, other) == []
    told = (first / log.FILE).read_text("utf-8")  # more processes would give other numbers
    assert "draws from torch's global generator" not in told
    assert "declares" not in told  # a figure that no client gives


def test_bytes_frozen_and_personal_parts(once, untimed_rounds):
    folder, fits = once
    for row in training_rows(untimed_rounds(folder)):
        of_round = [r for r in fits if r[2].plan.round == int(row["round"])]
        assert int(row["clients"]) == len(of_round)
        updates = [update for *_, update in of_round]
        sent = sum(a.nbytes for u in updates for a in (*u.arrays.values(), *u.extras.values()))
        channel = [through_channel(client, request.plan) for client, _, request, _ in of_round]
        assert int(row["bytes_up"]) == sent + sum(up for up, _ in channel)
        received = sum(a.nbytes for _, _, request, _ in of_round for a in request.arrays.values())
        assert int(row["bytes_down"]) == received + sum(down for _, down in channel)
    for client, state, request, update in fits:
        layout, plan = client.layout, request.plan
        trained = {name for stage in plan.stages for name in stage.layers}
        assert not trained.difference(layout.names)
        assert set(update.arrays) == set(layout.shared(plan.upload))
        kept = {key.removeprefix("model/") for key in state if key.startswith("model/")}
        both = set(layout.keys_of(plan.also_keep))
        assert kept.intersection(update.arrays) <= both, "a key is either shared or personal"
        assert set(update.extras) == set(plan.sends)
        for key in set(update.arrays).intersection(request.arrays):
            if key.partition(".")[0] not in trained:
                np.testing.assert_array_equal(update.arrays[key], request.arrays[key])


def test_personal_state_survives_in_the_store(once):
    folder, fits = once
    last = {client.client: state for client, state, *_ in fits}
    for client, state in last.items():
        files = sorted((folder / "clients" / str(client)).glob("*.safetensors"))
        if not state:
            assert not files
            continue
        stored = load_file(files[-1])
        assert stored.keys() == state.keys()
        for key, value in state.items():
            np.testing.assert_array_equal(stored[key], value.numpy())


def test_server_never_touches_what_no_client_sends(once, untimed_rounds, read_model):
    folder, fits = once
    if not fits:  # no client trains: the server's own training is all there is
        assert all(row["clients"] == "0" for row in training_rows(untimed_rounds(folder)))
        return
    client, *_ = fits[0]
    sent = {key for *_, update in fits for key in update.arrays}
    strategy_class = registry.strategy_class(client.settings.strategy)
    trains = strategy_class.after_round is not BaseStrategy.after_round  # the server does, too
    if any(request.plan.channel for _, _, request, _ in fits):
        sent |= set(client.workspace.initial)
    model, initial = read_model(folder), client.workspace.initial
    for key, value in initial.items():
        if key not in sent:
            assert trains or np.array_equal(model[key], value), key
        elif value.ndim > 1:  # a bias before a BatchNorm has no gradient
            assert not np.array_equal(model[key], value), f"{key} was never trained"


def test_a_schedule_scales_the_rates_of_a_round_and_none_of_a_newcomer(method, tiny_npz, data_root):
    """Cosine over four rounds; fine-tuning alone, whose rate is a key, may have none."""
    fixed, falling = (
        registry.strategy_class(method)(Workspace(config.read(config.parse([
            BASE, options(method, tiny_npz), f'data-root="{data_root}" num-rounds=4 lr=0.1',
            f'lr-schedule="{schedule}"',
        ]))))
        for schedule in ("constant", "cosine")
    )  # fmt: skip
    for round_, factor in enumerate((1.0, 0.5 + 0.5**1.5, 0.5, 0.5 - 0.5**1.5), 1):
        before, after = (rates(one.plan(round_, 0)) for one in (fixed, falling))
        assert after == pytest.approx(factor * np.array(before))
        before, after = (rates(one.evaluation_plan(round_, 0)) for one in (fixed, falling))
        assert after == pytest.approx(before) or after == pytest.approx(factor * np.array(before))
        before, after = (rates(one.newcomer_plan(round_, 0)) for one in (fixed, falling))
        assert after == pytest.approx(before)


def rates(plan):
    return [stage.lr for stage in plan.stages]


def test_a_client_that_has_done_nothing_has_the_module_to_predict_with(method, tiny_npz, data_root):
    """What a file of a client's model is loaded into."""
    flat = config.parse([BASE, options(method, tiny_npz), f'data-root="{data_root}"'])
    space = Workspace(config.read(flat))
    module = registry.client_class(method)(space, 0, {}).module()
    assert isinstance(module, torch.nn.Module) and module.state_dict()


def test_a_client_that_is_never_selected_is_evaluated_with_what_it_has(serial_run, read_csv):
    folder = serial_run('strategy="fedper" fraction-train=0.17 num-rounds=1')
    clients = {row["client"] for row in read_csv(folder, "clients.csv")}
    assert clients == {str(c) for c in range(6)}


def test_workspace_is_a_pure_function_of_the_settings():
    settings = config.read(config.defaults())
    one, two = Workspace(settings), Workspace(settings)
    assert one.resident.fingerprint == two.resident.fingerprint
    assert [*one.population.training] == [*two.population.training]
    for client in one.population.training:
        a, b = one.population.share(client), two.population.share(client)
        np.testing.assert_array_equal(a.train, b.train)
        np.testing.assert_array_equal(a.test, b.test)
