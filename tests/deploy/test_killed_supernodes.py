"""SuperNodes whose power is cut in the middle of a round: the numbers of a run without them."""

import csv
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from fedapps import client_app
from fedapps.wire.checks import NO_SIGN
from fedapps.wire.probes import LOST
from tests.deploy.devices import PAIR, RUN, TWO, bodies, events, held, is_shared, wait_for
from tests.deploy.helpers import outcome
from tests.support import ROOT
from tests.support.fits import fail_fits

pytestmark = pytest.mark.deployment

HALTING = ROOT / "tests" / "support" / "halting"


def kinds_of(folder: Path, client: int) -> set[str]:
    """What kinds of events of a client there are in round 2."""
    with (folder / "events.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["round"] == "2"]
    return {row["kind"] for row in rows if row["client"] == str(client)}


def test_a_killed_supernode_comes_back_with_its_state(
    devices,
    deployment,
    tmp_path,
    monkeypatch,
):
    """The power of device 1 is cut while it trains in round 2; it is back before round 3.

    No device ever sends its personal layers, and the one that stays sends all others.
    """
    start, lost, rounds = time.time(), 1, 4
    run = [RUN, TWO, 'strategy="perfreezeclip" evaluate-every=0 score-last=true']
    run.append(f'num-rounds={rounds} runs-dir="{tmp_path}"')
    run.append("round-timeout=120.0")  # what the lost one may cost
    devices.start(*PAIR)

    def cut():
        wait_for(lambda: "ROUND 2]" in devices.log(lost), "no round 2")
        deployment.kill(devices.name(lost))
        devices.restart(lost)

    with ThreadPoolExecutor(1) as thread:
        done = thread.submit(cut)
        result = deployment.run(*run, 'run-name="real"')
        done.result()
    assert result.completed, result.error
    failures = [row for row in outcome(tmp_path / "real")[0] if row["failures"] != "0"]
    assert [(row["round"], row["failures"]) for row in failures] == [("2", "1")]
    # Flower gives a SuperNode up after a minute, unless it has been back by then.
    cause = events(tmp_path / "real")[lost]
    assert cause in (NO_SIGN, "no reply in time", LOST)

    fail_fits(monkeypatch, lambda *asked: asked == (2, lost))
    mine = devices.serial(PAIR, *run, 'run-name="serial"')
    assert outcome(tmp_path / "real") == outcome(mine)
    for client in PAIR:
        for name in ("round-000003.safetensors", f"round-00000{rounds}.safetensors"):
            (path,) = devices.state(client).rglob(name)
            (other,) = (devices.serial_states / str(client)).rglob(name)
            kept, expected = load_file(path), load_file(other)
            assert kept.keys() == expected.keys()
            assert all(np.array_equal(kept[key], expected[key]) for key in expected), (client, name)
    sent = bodies(deployment, start)
    for client in PAIR:
        for path in devices.state(client).rglob("*.safetensors"):
            found = {key: value in sent for key, value in held(path).items()}
            assert found and all(is_shared(key) for key, left in found.items() if left)
            assert client == lost or found == {key: is_shared(key) for key in found}


@pytest.mark.parametrize("halt", ["train", "unmask"])
def test_a_secure_sum_does_without_a_killed_supernode(
    halt,
    devices,
    deployment,
    tmp_path,
    monkeypatch,
):
    """The power of device 3 is cut in round 2, before its upload or after it."""
    lost, there = 3, tmp_path / "halted"
    run = [RUN, f'strategy="fedper" num-rounds=2 evaluate-every=0 runs-dir="{tmp_path}"']
    run.append("secure-sum=true num-clients=4 min-available=4 round-timeout=120.0")
    devices.start(0, 1, 2)
    devices.start(lost, PYTHONPATH=str(HALTING), HALT=f"{halt} 2 {there}")

    def cut():
        wait_for(there.exists, "it has not halted")
        deployment.kill(devices.name(lost))

    with ThreadPoolExecutor(1) as thread:
        done = thread.submit(cut)
        result = deployment.run(*run, 'run-name="real"')
        done.result()
    assert result.completed, result.error

    step = client_app.step_answer

    def fail_step(store, asked, client, given):
        if (halt, asked.step, asked.round, client) == ("unmask", "unmask", 2, lost):
            raise RuntimeError("no power")
        return step(store, asked, client, given)

    monkeypatch.setattr(client_app, "step_answer", fail_step)
    fail_fits(monkeypatch, lambda *asked: (halt, *asked) == ("train", 2, lost))
    mine = devices.serial(range(4), *run, 'run-name="serial"')
    kinds = {folder: kinds_of(folder, lost) for folder in (tmp_path / "real", mine)}
    assert kinds[mine] == {"train": {"failure"}, "unmask": {"unanswered"}}[halt]
    assert kinds[tmp_path / "real"] >= kinds[mine]  # it is also missing in the evaluation
    one, other = (load_file(folder / "model.safetensors") for folder in kinds)
    assert one.keys() == other.keys() and all((one[key] == other[key]).all() for key in one)
    kept = {c for c in range(4) if [*devices.state(c).rglob("secure-sum.bin")]}
    assert kept <= {lost}, "secrets of a round that is over"
