"""The ledger of a federation: how epsilon adds up over runs, and what a budget refuses."""

import hashlib
import json
import math
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from safetensors.numpy import load_file

from fedapps import cli
from fedapps.core import config
from fedapps.core.errors import RunError
from fedapps.core.flower import NeighboringRelation, SamplingMethod
from fedapps.engine import ledger
from fedapps.engine.accounting import Mechanism, alone, composed
from fedapps.engine.ledger import Ledger, Night, check_budget
from fedapps.engine.rounds import Rounds
from fedapps.report import summary
from fedapps.report.report import Report
from fedapps.wire.nodes import NodeRegistry
from tests.support import ROOT
from tests.support.rdp import sampled_gaussian, to_epsilon

DELTA = 1e-5
ORDERS = np.concatenate([np.linspace(1.01, 10, 900), np.linspace(10, 600, 5901)])
DP = (
    'strategy="fedavg" model="lenet5" dp.mode="central" dp.noise-multiplier=2.0 dp.clip-norm=0.01 '
    "num-rounds=2 evaluate-every=0"
)


def poisson(z, sampled, population):
    how = SamplingMethod.POISSON, NeighboringRelation.ADD_OR_REMOVE_ONE
    return Mechanism(z, sampled, population, *how)


def test_runs_without_sampling_are_one_gaussian():
    """RDP of a Gaussian is order / (2 noise^2); here the noise is z / 2."""
    nights = [(2.0, 10), (3.0, 5), (8.0, 40)]
    rdp = sum(count * ORDERS / (2 * (z / 2) ** 2) for z, count in nights)
    found = composed([(alone(z), count) for z, count in nights], DELTA)
    assert found == pytest.approx(to_epsilon(ORDERS, rdp, DELTA), rel=2e-3)
    together = sum(count / z**2 for z, count in nights) ** -0.5
    assert found == pytest.approx(alone(together).epsilon(1, DELTA), rel=1e-9)
    assert found < 0.75 * sum(alone(z).epsilon(count, DELTA) for z, count in nights)


def test_runs_with_sampling_from_other_numbers_of_clients_add_up_at_each_order():
    nights = [(1.5, 3, 30, 20), (2.0, 7, 70, 10), (1.2, 3, 31, 5)]
    orders = np.arange(2, 200)
    rdp = sum(count * sampled_gaussian(m / n, z, orders) for z, m, n, count in nights)
    found = composed([(poisson(z, m, n), count) for z, m, n, count in nights], DELTA)
    assert found == pytest.approx(to_epsilon(orders, rdp, DELTA), rel=1e-2)
    one = composed([(poisson(1.5, 3, 30), 12), (poisson(1.5, 30, 300), 8)], DELTA)
    assert one == poisson(1.5, 3, 30).epsilon(20, DELTA)  # only the share counts


def test_the_example_of_the_page():
    ten, hundred = (alone(8.0).epsilon(count, DELTA) for count in (10, 100))
    page = " ".join((ROOT / "docs" / "privacy.md").read_text("utf-8").split())
    assert f"sum would be {10 * ten:.1f}, but epsilon is {hundred:.1f} (delta 1e-5)" in page


def test_nothing_costs_nothing_and_no_noise_costs_everything():
    assert composed([], DELTA) == composed([(alone(1.0), 0)], DELTA) == 0.0
    assert composed([(alone(1.0), 3), (alone(0.0), 1)], DELTA) == math.inf


def test_epsilons_of_different_kinds_have_no_sum():
    with pytest.raises(RunError, match=r"^dp\.mode, dp\.sampling: all runs of a federation must"):
        composed([(alone(1.0), 3), (poisson(1.0, 3, 30), 1)], DELTA)


def night(run="new", z=2.0, releases=10, **changes):
    mechanism = None if z is None else alone(z)
    known = {"folder": run, "started": "", "strategy": "fedavg", "delta": DELTA}
    return Night(run=run, mechanism=mechanism, releases=releases, **known | changes)


def dp(**changes):
    options = " ".join(f"dp.{key}={value}" for key, value in changes.items())
    return config.read(config.parse([f'dp.mode="local" dp.delta={DELTA}', options])).dp


def test_a_budget_holds_for_all_runs_together():
    earlier = [night("a"), night("b")]
    spent, after = (alone(2.0).epsilon(count, DELTA) for count in (20, 30))
    check_budget(dp(budget=after), earlier, night())
    with pytest.raises(RunError) as caught:
        check_budget(dp(budget=after - 1e-3), earlier, night())
    assert str(caught.value) == (
        f"dp.budget = {after - 1e-3:g}: the earlier runs (2) have spent an epsilon of {spent:.4g},"
        f" and 10 more rounds would make it {after:.4g} (delta 1e-05); use fewer rounds, more"
        " noise, or a smaller fraction-train"
    )


@pytest.mark.parametrize(("first", "then"), [(DELTA, 0.049), (0.049, DELTA)])
def test_no_delta_of_a_run_stretches_the_budget(first, then):
    """All of them are compared at the smallest, at which epsilon is largest."""
    earlier, new = [night("a", releases=9, z=4.0, delta=first)], night(z=4.0, delta=then)
    after = alone(4.0).epsilon(19, DELTA)
    assert alone(4.0).epsilon(19, 0.049) < after - 1
    check_budget(dp(budget=after + 1e-6, delta=then), earlier, new)
    line = rf"would make it {after:.4g} \(delta 1e-05\)"
    with pytest.raises(RunError, match=line):
        check_budget(dp(budget=after - 1e-3, delta=then), earlier, new)
    nothing = night("b", releases=0, delta=1e-9)  # it has failed before its first round
    check_budget(dp(budget=after + 1e-6, delta=then), [*earlier, nothing], new)


@pytest.mark.parametrize(("earlier", "new", "line"), [
    ([], night(z=None), "without noise epsilon has no limit; use dp"),
    ([], night(z=0.0), "without noise epsilon has no limit; use dp"),
    ([night("a", None)], night(), "because the run a had no differential privacy"),
])  # fmt: skip
def test_a_budget_refuses_what_has_no_limit(earlier, new, line):
    check_budget(dp(budget=0), earlier, new)
    with pytest.raises(RunError, match=r"^dp\.budget = 50: .*" + line):
        check_budget(dp(budget=50), earlier, new)


def test_runs_without_privacy_have_no_epsilon_and_spoil_that_of_others():
    assert ledger.epsilon([], DELTA) is ledger.epsilon([night(z=None)], DELTA) is None
    assert ledger.epsilon([night(z=None), night()], DELTA) == math.inf
    mine = alone(2.0).epsilon(10, DELTA)
    assert ledger.epsilon([night(z=None, releases=0), night()], DELTA) == mine


def test_noise_that_can_be_subtracted_gives_no_guarantee():
    """Alone it can be simulated; beside secret noise it is what it is, none."""
    seeded, secret, plain = night("a", seeded=True), night("b"), night("c", None)
    assert ledger.epsilon([seeded], DELTA) == ledger.epsilon([secret], DELTA)
    assert ledger.guaranteed([secret], DELTA) == alone(2.0).epsilon(10, DELTA)
    for runs in ([], [seeded], [plain], [seeded, plain]):
        assert ledger.guaranteed(runs, DELTA) is None
    for other in (seeded, plain):
        assert ledger.guaranteed([other, secret], DELTA) == math.inf
    assert ledger.guaranteed([night("a", 0.0)], DELTA) == math.inf


def test_secret_noise_that_was_never_added_makes_no_epsilon_hold():
    """A run that fails before its first round has released nothing, whatever its settings."""
    failed = night("b", releases=0)
    assert ledger.guaranteed([night("a", seeded=True), failed], DELTA) is None
    assert ledger.guaranteed([failed], DELTA) is None
    mine = alone(2.0).epsilon(10, DELTA)
    assert ledger.guaranteed([failed, night("c")], DELTA) == mine


@pytest.mark.parametrize("seeded", [True, False])
def test_a_budget_does_not_add_secret_noise_to_other_noise(seeded):
    earlier = [night("a", seeded=seeded)]
    check_budget(dp(budget=1e3), earlier, night(seeded=seeded))
    check_budget(dp(budget=0), earlier, night(seeded=not seeded))
    with pytest.raises(RunError, match=r"^dp\.budget = 1000: .* the run a has another dp\.secret"):
        check_budget(dp(budget=1e3), earlier, night(seeded=not seeded))


@pytest.mark.parametrize("secret", [True, False])
def test_manifest_and_history_name_an_epsilon_only_if_the_noise_is_secret(
    secret, serial_run, federation, read_summary, capsys
):
    member = f'federation="{federation}" dp.secret-noise={str(secret).lower()}'
    folder = serial_run(DP, member)
    (one,) = ledger.read(federation).runs
    assert one.seeded is not secret
    manifest = json.loads((folder / "model.manifest.json").read_text())
    spent = composed([(poisson(2.0, 3, 6), 2)], DELTA)
    expected = (pytest.approx(spent), DELTA) if secret else (None, None)
    assert (manifest["epsilon"], manifest["delta"]) == expected
    capsys.readouterr()
    assert cli.main(["nightly", "--history", "--folder", str(federation)]) == 0
    line = capsys.readouterr().out.splitlines()[1]
    assert line.split()[-3:-1] == [f"{spent:.4g}" if secret else "-"] * 2
    assert read_summary(folder)["epsilon_of_federation"] == pytest.approx(spent)


def test_a_ledger_is_read_as_it_was_written(tmp_path):
    where = tmp_path / "new" / "federation"
    assert ledger.read(where) == Ledger()
    mine = night(parent="b", seeded=True), night("b", None, finished=True)
    with ledger.editing(where) as book:
        for one in mine:
            book.enter(one)
        book.start = "b"
    assert ledger.read(where) == Ledger(runs=[*mine], start="b")
    with pytest.raises(ValueError, match="no"), ledger.editing(where) as book:
        book.start = ""
        raise ValueError("no")
    assert ledger.read(where).start == "b"
    (where / "ledger.json").write_text("{")
    with pytest.raises(RunError, match=r"ledger\.json: cannot be read .* epsilon is unknown$"):
        ledger.read(where)


@pytest.fixture
def federation(tmp_path):
    return tmp_path / "federation"


def test_runs_of_a_federation_are_entered_and_add_up(
    serial_run, federation, read_rounds, read_summary
):
    run = DP, f'federation="{federation}"'
    first = serial_run(*run)
    path = first / "model.safetensors"
    second = serial_run(*run, f'initial-model="{path}" dp.noise-multiplier=3.0')
    one, two = ledger.read(federation).runs
    assert [(n.round, n.releases, n.finished) for n in (one, two)] == [(2, 2, True)] * 2
    assert (one.parent, two.parent) == ("", one.run)
    assert ledger.read(federation).start == two.run
    assert Path(one.folder) == first
    parts = [(poisson(z, 3, 6), 2) for z in (2.0, 3.0)]
    alone_, both = composed(parts[:1], DELTA), composed(parts, DELTA)
    assert [read_rounds(f)[-1]["epsilon"] for f in (first, second)] == [
        pytest.approx(alone_), pytest.approx(composed(parts[1:], DELTA))
    ]  # fmt: skip
    found = [read_summary(folder)["epsilon_of_federation"] for folder in (first, second)]
    assert found == pytest.approx([alone_, both])
    line = f"{both:.4g} in 2 runs; noise from the seed: not private"
    told = ("epsilon of the federation", line)
    assert told in summary._privacy(read_summary(second), config.read(config.stored(second)))
    manifest = json.loads((second / "model.manifest.json").read_text())
    digest = hashlib.sha256((second / "model.safetensors").read_bytes()).hexdigest()
    assert (manifest["sha256"], manifest["run"], manifest["round"]) == (digest, two.run, 2)
    assert manifest["epsilon"] is None  # this noise comes from the seed
    assert manifest["fingerprints"].keys() == {"code", "model"}


def test_epsilon_does_not_cover_weights_from_elsewhere_and_run_and_manifest_say_so(
    serial_run, federation, capsys
):
    """Also the manifests of later runs, which begin with what came of them."""

    def told(*keys):
        folder = serial_run(DP, "num-rounds=1 dp.secret-noise=true", *keys)
        path = folder / "model.manifest.json"
        manifest = json.loads(path.read_text()) if path.exists() else {}
        line = "epsilon does not cover what these weights were trained on"
        return folder / "model.safetensors", line in capsys.readouterr().out, manifest

    member = f'federation="{federation}"'
    plain, warned, _ = told('dp.mode="none"')
    assert not warned
    first, warned, manifest = told(member)
    assert (warned, manifest["pretrained"]) == (False, False)
    _, warned, manifest = told(member, f'initial-model="{first}"')  # of the ledger
    assert (warned, manifest["pretrained"]) == (False, False)
    assert told(f'initial-model="{first}"')[1]  # without the ledger, nobody counts its run
    assert not told(f'initial-model="{plain}" dp.mode="none"')[1]
    later, warned, manifest = told(member, f'initial-model="{plain}"')
    assert (warned, manifest["pretrained"]) == (True, True)
    _, warned, manifest = told(member, f'initial-model="{later}"')
    assert (warned, manifest["pretrained"]) == (False, True)


def test_only_without_privacy_does_a_manifest_tell_whose_samples_they_were(serial_run, federation):
    """A digest of exact samples lets others check a guess; the run directory has it in any case."""
    known = {}
    for mode in ("none", "local", "central"):
        member = f'federation="{federation}-{mode}" dp.mode="{mode}"'
        folder = serial_run(DP, member, "num-rounds=1")
        names = "model.manifest.json", "run.json"
        known[mode] = [json.loads((folder / n).read_text())["fingerprints"] for n in names]
        assert known[mode][1].pop("sketch")
    both, code = {"data", "code", "model"}, {"code", "model"}  # and a sketch, for resuming only
    found = {mode: [prints.keys() for prints in pair] for mode, pair in known.items()}
    assert found == {"none": [both, both], "local": [code, both], "central": [code, both]}


def test_what_may_be_published_tells_of_samples_by_its_weights_alone(
    serial_run, federation, tmp_path
):
    """docs/privacy.md: the model and its manifest. With other samples, only the weights differ."""
    seen = []
    for factor in (1, 3):
        rows = [f"{factor * k},{k % 7},{k % 2}" for k in range(60)]
        (tmp_path / "own.csv").write_text("\n".join(["a,b,label", *rows]), "utf-8")
        own = f'dataset="{tmp_path}/own.csv" num-clients=3 model="mlp" partitioner="iid"'
        member = f'federation="{federation}-{factor}" dp.secret-noise=true min-samples=2'
        model = serial_run(DP, 'model="mlp"', own, member) / "model.safetensors"
        manifest = json.loads(model.with_suffix(".manifest.json").read_text())
        content = model.read_bytes()
        header = content[8 : 8 + int.from_bytes(content[:8], "little")]
        assert manifest.pop("sha256") == hashlib.sha256(content).hexdigest()
        assert manifest.pop("run")  # a random id
        seen.append((header, manifest, content))
    (header, manifest, content), other = seen
    assert (header, manifest) == other[:2] and content != other[2]


def test_a_run_beyond_the_budget_is_refused_before_it_begins(serial_run, federation, tmp_path):
    budget = composed([(poisson(2.0, 3, 6), 3)], DELTA)
    run = DP, f'federation="{federation}" dp.budget={budget}'
    serial_run(*run)
    before = sorted((tmp_path / "runs").iterdir())
    with pytest.raises(RunError, match=r"^dp\.budget = .* earlier runs \(1\) have spent"):
        serial_run(*run)
    assert sorted((tmp_path / "runs").iterdir()) == before
    assert len(ledger.read(federation).runs) == 1
    serial_run(*run, "num-rounds=1")  # there is room for that
    two = composed([(poisson(2.0, 3, 6), 2)], DELTA)
    line = rf"2 rounds would spend an epsilon of {two:.4g} \(delta 1e-05\); use few"
    with pytest.raises(RunError, match=rf"^dp\.budget = 0\.5: {line}"):
        serial_run(DP, "dp.budget=0.5")


def test_a_run_that_ends_early_counts_what_it_did_and_a_killed_one_all(
    serial_run, federation, read_summary, monkeypatch
):
    seen, aggregate = [], Rounds.aggregate_train

    def stop(rounds, round_, replies):
        aggregate(rounds, round_, replies)
        seen.append(ledger.read(federation).runs[-1])  # as it stays if the process is killed now
        if round_ == 2:
            raise RunError("no more")

    monkeypatch.setattr(Rounds, "aggregate_train", stop)
    run = DP, f'federation="{federation}" num-rounds=5'
    with pytest.raises(RunError, match="no more"):
        serial_run(*run)
    assert [(n.releases, n.finished) for n in seen] == [(5, False)] * 2
    (left,) = ledger.read(federation).runs
    assert (left.releases, left.round, left.finished) == (2, 1, False)
    assert ledger.read(federation).start == ""

    monkeypatch.setattr(Rounds, "aggregate_train", aggregate)
    folder = serial_run(*run, f'resume="{left.folder}"')
    (again,) = ledger.read(federation).runs
    # round 2 was repeated: its noise was drawn, and seen, twice
    assert (again.run, again.round, again.finished) == (left.run, 5, True)
    assert again.releases == 6
    total = ledger.epsilon([again], again.delta)
    assert read_summary(folder)["epsilon_of_federation"] == pytest.approx(total)


@pytest.mark.parametrize(("first", "told"), [
    (RunError("the first cause"), "^the first cause$"),
    (KeyboardInterrupt(), "^interrupted after round 2 of 2; to resume: "),
])  # fmt: skip
def test_a_ledger_that_cannot_be_written_hides_no_first_cause(
    first, told, serial_run, federation, monkeypatch, capsys
):
    write, row = ledger.write_json, Report.round

    def full(path, content):
        raise RunError(f"cannot write {path}: No space left on device")

    def stop(report, values):
        row(report, values)
        if values.round == 2:
            monkeypatch.setattr(ledger, "write_json", full)
            raise first

    monkeypatch.setattr(Report, "round", stop)
    with pytest.raises(type(first), match=told):
        serial_run(f'federation="{federation}"')
    line = f"warning: cannot write {federation / ledger.FILE}: No space left on device"
    assert line in capsys.readouterr().out

    def then_full(report, *arguments):
        finish(report, *arguments)
        monkeypatch.setattr(ledger, "write_json", full)

    finish = Report.finish
    monkeypatch.setattr(Report, "round", row)
    monkeypatch.setattr(ledger, "write_json", write)
    monkeypatch.setattr(Report, "finish", then_full)
    with pytest.raises(RunError, match=r"ledger\.json: No space left"):  # it is the first one here
        serial_run(f'federation="{federation}"')


@pytest.mark.parametrize("keys", [
    'dp.mode="none"', "dp.sampling=fixed", 'dp.mode="none" devices=lognormal dropout=0.3',
])  # fmt: skip
def test_the_runs_of_a_federation_ask_whom_one_long_run_asks(
    keys, serial_run, federation, monkeypatch
):
    """Also if one of them is resumed after a later one; a run of no federation begins anew."""
    asked, send = [], Rounds._send

    def noted(rounds, round_, plans, kind):
        if kind == "train":
            asked.append((round_, [*plans]))
        return send(rounds, round_, plans, kind)

    def run(*more):
        asked.clear()
        folder = serial_run(DP, keys, "num-clients=12 fraction-train=0.3", *more)
        return folder, [clients for _, clients in asked]

    monkeypatch.setattr(Rounds, "_send", noted)
    _, whole = run("num-rounds=6")
    member = f'federation="{federation}"'
    first, clients = run(member)
    assert clients == whole[:2] == run()[1]
    second, clients = run(member)
    assert clients == whole[2:4] and asked[0][0] == 1
    assert run(member, "num-rounds=1")[1] == whole[4:5]
    for folder, before in ((first, 0), (second, 2)):
        _, clients = run(member, f'num-rounds=4 resume="{folder}"')
        assert clients == whole[before + 2 : before + 4]


@pytest.mark.parametrize("mode", [
    "central", "local fraction-train=1.0", "distributed secure-sum=true fraction-train=1.0",
])  # fmt: skip
def test_seeded_noise_of_a_federation_is_that_of_one_long_run(mode, serial_run, federation):
    """Not that of its first rounds again, which would add up. Training hardly moves the model."""
    member = f'federation="{federation}" num-rounds=1'
    run = DP, f'model="mlp" lr=1e-12 dp.mode={mode}'
    first = serial_run(*run, member) / "model.safetensors"
    second = serial_run(*run, member, f'initial-model="{first}"')
    nights, long = (load_file(f / "model.safetensors") for f in (second, serial_run(*run)))
    before = load_file(first)
    for name, value in long.items():
        assert abs(value - before[name]).max() > 1e-4
        np.testing.assert_allclose(nights[name], value, atol=1e-6)


@pytest.mark.parametrize(("other", "line"), [
    ([], r"^dp\.budget = .*: 40 rounds would spend"),
    ([night("other")], r"^dp\.mode, dp\.sampling: all runs of a federation must"),
])  # fmt: skip
def test_a_finished_run_that_may_not_go_on_stays_as_it_is(other, line, serial_run, federation):
    budget = composed([(poisson(2.0, 2, 4), 3)], DELTA)
    run = DP, f'federation="{federation}" dp.budget={budget} unseen-clients="4,5"'
    folder = serial_run(*run)
    with ledger.editing(federation) as book:
        book.runs += other
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert {folder / "summary.json", folder / "unseen.csv"} < before.keys()
    with pytest.raises(RunError, match=line):
        serial_run(*run, f'resume="{folder}" num-rounds=40')
    assert {path: path.read_bytes() for path in before if path.exists()} == before


def test_a_run_that_is_resumed_stays_in_its_federation_and_budget(
    serial_run, federation, monkeypatch, tmp_path
):
    """Also if the same command is given without these keys, by name or as the latest."""
    round_row = Report.round

    def killed(report, row):
        round_row(report, row)
        if row.round == 2:
            raise RunError("killed")

    monkeypatch.setattr(Report, "round", killed)
    run = DP, "num-rounds=3"
    member, budget = f'federation="{federation}"', "dp.budget=1e3"
    with pytest.raises(RunError, match="killed"):
        serial_run(*run, member, budget)
    monkeypatch.setattr(Report, "round", round_row)
    (folder,) = [path.parent for path in (tmp_path / "runs").glob("*/config.toml")]
    for given in (budget, member, f'federation="{tmp_path}/other" {budget}'):
        with pytest.raises(RunError, match="no unfinished run with these settings"):
            serial_run(*run, given, 'resume="latest"')
    left_out = {'federation=""': "federation = ", "dp.budget=0.0": r"dp\.budget = 0\.0"}
    for less, named in left_out.items():
        with pytest.raises(RunError, match=named):
            serial_run(*run, member, budget, f'resume="{folder}"', less)
    assert serial_run(*run, member, "dp.budget=2e3", 'resume="latest"') == folder
    (again,) = ledger.read(federation).runs
    assert again.finished


@pytest.mark.parametrize("last", [1, 2])
def test_a_run_without_privacy_that_ends_early_has_released_what_it_began(
    last, serial_run, federation, monkeypatch
):
    """By then, clients have the model of the round, so that epsilon has no limit any more."""
    evaluate = Rounds.configure_evaluate

    def stop(rounds, round_):
        if round_ == last:
            raise RunError("no more")
        return evaluate(rounds, round_)

    monkeypatch.setattr(Rounds, "configure_evaluate", stop)
    run = DP, f'dp.mode="none" federation="{federation}" num-rounds=3'
    with pytest.raises(RunError, match="no more"):
        serial_run(*run)
    (left,) = ledger.read(federation).runs
    assert (left.releases, left.round, left.finished) == (last, last - 1, False)
    assert ledger.epsilon([left, night()], DELTA) == math.inf
    monkeypatch.setattr(Rounds, "configure_evaluate", evaluate)
    if last > 1:
        serial_run(*run, f'resume="{left.folder}"')
        (again,) = ledger.read(federation).runs
        assert (again.releases, again.round, again.finished) == (3, 3, True)


@pytest.mark.parametrize("last", [3, 4])
def test_a_refused_resumption_leaves_the_ledger_as_it_was(
    last, serial_run, federation, monkeypatch
):
    """Also of a run whose last checkpoint is older than its last round, here of round 2 of 3."""
    own = Rounds.configure_train

    def stop(rounds, round_):
        if round_ > last:
            raise RunError("no more")
        return own(rounds, round_)

    monkeypatch.setattr(Rounds, "configure_train", stop)
    run = DP, f'dp.mode="none" federation="{federation}" num-rounds=4 checkpoint-every=2'
    with nullcontext() if last == 4 else pytest.raises(RunError, match="no more"):
        serial_run(*run)
    before = ledger.read(federation)
    (left,) = before.runs
    assert (left.round, left.releases, left.finished) == (last, last, last == 4)
    monkeypatch.setattr(NodeRegistry, "wait_for_nodes", Mock(side_effect=RunError("no SuperNodes")))
    with pytest.raises(RunError, match="no SuperNodes"):
        serial_run(*run, f'resume="{left.folder}" num-rounds=5')
    assert ledger.read(federation) == before


def test_a_run_with_adapters_is_no_start_for_another(serial_run, federation):
    with pytest.raises(RunError, match=r"^adapter-rank = 2: no later run of a federation"):
        serial_run(f'strategy="fedavg" adapter-rank=2 federation="{federation}"')
