"""When failing clients end a run, and what is said of training that diverges."""

import contextlib
import re
from functools import partial
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from fedapps import client_app
from fedapps.core import config, registry
from fedapps.core.errors import DECLINED, RunError
from fedapps.engine import failed_clients
from fedapps.engine.failures import FailureCounts
from fedapps.method import Costs, replace
from fedapps.method.update import Failure
from tests.support.fits import hooked


def judge_of(settings, counts):
    """Return the counts, with the settings of their run."""
    apply = partial(counts.apply, settings)
    return SimpleNamespace(settings=settings, counts=counts, apply=apply)


def policy(num_rounds=9, max_failures=-1, max_norm=0.0, noise=0.0):
    settings = SimpleNamespace(
        num_rounds=num_rounds, max_failures=max_failures, max_norm=max_norm,
        round_lr=lambda round_: 50.0 / round_,
        dp=SimpleNamespace(noise=noise, clip_norm=2.0),
    )  # fmt: skip
    return judge_of(settings, FailureCounts())


def resumed(judge):
    """Return what goes on from the counts that a checkpoint would hold."""
    saved = msgspec.json.encode(judge.counts)
    return judge_of(judge.settings, msgspec.json.decode(saved, type=FailureCounts))


def ends(rounds, devices=True, killed=False, **settings):
    """Return the round and kind that end a run of such (training, evaluation) outcomes, if any.

    None as an outcome: nobody is asked. With `killed`, the run is killed and resumed after each
    round.
    """
    judge = policy(num_rounds=len(rounds), **settings)
    for round_, outcomes in enumerate(rounds, 1):
        judge = resumed(judge) if killed else judge
        for kind, failed in zip(("train", "evaluate"), outcomes, strict=True):
            failures = [Failure(c, f"cause {c}") for c in range(failed or 0)]
            asked = 0 if failed is None else 4
            try:
                judge.apply(round_, kind, failures, asked, failures, devices)
            except RunError as error:
                assert str(error).endswith("; client 0: cause 0") and f"of {asked}" in str(error)
                return round_, kind
    return None


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize(("rounds", "end"), [
    ([(0, 0)] + [(4, 0)] * 7, (4, "train")),  # scored well all the time
    ([(0, 0)] + [(0, 4)] * 7, (4, "evaluate")),
    ([(4, 4)] * 7, (2, "train")),
    ([(4, 0), (4, 0), (3, 0), (4, 0), (4, 0), (0, 0)], None),
    ([(4, None), (None, None), (4, None), (None, None), (4, None)], (5, "train")),
    ([(4, 0), (4, 0)], (2, "train")),  # a short run in which nobody ever trained
    ([(4, 0)], (1, "train")),
    ([(0, None), (0, None), (0, 4)], (3, "evaluate")),  # nor was ever scored
    ([(0, 0), (0, 0), (4, 4)], None),  # the last round alone is lost
])  # fmt: skip
def test_devices_may_all_fail_for_a_while(rounds, end, killed):
    assert ends(rounds, killed=killed) == end


def test_a_simulation_ends_at_once():
    assert ends([(0, 0), (4, 0), (0, 0)], devices=False) == (2, "train")
    assert ends([(0, 0), (0, 4), (0, 0)], devices=False) == (2, "evaluate")
    assert ends([(3, 3)] * 3, devices=False) is None


@pytest.mark.parametrize("devices", [True, False])
def test_a_round_without_a_sum_counts_neither_as_success_nor_as_failure(devices):
    """Only one client lies, but which is not known."""
    judge, most = policy(num_rounds=9), 3 if devices else 1
    for round_ in range(1, 6):
        judge.apply(round_, "train", [], 4, [], devices, "masks are left")
        judge.apply(round_, "evaluate", [], 4, [], devices)
    all_fail = [Failure(c, "no luck") for c in range(4)]
    for round_ in range(6, 5 + most):
        judge.apply(round_, "train", all_fail, 4, all_fail, devices)
        judge.apply(round_, "train", [], 4, [], devices, "masks are left")
    with pytest.raises(RunError, match=r"\(all failed\); client 0: no luck"):
        judge.apply(8, "train", all_fail, 4, all_fail, devices)
    with pytest.raises(RunError, match=r"^round 9: no round had a sum: masks are left"):
        resumed(judge).apply(9, "train", all_fail[:1], 4, all_fail[:1], devices, "masks are left")


def test_a_client_that_fails_twice_is_one():
    judge = policy()
    judge.apply(1, "train", [Failure(0, "a"), Failure(0, "b")], 2, [Failure(0, "a")], False)


@pytest.mark.parametrize(("error", "told"), [
    ((7, 8), "2 of 10 clients failed (max-failures = 1); client 7: no luck"),
    (range(3, 10), "10 of 10 clients failed (all failed); client 3: no luck"),
    ((), "3 of 3 clients declined (all declined); client 0: declined: its ready command says no"),
])  # fmt: skip
def test_the_end_of_a_run_names_who_failed_before_who_declined(error, told):
    failures = [Failure(c, f"{DECLINED}: its ready command says no") for c in (0, 1, 2)]
    failures += [Failure(c, "no luck") for c in error]
    judge, asked = policy(max_failures=1), 10 if error else 3
    with pytest.raises(RunError) as ended:
        judge.apply(3, "train", failures, asked, failures[3:], devices=False)
    assert str(ended.value) == f"round 3: {told}"


def test_who_failed_in_the_training_and_who_in_the_evaluation_are_counted_together():
    """The first cause of the round is named, and who fails twice is one."""
    train, evaluate = ([Failure(c, f"of {c}") for c in who] for who in ((0, 1), (1, 2, 3)))
    judge, both = policy(max_failures=3), [*train, *evaluate[1:]]
    judge.apply(2, "train", train, 8, train, False)
    with pytest.raises(RunError) as ended:
        judge.apply(2, "evaluate", evaluate, 7, both, False)
    assert str(ended.value) == "round 2: 4 clients failed (max-failures = 3); client 0: of 0"


@pytest.fixture
def unlucky(monkeypatch):
    """Return fail(train, evaluate): clients that fail in the training or evaluation of round 2."""

    def failing(own, who, space, request, store):
        if request.plan.round == 2 and request.client in who:
            raise RuntimeError("no luck")
        return own(space, request, store)

    def fail(train, evaluate):
        for name, who in (("_fit", train), ("_evaluate", evaluate)):
            own = getattr(client_app, name)
            monkeypatch.setattr(client_app, name, partial(failing, own, who))

    return fail


ENDS = [
    'unseen-clients="5" strategy="fedavg"',
    'strategy="fedseq" fedseq.groups=2 fedseq.unfreeze-rounds="0,1" finetune-epochs=2',
]


@pytest.mark.parametrize("options", ENDS)
def test_who_fails_in_training_and_evaluation_of_the_last_round_is_one(
    options, serial_run, read_rounds, unlucky
):
    """Also if the run is then made longer."""
    unlucky(train=(1,), evaluate=(1, 2))
    options += " fraction-train=1.0 num-clients=6"
    folder, longer = (serial_run(options, f"num-rounds={rounds}") for rounds in (2, 3))
    assert [row["failures"] for row in read_rounds(folder)] == [0, 1, 1]
    resumed = serial_run(f'resume="{folder}" num-rounds=3 {options}')
    for run in (resumed, longer):
        assert [row["failures"] for row in read_rounds(run)[:2]] == [0, 2]


@pytest.mark.parametrize("options", ["", *ENDS])
def test_too_many_failures_end_the_last_round_as_any_other(options, serial_run, unlucky):
    unlucky(train=(0, 1), evaluate=(2, 3))
    for rounds in (2, 3):
        with pytest.raises(RunError, match=r"^round 2: 4 clients failed \(max-failures = 3\); cli"):
            serial_run(options, f"num-rounds={rounds} fraction-train=1.0 max-failures=3")


def diverged(*clients):
    return [Failure(c, "FloatingPointError: training diverged: fc is not finite") for c in clients]


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("devices", [True, False])
def test_a_run_ends_in_which_training_diverges_at_most_clients_though_one_goes_on(devices, killed):
    """Whoever has spoiled the model may go on answering; a round of others counts anew."""
    judge = policy()
    for round_, failures in enumerate((diverged(0, 1, 2), diverged(0, 1), diverged(0, 1, 2)), 1):
        judge.apply(round_, "train", failures, 4, failures, devices)
        judge.apply(round_, "evaluate", [], 4, failures, devices)
    judge.apply(4, "train", diverged(1, 2, 3), 4, diverged(1, 2, 3), devices)
    judge = resumed(judge) if killed else judge
    line = r"^round 5: training diverged at 3 of 4 clients, at more than half for 3 rounds in a row"
    with pytest.raises(RunError, match=line):
        judge.apply(5, "train", diverged(0, 1, 2), 4, diverged(0, 1, 2), devices)


@pytest.mark.parametrize(("max_norm", "clips"), [(0.0, True), (5.0, True), (0.0, False)])
def test_training_that_diverges_gets_advice_once(capsys, max_norm, clips):
    judge = policy(max_norm=max_norm)
    other = Failure(0, "ValueError: no luck")
    bad = diverged(1, 2)
    for round_, failures in enumerate(([other], [other, *bad], bad), 1):
        with contextlib.suppress(RunError):
            judge.apply(round_, "train", failures, 4, failures, True, clips=clips)
    advice = ", or limit gradients, for example max-norm=10" if clips and not max_norm else ""
    assert capsys.readouterr().out == (
        f"warning: round 2: training diverged at 2 of 4 clients: lower lr = 25{advice}\n"
    )


def test_noise_that_makes_training_diverge_is_named(capsys):
    with contextlib.suppress(RunError):
        policy(noise=30.0).apply(1, "train", diverged(1, 2), 4, diverged(1, 2), True)
    assert "lower dp.noise-multiplier = 30 or dp.clip-norm = 2, or lower" in capsys.readouterr().out


def test_noise_is_named_where_training_diverges():
    """Else a device says only that its own state of an earlier run may be the reason."""
    dp = config.read(config.parse(['dp.mode="local" dp.noise-multiplier=8.0'])).dp
    space = SimpleNamespace(settings=SimpleNamespace(max_value=1.0, dp=dp, secure_sum=False))
    noise = "; the noise of dp.noise-multiplier = 8 may be too much"
    found = failed_clients.diverged(space, {"fc": np.array([2.0])}, {}, {})
    assert all(text.startswith("fc is ") and text.endswith(noise) for text in found)
    found = failed_clients.diverged(space, {}, {}, {"loss": float("nan"), "samples": 3})
    assert all("loss" in text and text.endswith(noise) for text in found)
    assert "nan" in found[0] and "nan" not in found[1]
    assert failed_clients.diverged(space, {}, {}, {}) == ("", "")
    assert dp.noise == 8.0
    off = config.read(config.parse(['dp.mode="none" dp.noise-multiplier=8.0'])).dp
    assert (off.noise, off.suspicion) == (0.0, "")


@pytest.mark.parametrize("value, told", [
    (np.nan, "not finite, although the model is"),
    (2.0**24, "as large as 1.67772e+07: at most 1e+06 (max-value)"),
])  # fmt: skip
def test_what_a_method_sends_beside_a_finite_model_is_no_diverged_training(
    value, told, serial_run, monkeypatch, caplog, read_csv
):
    """Such as a mean over a class without samples, or a count: a lower lr would not help."""
    strategy, client = registry.strategy_class("fedavg"), registry.client_class("fedavg")

    def plan(self, round_, number):
        names = self.layout.names
        made = self.exchange(round_, names, self.stage(round_, names))
        return replace(made, sends={"c/a": (2,)})

    def after_training(self, plan):
        self.sends["c/a"] = np.array([1.0, value if self.client == 1 else 0.0])
        return Costs()

    monkeypatch.setattr(strategy, "plan", plan, raising=False)
    monkeypatch.setattr(client, "after_training", after_training, raising=False)
    keys = 'strategy="fedavg" num-clients=3 fraction-train=1 num-rounds=2'
    folder = serial_run(keys)
    line = f"c/a, which {client.__name__} sends, is {told}"
    failed = [row for row in read_csv(folder, "events.csv") if row["client"] == "1"]
    assert [(row["kind"], row["detail"]) for row in failed] == [("failure", line)] * 2
    assert not any("lower lr" in text for text in caplog.messages)
    with pytest.raises(RunError, match=re.escape(line)):
        serial_run(keys, keep_going=False)  # as at any other mistake in a method


@pytest.mark.parametrize("keys, told", [
    ('strategy="fedavg" finetune-lr=0.01', ("personalization", "finetune-lr than 0.01")),
    ('strategy="fedrep" lr=0.02 finetune-lr=0.01', ("personalization", "lr than 0.02")),
    ('strategy="fedas" fedas.align-lr=0.03', ("personalization", "learning rate than 0.03")),
    ('strategy="fedavg" finetune-epochs=0', ("model", "lr than 0.05")),
    ('strategy="fedavg" evaluate-rounds="1" evaluate-every=0', ("model", "lr than 0.05")),
], ids=str)  # fmt: skip
def test_the_rate_that_counts_is_named_where_a_model_diverged(
    keys, told, serial_run, monkeypatch, caplog, read_csv
):
    """That of the stages, if there are any; else it is the model as received that diverged."""
    method = keys.split('"')[1]
    hooked(monkeypatch, method, "predict", lambda client, own, inputs: own(inputs) * float("nan"))
    folder = serial_run("num-clients=2 fraction-train=1.0 num-rounds=2", keys)
    what, rate = told
    (line,) = (line for line in caplog.messages if "diverged, client" in line)
    assert f": {what} diverged, client 0, 1: " in line and line.endswith(f"use a smaller {rate}")
    rows = [row for row in read_csv(folder, "events.csv") if row["kind"] == "diverged"]
    assert [row["detail"] for row in rows[:2]] == [f"the {what}"] * 2


def test_a_resumed_run_goes_on_counting_failures(serial_run, monkeypatch):
    """Two rounds before the run was extended and one after it are three in a row."""

    def loss(client, own, logits, labels):
        return own(logits, labels) * (float("nan") if client.client in (0, 1) else 1.0)

    hooked(monkeypatch, "fedavg", "loss", loss)
    these = 'strategy="fedavg" num-clients=3 min-samples=2 fraction-train=1.0'
    folder = serial_run(these, "num-rounds=2")
    with pytest.raises(RunError, match=r"round 3: training diverged at 2 of 3 clients, .* 3 round"):
        serial_run(these, f'num-rounds=5 resume="{folder}"')
