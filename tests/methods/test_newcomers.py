"""Clients that come after the training: what a method gives them, and what they cannot change."""

import re

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import fedapps
from fedapps.compare import runs
from fedapps.core import config, registry
from fedapps.engine.evaluations import plan_of
from fedapps.method import BaseClient, BaseStrategy, Costs, copied, rehearse, replace
from fedapps.models.layers import put, take
from fedapps.models.layers import run as run_layers
from fedapps.report import frames, status
from fedapps.report.accuracy_plots import evaluated_rounds
from fedapps.report.page.facts import costs_of
from fedapps.report.page.reading import RunFiles
from fedapps.report.units import human
from fedapps.tasks import CLASSIFICATION
from fedapps.training.workspace import Workspace
from tests.support import ROOT
from tests.support.methods import each_method, needed, rehearsal_of

LEAD = CLASSIFICATION.lead
SMALL = (
    "num-clients=4 fraction-train=1.0 num-rounds=2 evaluate-every=0 local-epochs=2 "
    'finetune-epochs=0 unseen-clients="1"'
)


def options(method, more=""):
    part = "validation-fraction=0.2" if method == "fedfomo" else ""
    return [f'{SMALL} {needed(method)} strategy="{method}" {part}', more]


@pytest.fixture
def settings(flat_config, tiny_npz):
    """Return make(method, more) -> the settings of a run of four clients; 1 comes late."""
    return lambda *which: config.read(flat_config(tiny_npz, *options(*which)))


@pytest.mark.parametrize("method", each_method())
def test_newcomers_are_scored_and_change_nothing(
    serial_run, read_csv, read_model, workspace_of, make_npz, tmp_path, method
):
    """With other samples of theirs, the model and all other scores are the same, bit for bit."""
    folder = serial_run(*options(method))
    (row,) = read_csv(folder, "unseen.csv")
    assert row["client"] == "1"
    assert {row["client"] for row in read_csv(folder, "clients.csv")} == {"0", "2", "3"}
    share = workspace_of(folder).population.share(1)
    with np.load(make_npz(tmp_path / "changed.npz")) as file:
        arrays = dict(file)
    both = np.concatenate([arrays["train_images"], arrays["test_images"]])
    both[[*share.train, *share.test, *share.validation]] ^= 255
    arrays["train_images"], arrays["test_images"] = np.split(both, [96])
    np.savez(tmp_path / "changed.npz", **arrays)
    other = serial_run(*options(method), f'dataset="{tmp_path / "changed.npz"}"')
    one, two = read_model(folder), read_model(other)
    assert all(np.array_equal(one[key], two[key]) for key in one)
    assert read_csv(folder, "clients.csv") == read_csv(other, "clients.csv")
    assert read_csv(folder, "unseen.csv")[0]["loss"] != read_csv(other, "unseen.csv")[0]["loss"]


def test_the_difference_is_that_of_the_means(
    serial_run, read_csv, read_summary, read_rounds, capsys
):
    """So is all else that is said of the last round: what concerns newcomers is said apart."""
    more = 'num-clients=6 unseen-clients="1,4-5" few-shot=1 evaluate-every=1 alpha=1.0'
    folder = serial_run(*options("fedper", more))
    summary, new = read_summary(folder), read_csv(folder, "unseen.csv")
    old = [row for row in read_csv(folder, "clients.csv") if row["round"] == "2"]
    assert [row["client"] for row in new] == ["1", "4", "5"]
    assert all(1 <= int(row["num_train"]) <= 3 for row in new)
    seen, unseen = (
        np.mean([float(row["accuracy_personalized"]) for row in rows]) for rows in (old, new)
    )
    assert summary["accuracy_personalized"] == pytest.approx(seen)
    assert summary["accuracy_personalized_unseen"] == pytest.approx(unseen)
    table = fedapps.load(folder).unseen.set_index("client")["accuracy_personalized"]
    assert [*table.index] == [1, 4, 5] and table.mean() == pytest.approx(unseen)
    assert summary["accuracy_difference_unseen"] == pytest.approx(unseen - seen)
    *_, trained, last = read_rounds(folder)
    assert (trained["phase"], last["phase"]) == ("train", "newcomers")
    assert (last["clients"], last["evaluated"], last["bytes_up"]) == (3, 3, 0)
    assert trained["bytes_eval"] == last["bytes_eval"] > 0 and last["train_macs"] > 0
    assert trained["train_loss"] != last["train_loss"] and trained["bytes_up"] > 0
    for key in ("phase", "clients", "train_loss", "bytes_up", "train_macs"):
        assert summary[key] == trained[key]
    scored = runs.read(folder).scored.loc[2]
    assert scored["train_loss"] == pytest.approx(trained["train_loss"])
    assert scored["accuracy_personalized"] == pytest.approx(seen)
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "newcomers  loss" in line)
    assert f"loss {last['train_loss']:.3f}  others: acc {summary['accuracy_initial']:.3f}" in line
    assert read_csv(folder, "samples.csv") and {"0", "2", "3"} == {
        row["client"] for row in read_csv(folder, "samples.csv")
    }


def test_what_newcomers_train_counts_as_no_training(serial_run, read_rounds, read_summary):
    """Neither in the summary nor in status, page, comparison and pictures; its bytes do count."""
    folder = serial_run(*options("fedavg", "finetune-epochs=3"))
    *trained, last = read_rounds(folder)
    assert [row["phase"] for row in trained] == ["train", "train"] and last["train_macs"] > 0
    assert last["cost_paper"] > 0 and last["bytes_eval"] > 0
    files = RunFiles.read(folder)
    picture = evaluated_rounds(frames.read(folder / "rounds.csv"), LEAD)
    compared, shown = runs.read(folder).costs(2), dict((r[0], r[1]) for r in costs_of(files).rows)
    for name in ("train_macs", "cost_paper", "bytes_eval"):
        counted = [*trained, last] if name == "bytes_eval" else trained
        total = sum(row[name] for row in counted)
        assert read_summary(folder)[f"total_{name}"] == status.read(folder).totals[name] == total
        assert compared[name] == files.total(name) == total
    macs = sum(row["train_macs"] for row in trained)
    assert shown["multiply-accumulates of training"] == human(macs)
    assert picture["train_macs"].tolist() == [macs]


def test_newcomers_are_not_in_a_final_phase_of_the_method(serial_run, read_rounds):
    """Neither FedSeq's clients that fine-tune, nor what they cost, depend on a newcomer."""
    phases = [
        read_rounds(serial_run(*options("fedseq", f"finetune-epochs=2 few-shot={few}")))[-1]
        for few in (0, 1)
    ]
    for phase in phases:
        assert (phase["phase"], phase["clients"]) == ("finetune", 3)
    one, two = ([p["train_macs"], p["cost_paper"], p["train_loss"]] for p in phases)
    assert one == two and one[0] > 0


def test_without_fine_tuning_a_newcomer_trains_its_own_layers_alone(settings):
    """FedPer's head, FedBN's BatchNorms, all of local; the learning rate has no schedule."""
    for method, trained in (
        ("fedper", ("fc2",)),
        ("fedbn", ("conv1:norms", "conv2:norms")),
        ("local", None),
        ("fedavg", ()),
        ("fedbabu", ()),
    ):
        made = settings(method, 'lr-schedule="cosine"')
        strategy = registry.strategy_class(method)(Workspace(made))
        plan = strategy.newcomer_plan(2, 1)
        found = tuple(name for stage in plan.stages for name in stage.layers)
        assert found == (strategy.layout.names if trained is None else trained)
        assert [stage.lr for stage in plan.stages] == [made.lr] * len(plan.stages)
        assert plan.upload == () and plan.newcomer


def test_fine_tuning_of_ones_own_has_no_schedule_for_a_newcomer(settings):
    """The learning rate of a round counts for those that trained; other stages stay as they are."""

    class Own(BaseStrategy):
        def finetuning(self, round_):
            return (self.stage(round_, self.layout.head),)

    class Scored(Own):
        def evaluation_plan(self, round_, client):
            return replace(super().evaluation_plan(round_, client), stages=self.others)

    made = settings("fedavg", 'lr-schedule="step"')
    own, scored = (cls(Workspace(made)) for cls in (Own, Scored))
    (known,), (new,) = own.evaluation_plan(2, 0).stages, own.newcomer_plan(2, 1).stages
    assert (known.lr, new.lr) == (pytest.approx(0.01 * made.lr), made.lr)
    assert replace(known, lr=new.lr) == new
    for scored.others in ((), (replace(known, epochs=7),)):
        assert scored.newcomer_plan(2, 1).stages == scored.others


def adapted(method, settings):
    """Return a run after a round, and its client 1 after it has come as a newcomer."""
    run = rehearsal_of(method, settings)
    run.rounds()
    plan, client = run.strategy.newcomer_plan(1, 1), run.make(1)
    client.evaluate_round(plan, run.strategy.newcomer_download(1, 1, plan))
    return run, client


def test_ditto_trains_the_personal_model_from_the_shared_one(settings):
    """Two steps by hand: v -= lr (grad F(v) + lambda (v - w)), from v = w."""
    more = "batch-size=64 ditto.personal-epochs=2 ditto.lambda=5.0"
    run, client = adapted("ditto", settings("ditto", more))
    lr = run.strategy.settings.lr
    after = take(client.model, run.layout.keys_of(run.layout.names))
    v, (x, y) = copied(client.model).requires_grad_().train(), client.train_data
    put(v, run.strategy.arrays)
    w = {key: p.detach().clone() for key, p in v.named_parameters()}
    for _ in range(2):
        gradients = torch.autograd.grad(cross_entropy(v(x), y), [*v.parameters()])
        with torch.no_grad():
            for (key, p), gradient in zip(v.named_parameters(), gradients, strict=True):
                p -= lr * (gradient + 5.0 * (p - w[key]))
    for key, p in v.named_parameters():
        np.testing.assert_allclose(after[key], p.detach(), atol=1e-6, err_msg=key)


def test_fedrods_newcomer_trains_its_own_head_alone(settings):
    """Two steps by hand of a linear head, beside the generic logits; the rest stays as it came."""
    run, client = adapted("fedrod", settings("fedrod", "batch-size=64 local-epochs=2"))
    lr = run.strategy.settings.lr
    for key, value in take(client.model, run.layout.keys_of(run.layout.names)).items():
        np.testing.assert_array_equal(value, run.strategy.arrays[key], err_msg=key)
    initial, (x, y) = run.strategy.workspace.initial, client.train_data
    head = [torch.tensor(initial[key]) for key in run.layout.keys_of(("fc2",))]
    model = client.model.eval()
    with torch.no_grad():
        z = run_layers(model, x, run.layout.body)
        generic = model.fc2(z)
    for _ in range(2):
        weight, bias = (p.requires_grad_() for p in head)
        loss = cross_entropy(generic + z @ weight.T + bias, y)
        gradients = torch.autograd.grad(loss, (weight, bias))
        pairs = zip((weight, bias), gradients, strict=True)
        head = [(p - lr * gradient).detach() for p, gradient in pairs]
    for found, right in zip(client.personal_head.parameters(), head, strict=True):
        torch.testing.assert_close(found.detach(), right, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("method", ["fedamp", "fedpac", "pfedhn", "pfedsim"])
def test_a_newcomer_gets_the_servers_mean_and_no_mixture_of_its_own(settings, method):
    """The server keeps nothing of it, so a mixture of its own would be the initial arrays."""
    run = rehearsal_of(method, settings(method))
    run.rounds(2)
    strategy, plan = run.strategy, run.strategy.newcomer_plan(2, 1)
    sent = strategy.newcomer_download(2, 1, plan)
    assert plan.download == strategy.layout.names or method == "pfedsim"
    keys = strategy.layout.shared(plan.download)
    for key in keys:
        np.testing.assert_array_equal(sent[key], strategy.arrays[key], err_msg=key)
    own = strategy.download(2, 1, plan)
    assert any((own[key] != sent[key]).any() for key in keys)


@pytest.mark.parametrize(("method", "mean", "own"), [
    ("scaffold", "c/", "own/"), ("feddyn", "hbar/", "g/"),
])  # fmt: skip
def test_a_mean_over_all_clients_is_one_over_those_that_train(settings, method, mean, own):
    run = rehearsal_of(method, settings(method))
    run.rounds(2)
    assert sorted(run.clients) == [0, 2, 3]
    for name, value in run.strategy.state.items():
        parts = [state[name.replace(mean, own)].numpy() for state in run.clients.values()]
        np.testing.assert_allclose(value, np.mean(parts, 0), rtol=1e-4, atol=1e-7)
    assert max(np.abs(value).max() for value in run.strategy.state.values()) > 1e-4


@pytest.mark.parametrize("method", ["apfl", "pfedme", "fedala"])
def test_a_newcomer_is_first_scored_with_the_shared_model(settings, method):
    made = settings(method)
    rehearsal = rehearsal_of(method, made)
    rehearsal.rounds(2)
    strategy = rehearsal.strategy
    plan, client = strategy.newcomer_plan(2, 1), rehearsal.make(1)
    told = client.evaluate_round(plan, strategy.newcomer_download(2, 1, plan)).metrics
    assert told["finetune_samples"] > 0
    put(client.model, strategy.arrays)
    client.model.eval()
    inputs, labels = client.test_data
    right = int((client.model(inputs).argmax(1) == labels).sum())
    assert sum(told["initial_right"]) == right


@pytest.mark.parametrize("method", registry.names())
def test_the_page_of_newcomers_says_what_the_method_says(method):
    page = (ROOT / "docs" / "newcomers.md").read_text("utf-8")
    (rule,) = re.findall(rf"^\| `{method}` \| (.*) \|$", page, re.M)
    assert f"A newcomer {rule}" in " ".join(registry.strategy_class(method).__doc__.split())


def test_a_newcomer_that_trains_does_what_others_do_in_a_round(settings):
    """`before_training` with its costs, and the objective of a round; else neither of them."""

    class Told(BaseClient):
        def before_training(self, plan):
            told.append("before")
            return Costs(macs=10**12)

        def objective(self, phase):
            told.append(phase)
            return super().objective(phase)

    for joins in (True, False):
        told = []
        kind = type("Kind", (BaseStrategy,), {"newcomers_train": joins})
        run = rehearse(kind, Told, settings("fedavg"))
        plan = replace(run.strategy.newcomer_plan(1, 1), stages=run.strategy.plan(1, 1).stages)
        figures = run.make(1).evaluate_round(plan, run.strategy.download(1, 1, plan)).metrics
        assert told == (["before", "train"] if joins else ["finetune"])
        assert (figures["finetune_macs"] > 10**12) == joins and figures["finetune_samples"] > 0


@pytest.mark.parametrize("method", ["fedrep", "fedpac"])
def test_a_newcomer_trains_norms_of_its_own_before_the_head(method):
    """Else it would be scored with BatchNorms that have seen no sample."""
    keys = f'strategy="{method}" model="lenet5" bn-stats="local" num-clients=4 unseen-clients="3"'
    strategy = rehearsal_of(method, keys).strategy
    plan, usual = strategy.newcomer_plan(5, 3), strategy.evaluation_plan(5, 0)
    *first, head = plan.stages
    assert head.layers == usual.stages[-1].layers == strategy.layout.head
    trained = {key for stage in first for key in strategy.layout.keys_of(stage.layers)}
    body = strategy.layout.keys_of(strategy.layout.body)
    assert {key for key in body if "running_" in key} <= trained


@pytest.mark.parametrize(("keys", "moved"), [
    ('strategy="fedavg" finetune-epochs=0', ()),
    ('strategy="fedper" finetune-epochs=0', ("classifier",)),
    ('strategy="fedbabu" finetune-part="head"', ("classifier",)),
    ('strategy="fedrep"', ("classifier",)),
])  # fmt: skip
def test_statistics_of_its_own_are_measured_and_shared_layers_stay_frozen(
    keys, moved, tiny_npz, flat_config
):
    """With one batch, a running mean is 0.1 times that of the BatchNorm's inputs."""
    more = 'model="lenet5" bn-stats="local" batch-size=100 local-epochs=1 num-clients=4'
    made = config.read(flat_config(tiny_npz, more, 'unseen-clients="3"', keys))
    run = rehearsal_of(made.strategy, made)
    plan = run.strategy.newcomer_plan(1, 3)
    client, received = run.make(3), run.strategy.download(1, 3, plan)
    model, seen = copied(client.model).train(), []
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    for norm in norms:
        norm.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    put(model, received)
    model(client.train_data[0])
    figures = client.evaluate_round(plan, received).metrics
    assert figures["finetune_batches"] > 0
    now = take(client.model, run.layout.keys_of(run.layout.names))
    trained = {k for k in received if (now[k] != received[k]).any()}
    initial = run.strategy.workspace.initial
    trained |= {k for k in run.layout.parameters if (now[k] != initial[k]).any()}
    assert trained == {*run.layout.keys_of(moved)}
    means = [value for key, value in now.items() if key.endswith("running_mean")]
    for found, inputs in zip(means, seen, strict=True):
        expected = 0.1 * inputs.detach().mean((0, 2, 3)).numpy()
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_a_plan_of_ones_own_for_newcomers_need_not_say_that_it_is_one(settings):
    """Otherwise `adapt` was not called, and their scores counted as nobody's."""

    class Own(BaseStrategy):
        def newcomer_plan(self, round_, client):
            return replace(self.evaluation_plan(round_, client), stages=())

    strategy = Own(Workspace(settings("fedavg")))
    assert [plan_of(strategy, 2, client).newcomer for client in range(4)] == [
        False,
        True,
        False,
        False,
    ]
