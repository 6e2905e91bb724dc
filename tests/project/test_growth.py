"""What must not grow with the number of clients: work per client and round; memory is told."""

import sys
import tracemalloc
from collections import OrderedDict

import msgspec
import numpy as np
import pytest

from fedapps.core import config, memory, registry
from fedapps.core.cache import ByteCache
from fedapps.core.errors import RunError
from fedapps.engine import evaluations
from fedapps.engine.privacy import MODES
from fedapps.engine.returned import check_selected
from fedapps.engine.rounds import Rounds
from fedapps.method import KeepsLast
from fedapps.method import strategy as strategy_module
from fedapps.training.workspace import Workspace

# Caches


def test_a_cache_knows_its_bytes_and_drops_the_least_recently_used():
    """Against one that counts."""
    draws = np.random.default_rng(0)
    cache, counted = ByteCache(100, least=1), OrderedDict()
    for step in range(2000):
        key, nbytes = int(draws.integers(12)), int(draws.integers(60))
        if draws.random() < 0.5:
            assert cache.get(key) == counted.get(key, (None,))[0]
            if key in counted:
                counted.move_to_end(key)
            continue
        cache.put(key, step, nbytes)
        counted.pop(key, None)
        counted[key] = (step, nbytes)
        while sum(size for _, size in counted.values()) > 100 and len(counted) > 1:
            counted.popitem(last=False)
        assert cache.held == sum(size for _, size in counted.values()) and len(cache) == len(
            counted
        )


@pytest.mark.parametrize(("least", "left"), [(0, 0), (1, 1)])
def test_a_value_that_is_too_large_stays_only_if_it_must(least, left):
    cache = ByteCache(10, least)
    cache.put("x", "value", 11)
    assert len(cache) == left and cache.held == 11 * left


def calls(function):
    """Count the calls of Python functions, and the steps of generators, that something takes."""
    count = 0

    def note(frame, event, argument):
        nonlocal count
        count += event == "call"

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """Run-config of 400 clients, and its workspace."""
    path = tmp_path_factory.mktemp("many") / "many.npz"
    images, labels = np.zeros((800, 8, 8), np.uint8), np.arange(800) % 4
    np.savez(path, train_images=images, train_labels=labels, test_images=images, test_labels=labels)
    options = f'dataset="{path}" partitioner="iid" num-clients=400 device="cpu" strategy="fedavg"'
    return options, Workspace(config.read(config.parse([options])))


def test_data_of_a_client_that_are_there_take_the_same_work_whoever_else_is_there(many):
    _, space = many
    space.samples(0, "train")
    alone = calls(lambda: space.samples(0, "train"))
    for client in range(400):
        space.samples(client, "train")
    assert calls(lambda: space.samples(0, "train")) == alone
    each = 4 * 64 + 8  # bytes of a sample and its label; 3 of 4 of each client are for training
    assert space.data._cache.held == 800 * each * 1.5


def test_a_round_takes_no_memory_for_clients_that_have_no_part_in_it(tmp_path):
    """Less than a byte for each of them, whoever is asked to train, by a method or for privacy."""
    clients, path = 100_000, tmp_path / "many.npz"
    images, labels = np.zeros((2 * clients, 2, 2), np.uint8), np.arange(2 * clients) % 4
    np.savez(
        path,
        train_images=images,
        train_labels=labels,
        test_images=images[:9],
        test_labels=labels[:9],
    )
    flat = config.parse([
        f'dataset="{path}" partitioner="iid" num-clients={clients} strategy="fedper" model="mlp"',
        'evaluate-clients=20 fraction-train=0.0002 dp.mode="central" dp.delta=1e-6',
        'unseen-clients="7" dp.sampling="fixed" device="cpu"',
    ])  # fmt: skip
    settings = config.read(flat)
    space = Workspace(settings)
    strategy = registry.strategy_class("fedper")(space)
    mode = MODES[settings.dp.mode]
    private = mode(settings, space.layout, {}, space.population.training)

    def choose():
        there = strategy.clients
        drawn = check_selected(1, strategy.select(1), there)
        assert drawn == private.select(1, [], there) and len(drawn) == 19 and 7 not in drawn
        assert len(evaluations.plans(strategy, 1)) == 20
        assert sum(strategy.count(client, "train") for client in drawn) == 19

    choose()  # now the samples are distributed
    tracemalloc.start()
    choose()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < clients


def test_who_is_evaluated_takes_no_work_for_each_client(many):
    """Unless some have left: in a simulation, all are there."""
    options, _ = many
    flat = config.parse([options, 'unseen-clients="7,9"'])
    space = Workspace(config.read(flat))
    strategy = registry.strategy_class("fedavg")(space)
    assert calls(lambda: evaluations.evaluated(strategy)) < 30
    assert evaluations.evaluated(strategy) == [c for c in range(400) if c not in (7, 9)]
    strategy.devices |= {client: {} for client in (3, 7, 399)}
    assert evaluations.evaluated(strategy) == [3, 399]


def test_a_round_without_an_evaluation_does_not_ask_who_is_evaluated(serial_run, monkeypatch):
    asked, evaluated, aggregate = [], evaluations.evaluated, Rounds.aggregate_evaluate

    def note(strategy):
        asked.append(round_now[-1])
        return evaluated(strategy)

    def begin(self, round_, replies):
        round_now.append(round_)
        aggregate(self, round_, replies)
        round_now.append(0)

    round_now = [0]
    monkeypatch.setattr(evaluations, "evaluated", note)
    monkeypatch.setattr(Rounds, "aggregate_evaluate", begin)
    serial_run("num-rounds=3 evaluate-every=2")
    assert {*asked} - {0} == {2, 3}


def test_fedap_draws_once_for_all_plans_of_a_round(many, monkeypatch):
    options, _ = many
    flat = config.parse(
        [options, 'strategy="fedap" model="lenet5" num-rounds=2 fraction-train=0.5']
    )
    strategy = registry.strategy_class("fedap")(Workspace(config.read(flat)))
    draw, draws = strategy_module.sample_clients, []

    def noted(*arguments):
        draws.append(draw(*arguments))
        return draws[-1]

    monkeypatch.setattr(strategy_module, "sample_clients", noted)
    assert all(strategy.personal_plan(2, c).stages for c in strategy.clients) and not draws
    assert strategy.select(2) == [*strategy.clients]  # all are asked, but not all train
    trained = [c for c in strategy.clients if strategy.personal_plan(2, c).stages]
    assert len(draws) == 1 and trained == draws[0]
    there = [3, 5, 8, 13]  # devices that are met after the plans were checked
    strategy.devices |= {client: {"train": 9, "test": 3, "validation": 0} for client in there}
    assert strategy.select(2) == there
    trained = [c for c in there if strategy.personal_plan(2, c).stages]
    assert len(draws) == 2 and trained == [there[index] for index in draws[1]]


# Memory

GROWING = [
    method for method in registry.names() if issubclass(registry.strategy_class(method), KeepsLast)
]


@pytest.mark.parametrize("method", GROWING)
def test_a_method_tells_the_bytes_of_its_state(method, flat_config, tiny_npz):
    """Against what stands in the state for each client when the warm-up is over."""
    options = f'strategy="{method}" model="lenet5" num-clients=7 num-rounds=4 checkpoint-every=0'
    space = Workspace(config.read(flat_config(tiny_npz, options)))
    strategy = registry.strategy_class(method)(space)
    if method == "fedcmd":  # the most that it can be: the first candidate is chosen
        first = strategy.candidates()[0]
        strategy.state["votes"] = np.array([[name == first for name in strategy.layout.names]], int)
    if hasattr(strategy, "end_warmup"):
        strategy.end_warmup()
    kept = sum(value.nbytes for name, value in strategy.state.items() if strategy.grows(name))
    assert kept * 0.99 <= strategy.state_bytes() <= kept * 1.01


@pytest.mark.parametrize("method", GROWING)
@pytest.mark.parametrize("checkpoints", [0, 1])
def test_what_does_not_fit_ends(method, checkpoints, flat_config, tiny_npz, monkeypatch, capsys):
    def make(clients):
        options = f'strategy="{method}" model="lenet5" checkpoint-every={checkpoints} num-clients=6'
        space = Workspace(config.read(flat_config(tiny_npz, options)))
        settings = msgspec.structs.replace(space.settings, num_clients=clients)
        return registry.strategy_class(method)(space, settings)

    one = make(6)
    clients = 6_000_000
    one.settings = msgspec.structs.replace(one.settings, num_clients=clients)
    needed = one.state_bytes() * (3 if checkpoints else 1)
    assert needed > 10**9

    monkeypatch.setattr(
        KeepsLast, "start_last", lambda _: pytest.fail("made before it was counted")
    )
    monkeypatch.setattr(memory, "available", lambda: needed - 1)
    line = rf"^{method}: what the server keeps of {clients} clients needs"
    with pytest.raises(RunError, match=line):
        make(clients)
    assert capsys.readouterr().out == ""


def test_a_large_state_is_told(monkeypatch, capsys):
    monkeypatch.setattr(memory, "available", lambda: 8 * 10**9)
    memory.reserve("it", 999_999_999, "take less")
    assert capsys.readouterr().out == ""
    memory.reserve("it", 8 * 10**9, "take less")
    assert capsys.readouterr().out == "note: it needs 8.0 GB of memory, 8.0 GB are free\n"
    line = r"^it needs 8\.1 GB of memory, 8\.0 GB are free: take less$"
    with pytest.raises(RunError, match=line):
        memory.reserve("it", 8_100_000_000, "take less")
