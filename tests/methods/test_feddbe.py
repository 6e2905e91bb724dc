"""FedDBE's certain facts (docs/papers/feddbe.md); its twin has the formulas."""

import pytest

from clients.feddbe import FedDBEClient
from fedapps.method import rehearse
from strategies.feddbe import FedDBE

KEYS = 'strategy="feddbe" num-clients=3 fraction-train=1.0 local-epochs=3'


def test_round_1_asks_all_clients_for_their_means_only(serial_run, read_csv):
    folder = serial_run('strategy="feddbe" num-rounds=2')
    first, second = read_csv(folder, "rounds.csv")
    assert (first["phase"], first["clients"], first["bytes_up"]) == ("initialize", "6", "12288")
    assert (second["phase"], second["clients"]) == ("train", "3")


def test_a_round_that_nobody_answers_is_not_the_initialization(tiny_npz):
    """Else all features would be pulled to 0, which nobody has sent."""
    run, late = (rehearse(FedDBE, FedDBEClient, f"{tiny_npz} {KEYS}") for _ in range(2))
    strategy = late.strategy
    phases = [strategy.phase(round_) for round_ in (1, 2)]
    assert phases == ["initialize", "initialize"] and strategy.select(2) == [0, 1, 2]
    late.round = 1  # nobody has answered
    late.rounds(1)
    assert strategy.state["z/mean"].any() and strategy.state["z/round"].item() == 2
    assert [strategy.phase(round_) for round_ in (2, 3)] == ["initialize", "train"]
    run.rounds(1)
    assert strategy.plan(3, 0) == run.strategy.plan(3, 0) != strategy.plan(2, 0)


@pytest.mark.parametrize("rounds", [1, 2])
def test_a_run_that_only_initializes_says_so(tiny_npz, serial_run, read_model, capsys, rounds):
    folder = serial_run(f'strategy="feddbe" num-rounds={rounds}')
    said = "warning: feddbe: the only round finds the mean of features, so nothing is trained"
    assert (said in capsys.readouterr().out) == (rounds == 1)
    initial = rehearse(FedDBE, FedDBEClient, f'{tiny_npz} strategy="feddbe"').strategy.arrays
    same = [(value == initial[key]).all() for key, value in read_model(folder).items()]
    assert all(same) if rounds == 1 else not any(same)
