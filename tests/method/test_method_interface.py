"""The author's interface: its toy runs, its pages are short, and Flower's classes are behind it."""

import dataclasses
import doctest
import importlib
import re
import runpy
import sys
from functools import cached_property, wraps
from operator import attrgetter
from pathlib import Path
from typing import ClassVar

import msgspec
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch.nn import BatchNorm2d
from torch.nn.functional import cross_entropy

import fedapps.method
from fedapps.core import config, registry
from fedapps.core.errors import RunError
from fedapps.engine.misspelt import misspelt
from fedapps.engine.returned import check_aggregate
from fedapps.engine.rounds import Rounds
from fedapps.method import (
    BaseClient,
    BaseStrategy,
    Costs,
    Mixing,
    Objective,
    Plan,
    local,
    put,
    rehearse,
    replace,
)
from fedapps.method.client import ClientHooks
from fedapps.method.conversation import Conversation
from fedapps.method.strategy import StrategyHooks
from fedapps.models.layers import as_sent
from fedapps.serial import run_serial
from fedapps.training.costs import TrainingStats
from fedapps.training.workspace import Workspace
from fedapps.wire.fleet import Bound, Fleet

FEDAPPS = Path(fedapps.method.__file__).parent.parent


@pytest.fixture
def settings(flat_config, tiny_npz):
    """Return make(*run-config) -> settings on the tiny images."""
    return lambda *keys: config.read(flat_config(tiny_npz, *keys))


@pytest.fixture
def rehearsed(settings):
    """Return make(strategy, client, *run-config) -> a rehearsal; by default it has two stages."""

    def make(strategy=None, client=BaseClient, *keys):
        return rehearse(strategy or HeadThenBody, client, settings(*keys))

    return make


@pytest.fixture
def fedper_with(flat_config, tiny_npz, monkeypatch):
    """Return run(*run-config, **hooks): a run of FedPer with other hooks of its strategy."""
    fedper = registry.strategy_class("fedper")

    def run(*keys, **hooks):
        for name, hook in hooks.items():
            monkeypatch.setattr(fedper, name, hook, raising=False)
        return run_serial(flat_config(tiny_npz, 'strategy="fedper"', *keys), plots=False)

    return run


def test_the_toy_in_the_docstring_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))  # digits are made below it
    result = doctest.testmod(fedapps.method)
    assert result.attempted >= 5 and not result.failed


def test_what_an_author_reads_fits_on_a_few_screens():
    """For FedRep, Ditto or FedDyn: the hooks of both sides, the plan, the objective."""
    files = ("method/strategy.py", "method/client.py", "training/plan.py", "training/objective.py")
    assert sum(len((FEDAPPS / name).read_text("utf-8").splitlines()) for name in files) <= 400


def test_the_names_that_most_methods_need_come_first():
    """FedRep and Ditto import only them, and types of keys; every name serves some method."""
    names = fedapps.method.__all__
    most, others = fedapps.method.__doc__.partition("Most methods,")[2].split("The others,")
    explained = dict.fromkeys(word for word in re.findall(r"`(\w+)`", most + others))
    assert [name for name in explained if name in names] == names
    first = most + others.partition("checks of keys")[0]
    for folder in ("strategies", "clients"):
        for method in ("fedrep", "ditto"):
            own = vars(importlib.import_module(f"{folder}.{method}"))
            assert [n for n in names if n in own and f"`{n}`" not in first] == []
    root = FEDAPPS.parent
    files = [*root.glob("docs/*.md"), *root.glob("strategies/*.py"), *root.glob("clients/*.py")]
    used = {word for path in files for word in re.findall(r"\w+", path.read_text("utf-8"))}
    assert set(names) <= used


@pytest.mark.parametrize("client", [0, 2])
def test_an_impossible_plan_ends_the_run_at_once(settings, client, monkeypatch):
    """Whichever client has it, in the last round as in the first."""
    space = Workspace(settings('strategy="fedper" num-clients=3'))
    strategy = registry.strategy_class("fedper")(space)
    Rounds(strategy)
    good, last = type(strategy).plan, space.settings.num_rounds

    def plan(self, round_, number):
        made = good(self, round_, number)
        wrong = {"layers": ("conv1", "fc:norms")}
        stages = tuple(msgspec.structs.replace(stage, **wrong) for stage in made.stages)
        odd = (round_, number) == (last, client)
        return msgspec.structs.replace(made, stages=stages) if odd else made

    monkeypatch.setattr(type(strategy), "plan", plan)
    with pytest.raises(RunError, match="fc:norms"):
        Rounds(strategy)


def test_flowers_fit_and_evaluate_are_the_rounds_of_a_client(settings):
    """A list of arrays in the order of the plan goes in, the same numbers come out."""
    space = Workspace(settings('strategy="fedper"'))
    strategy = registry.strategy_class("fedper")(space)

    def client():
        return registry.client_class("fedper")(space, 1, {})

    plan = strategy.plan(1, 1)
    received = strategy.download(1, 1, plan)
    message = {"plan": msgspec.json.encode(plan).decode()}
    arrays, size, metrics = client().fit([received[k] for k in plan.down(space.layout)], message)
    update = client().train_round(plan, received)
    assert size == update.num_examples and metrics == update.metrics
    for name, array in zip(plan.up(space.layout), arrays, strict=True):
        assert np.array_equal(array, update.arrays[name])
    plan = strategy.evaluation_plan(1, 1)
    message = {"plan": msgspec.json.encode(plan).decode()}
    loss, _, metrics = client().evaluate([received[k] for k in plan.down(space.layout)], message)
    scored = client().evaluate_round(plan, received)
    assert (loss, metrics) == (scored.metrics["loss"], scored.metrics)


def test_a_rehearsal_is_a_run(settings, tiny_npz, serial_run, read_model):
    """Without messages, checks and files the server ends with the same model."""
    options = 'strategy="ditto" num-rounds=3'
    folder = serial_run(tiny_npz, options)
    made = settings(options)
    run = rehearse(registry.strategy_class("ditto"), registry.client_class("ditto"), made)
    run.rounds(3)
    for key, array in read_model(folder).items():
        assert np.array_equal(array, run.strategy.arrays[key])


def test_a_rehearsed_client_gets_what_would_travel(rehearsed):
    """A run packs everything as float32, so does a rehearsal: of a float64 state, too."""
    seen = []

    class Double(HeadThenBody):
        def download(self, round_, client, plan):
            return {k: v.astype(np.float64) for k, v in super().download(0, client, plan).items()}

    class Watching(BaseClient):
        def before_training(self, plan):
            seen.extend(array.dtype for array in self.received.values())
            return super().before_training(plan)

    rehearsed(Double, Watching).rounds(1)
    assert seen and set(seen) == {np.dtype(np.float32)}


@pytest.mark.parametrize("whose", ["received", "workspace.initial"])
def test_no_client_can_change_the_models_of_others(settings, whose):
    """What it received would be the server's in a rehearsal; the initial one is that of a process.

    In a run the first is a view of the message.
    """

    class Careless(BaseClient):
        def before_training(self, plan):
            for array in attrgetter(whose)(self).values():
                array += 1
            return Costs()

    made = settings()
    run = rehearse(HeadThenBody, Careless, made)
    resident = run.strategy.workspace.resident
    fingerprint = resident.fingerprint
    with pytest.raises(ValueError, match="read-only"):
        run.rounds(1)
    assert dataclasses.replace(resident).fingerprint == fingerprint  # computed again
    initial = Workspace(made).initial
    assert all(np.array_equal(run.strategy.arrays[key], initial[key]) for key in initial)


@pytest.mark.parametrize("whose", ["the model", "further arrays", "what a client sent last"])
def test_no_download_can_change_what_the_server_has(settings, whose):
    """Halved for each client and each evaluation, the model would depend on `evaluate-every`."""

    class Halving(Mixing):
        def setup(self):
            super().setup()
            self.state["c/now"] = np.ones(2, np.float32)

        def plan(self, round_, client):
            return replace(super().plan(round_, client), receives={"c/now": (2,)})

        def download(self, round_, client, plan):
            found = BaseStrategy.download(self, round_, client, plan)
            last = self.last_of(client, self.mixed_keys)
            parts = {"further arrays": {"c/now": found["c/now"]}, "what a client sent last": last}
            for array in parts.get(whose, found).values():
                array *= 0.5
            return found

    run = rehearse(Halving, BaseClient, settings())
    before = {key: value.copy() for key, value in run.strategy.state.items()}
    with pytest.raises(ValueError, match="read-only"):
        run.rounds(1)
    assert all(np.array_equal(run.strategy.state[key], before[key]) for key in before)
    initial = run.strategy.workspace.initial
    assert all(np.array_equal(run.strategy.arrays[key], initial[key]) for key in initial)


def test_all_clients_get_the_same_arrays_until_these_change(settings):
    """By that a message knows what to hold once, and a round what it has packed already."""
    strategy = HeadThenBody(Workspace(settings()))
    whole = np.zeros((3, 2), np.float32)
    strategy.state |= {"c/row": whole[1], "c/double": np.zeros(2)}
    names = ("c/row", "c/double")
    plan = replace(strategy.plan(1, 0), receives=dict.fromkeys(names, (2,)))
    first, second = (strategy.download(1, client, plan) for client in (0, 1))
    assert [name for name in first if first[name] is not second[name]] == ["c/double"]
    strategy.state["c/double"] += 1  # in place, as ever
    strategy.state["c/row"] = whole[2]
    key = next(iter(strategy.arrays))
    strategy.arrays[key] = strategy.arrays[key] + 1
    third = strategy.download(1, 1, plan)
    assert [name for name in first if first[name] is not third[name]] == [key, *names]
    assert third["c/double"].tolist() == [1, 1] and np.array_equal(third[key], first[key] + 1)


@pytest.mark.filterwarnings("error")
def test_what_a_client_remembers_does_not_change_with_its_source(settings):
    """In a rehearsal what was received is the server's own array, in a run a view of a message."""

    class Counting(HeadThenBody):
        def setup(self):
            self.state["c/now"] = np.zeros(1, np.float32)

        def plan(self, round_, client):
            return replace(super().plan(round_, client), receives={"c/now": (1,)})

        def download(self, round_, client, plan):
            more = {name: self.state[name] for name in plan.receives}
            return super().download(round_, client, plan) | more

        def aggregate(self, round_, updates):
            self.state["c/now"] += 1  # in place
            return super().aggregate(round_, updates)

    class Remembering(BaseClient):
        def before_training(self, plan):
            own = np.full(1, 5, np.float32)
            self.remember("kept/", self.received | {"own": own, "number": np.float32(7)})
            own += 1
            return Costs()

    made = settings("fraction-train=1.0")
    run = rehearse(Counting, Remembering, made)
    run.rounds(1)
    kept = run.make(0).kept("kept/")
    assert (kept["c/now"], kept["own"], kept["number"]) == (0, 5, 7)
    for key, value in Workspace(made).initial.items():
        assert np.array_equal(kept[key], value)


def test_a_rehearsed_evaluation_keeps_nothing(settings):
    """Also what a hook changes in place: a run reads the state from disk each time."""
    seen = []

    class Counting(BaseClient):
        def after_training(self, plan):
            self.remember("count/", {"x": np.zeros(1, np.float32)})
            return Costs()

        def extra_scores(self):
            count = self.kept("count/")["x"]
            count += 1
            seen.append(float(count[0]))
            return {}

    run = rehearse(HeadThenBody, Counting, settings("fraction-train=1.0"))
    run.rounds(1)
    run.evaluate(0)
    run.evaluate(0)
    assert seen == [1.0, 1.0]


def test_a_figure_takes_no_value_of_a_reply(settings):
    """One that is declared under such a name is refused; here, nothing is."""

    class Careless(BaseClient):
        def extra_scores(self):
            return {"loss": -1.0, "finetune_macs": -1, "initial_right": [-1] * 3, "own": -1.0}

    run, careless = (
        rehearse(HeadThenBody, client, settings("fraction-train=1.0")).evaluate(0)
        for client in (BaseClient, Careless)
    )
    assert careless == run | {"own": -1.0}


def test_a_rehearsed_strategy_cannot_change_what_clients_sent(rehearsed):
    class Careless(HeadThenBody):
        def aggregate(self, round_, updates):
            for update in updates:
                for array in (*update.arrays.values(), *update.extras.values()):
                    array *= 2
            return {}

    run = rehearsed(Careless)
    with pytest.raises(ValueError, match="read-only"):
        run.rounds(1)


@pytest.mark.parametrize("engine", ["rehearsal", "run"])
def test_a_second_loop_over_the_updates_is_refused(engine, rehearsed, fedper_with):
    """It would find nothing: here the server's control variate would silently stay zero."""

    def aggregate(self, round_, updates):
        means = BaseStrategy.aggregate(self, round_, updates)
        self.state["c"] = sum(update.weight for update in updates)
        return means

    with pytest.raises(RuntimeError, match=r"^the updates can be read only once: .*list\(updates"):
        if engine == "rehearsal":
            rehearsed(type("Twice", (HeadThenBody,), {"aggregate": aggregate})).rounds(1)
        else:
            fedper_with(aggregate=aggregate)


def test_a_misspelt_hook_is_named(settings, capsys):
    """Nothing would call it, and the method would silently be another one."""

    class Misspelt(HeadThenBody):
        def agregate(self, round_, updates):
            return {}

        phases = ("one", "two")

        def plans(self):
            return []

        def selects(self, round_):
            """A plural, which the method does not use."""

        @property
        def selected(self):
            return [plan for plan in self.plans()]

        def train_head(self):
            """Like a tool, which is no hook."""

    Rounds(Misspelt(Workspace(settings())))
    told = "warning: Misspelt.{} is not a hook, did you mean {}?\n"
    lines = told.format("agregate", "aggregate") + told.format("selects", "select")
    assert capsys.readouterr().out == lines


def test_a_helper_that_the_file_uses_is_no_misspelt_hook():
    found = [*misspelt(Helped, BaseStrategy, StrategyHooks, Conversation)]
    assert found == [
        ("aggregates", "aggregate"), ("questions", "question"), ("selects", "select"),
    ]  # fmt: skip


def test_a_class_whose_module_is_gone_has_no_files_that_use_a_name(tmp_path):
    """As that of a script that another one has run."""
    text = "from strategies.fedavg import FedAvg\nclass Own(FedAvg):\n    def selects(self): 0\n"
    (tmp_path / "own.py").write_text(text)
    made = runpy.run_path(str(tmp_path / "own.py"), run_name="gone")["Own"]
    assert "gone" not in sys.modules
    found = [*misspelt(made, BaseStrategy, StrategyHooks, Conversation)]
    assert found == [("selects", "select")]


@pytest.mark.parametrize("name", registry.names())
def test_no_method_of_ours_has_a_misspelt_hook(name):
    strategy, client = registry.strategy_class(name), registry.client_class(name)
    assert [*misspelt(strategy, BaseStrategy, StrategyHooks, Conversation)] == []
    assert [*misspelt(client, BaseClient, ClientHooks)] == []


@pytest.mark.parametrize("name", ["state", "arrays"])
def test_a_strategy_keeps_its_dictionaries(settings, name):
    """Differential privacy counts its releases in the same dict, which checkpoints save."""
    strategy = HeadThenBody(Workspace(settings()))
    before = getattr(strategy, name)
    with pytest.raises(AttributeError, match=rf"^self.{name} cannot be replaced; use self.{name}"):
        setattr(strategy, name, {})
    strategy.state |= {"one": np.ones(1)}
    strategy.arrays |= {}
    assert getattr(strategy, name) is before and "one" in strategy.state


@pytest.mark.parametrize("name, instead", [
    ("state", r"keep arrays with self\.remember, or use another name"),
    ("parts", "use another name"),
])  # fmt: skip
def test_a_client_keeps_its_dictionaries(settings, name, instead):
    """One that was replaced has forgotten what the round had remembered, and its parts."""

    class Counting(BaseClient):
        def before_training(self, plan):
            self.remember("mine/", {"rounds": np.ones(1)})
            setattr(self, name, {})
            return Costs()

    run = rehearse(HeadThenBody, Counting, settings())
    with pytest.raises(AttributeError, match=f"^self.{name} cannot be replaced; {instead}$"):
        run.rounds(1)


def test_a_rehearsed_round_without_clients_has_no_aggregation(rehearsed):
    class Nobody(HeadThenBody):
        def select(self, round_):
            return []

        def aggregate(self, round_, updates):
            return dict(next(updates).arrays)

    run = rehearsed(Nobody)
    run.rounds(1)
    assert Workspace(run.strategy.settings).initial.keys() == run.strategy.arrays.keys()


def test_a_client_says_which_model_its_last_local_one_is(settings):
    class Initial(registry.client_class("fedavg")):
        def last_local(self):
            return self.workspace.initial

    made = settings('strategy="fedavg" score-last=true fraction-train=1')
    run = rehearse(registry.strategy_class("fedavg"), Initial, made)
    run.rounds(2)
    scored = run.evaluate(client=0)
    client = run.make(0)
    put(client.model, client.workspace.initial)
    images, labels = client.test_data
    right = (client.predict(images).argmax(1) == labels).double().mean().item()
    assert scored["last_local"] == right != scored["accuracy_initial"]


class HeadThenBody(BaseStrategy):
    """Two stages on different layers, as in FedRep."""

    def plan(self, round_, client):
        stages = (self.stage(round_, self.layout.head, 1), self.stage(round_, self.layout.body, 1))
        return self.exchange(round_, self.layout.names, *stages)


def decorated(function):
    return wraps(function)(lambda self: function(self))


class Helped(HeadThenBody):
    """Longer names than those of hooks, each used in another way; but three are not."""

    def selected(self):
        return [0]

    def aggregated(self):
        return {}

    @staticmethod
    def phased():
        return ""

    def downloaded(self):
        return {}

    def screened(self):
        return []

    @cached_property
    def first(self):
        return self.selected()[0]

    @property
    def mean(self):
        return {}

    @mean.setter
    def mean(self, value):
        self.aggregated().update(value)

    @decorated
    def last(self):
        return self.phased()

    @staticmethod
    def selects(round_):
        """Only looks like a helper."""

    @classmethod
    def aggregates(cls, updates):
        """So does this one."""

    @decorated
    def questions(self):
        """And this."""

    class Phases:
        """No function."""

    phases = Phases


class HelpedMore(Helped):
    def third(self):
        return self.screened()


def of_the_module(strategy):
    return strategy.downloaded()


class Curious(BaseClient):
    """Looks at the received model as an author may: its gradients, its mode, its counters."""

    seen: ClassVar[list] = []

    def before_training(self, plan):
        images, labels = self.train_data
        cross_entropy(self.predict(images), labels).backward()
        numbers = {key: value.sum().item() for key, value in self.model.state_dict().items()}
        asking = {key: p.grad.norm().item() for key, p in self.model.named_parameters()}
        self.seen.append((self.client, numbers, asking, self.model.training))
        return Costs()


def test_hooks_find_the_model_alike_whoever_had_it_before(settings):
    """Of a cumulative mean (`momentum=None`), what a client computes rests on a counter too."""
    made = settings('model="lenet5" fraction-train=1')
    seen = {}
    for order in ((0, 1), (1, 0)):
        run = rehearse(HeadThenBody, Curious, made)
        for module in run.strategy.workspace.model.modules():
            if isinstance(module, BatchNorm2d):
                module.momentum = None
        Curious.seen = []
        for client in order:
            update = run.train(client, run.strategy.plan(1, client))
            (_, *found) = Curious.seen.pop()
            seen.setdefault(client, []).append((found, update.arrays))
    for first, second in seen.values():
        assert first[0] == second[0] and not first[0][2], "in eval mode"
        assert all(np.array_equal(first[1][key], second[1][key]) for key in first[1])


class Forgetful(BaseClient):
    """What a client has set on itself, and what it has remembered, whenever it is asked."""

    seen: ClassVar[list] = []

    def before_training(self, plan):
        self.seen.append(("before", getattr(self, "rounds", None)))
        self.rounds = 1
        return Costs()

    def after_training(self, plan):
        rounds = self.kept("mine/").get("rounds", np.zeros(1)) + 1
        self.remember("mine/", {"rounds": rounds})
        self.seen.append(("after", self.rounds))
        return Costs()

    def before_scoring(self, plan):
        self.seen.append(("score", getattr(self, "rounds", None)))
        self.remember("mine/", {"rounds": self.kept("mine/")["rounds"] + 100})
        return Costs()


def test_a_client_object_lives_for_one_round_and_its_state_for_all(settings):
    """As the page of hooks says, in the same lines."""
    run = rehearse(HeadThenBody, Forgetful, settings("fraction-train=1"))
    for round_ in (1, 2):
        run.train(0, run.strategy.plan(round_, 0))
        run.evaluate(client=0)
    assert Forgetful.seen == [("before", None), ("after", 1), ("score", None)] * 2
    assert run.clients[0]["mine/rounds"].tolist() == [2]


def test_another_methods_strategy_knows_the_devices_that_are_there(flat_config):
    """Plans may depend on how many samples one has, and who is there changes with each round."""

    class Wrapped(registry.strategy_class("fedavg")):
        def setup(self):
            self.base = self.other("fedseq").base  # another method's other method

    flat = flat_config('dataset="device" input-shape="1,8,8" num-classes=3 num-clients=4')
    rounds = Rounds(Wrapped(Workspace(config.read(flat))))
    for there in ({1: 30, 3: 17}, {0: 5, 3: 17}):
        bound = {c: Bound(100 + c, {"train": count}) for c, count in there.items()}
        rounds._meet(Fleet([100 + c for c in there], bound=bound))
        base = rounds.strategy.base
        assert {client: base.count(client, "train") for client in base.clients} == there


def test_another_methods_client_keeps_what_the_client_keeps(settings):
    """Also on a device that begins a run with the state of an earlier one."""

    class Both(registry.client_class("fedavg")):
        def setup(self):
            self.base = self.other("fedper")

    space = Workspace(settings())
    names = "model/fc2.fc.bias", "norms/fc2/90-batch-5", "last/fc2.fc.bias"
    earlier = {name: torch.ones(1) for name in names}
    client = Both(space, 0, earlier)
    local.begin(client)
    client.remember("more/", {"x": np.zeros(1, np.float32)})
    assert [*client.base.state] == [*client.state] == ["model/fc2.fc.bias", "more/x"]


@pytest.mark.parametrize("hook", ["before_training", "after_training", "before_scoring"])
def test_a_hook_that_forgets_its_cost_is_named(rehearsed, hook):
    """The commonest slip: a hook that does its work and returns nothing."""
    forgetful = type("Forgetful", (BaseClient,), {hook: lambda self, plan: None})
    vars(forgetful)[hook].__qualname__ = f"Forgetful.{hook}"
    run = rehearsed(client=forgetful)
    right = rf"^Forgetful\.{hook} returned None: must return what it cost as Costs, or Costs\(\)"
    with pytest.raises(TypeError, match=right):
        run.rounds(1)
        run.evaluate(client=0)


@pytest.mark.parametrize("hook", ["personalize", "adapt"])
def test_a_personalization_that_forgets_what_it_did_is_named(rehearsed, hook):
    forgetful = type("Forgetful", (BaseClient,), {hook: lambda self, plan: None})
    vars(forgetful)[hook].__qualname__ = f"Forgetful.{hook}"
    run = rehearsed(None, forgetful)
    plan = replace(run.strategy.plan(1, 0), newcomer=hook == "adapt")
    right = rf"^Forgetful\.{hook} returned None: must return what it cost as TrainingStats, or"
    with pytest.raises(TypeError, match=right):
        run.make(0).evaluate_round(plan, as_sent(run.strategy.download(1, 0, plan)))


@pytest.mark.parametrize("change, told", [
    (lambda logits: logits.numpy(), "a ndarray"),
    (lambda logits: None, "a NoneType"),
    (lambda logits: logits.argmax(1), r"torch.int64 \[6\]"),
    (lambda logits: logits.argmax(1).float(), r"torch.float32 \[6\]"),
    (lambda logits: logits[1:], r"torch.float32 \[5, 3\]"),
    (lambda logits: logits.mean(), r"torch.float32 \[\]"),
])  # fmt: skip
def test_outputs_that_cannot_be_scored_are_named(rehearsed, change, told):
    """NumPy, labels, or outputs of other samples: torch's own words name no hook."""

    class Odd(BaseClient):
        def predict(self, inputs):
            return change(super().predict(inputs))

    run = rehearsed(None, Odd)
    right = rf"^predict \(or what it runs\) returned {told}: must return a float .* \[6, classes\]"
    with pytest.raises(TypeError, match=right):
        run.evaluate(client=0)


def test_a_server_that_forgets_its_cost_is_named(rehearsed, fedper_with):
    def after_round(self, round_):
        self.state["seen"] = np.zeros(1)

    right = r"after_round returned None: must return what it cost as TrainingStats, or"
    with pytest.raises(TypeError, match=right):
        rehearsed(type("Forgetful", (HeadThenBody,), {"after_round": after_round})).rounds(1)
    with pytest.raises(TypeError, match=right):
        fedper_with(after_round=after_round)


@pytest.mark.parametrize(("method", "base"), [("fedamp", "Mixing"), ("pfedsim", "WarmUp")])
def test_a_setup_that_forgets_that_of_its_base_is_named(serial_run, monkeypatch, method, base):
    cls = registry.strategy_class(method)
    monkeypatch.setattr(cls, "setup", lambda self: None, raising=False)
    line = rf"^{cls.__name__}\.setup does not call {base}\.setup\(self\), .*, which {base} needs$"
    with pytest.raises(RunError, match=line):
        serial_run(f'strategy="{method}"')


@pytest.mark.parametrize("forgetful", ["Mine", "FedFomo"])
def test_the_class_whose_setup_forgets_is_named(serial_run, monkeypatch, forgetful):
    """It can be one that is made from a method which does call that of its base."""
    cls = registry.strategy_class("fedfomo")
    mine = type("Mine", (cls,), {"setup": lambda self: cls.setup(self)})
    monkeypatch.setattr(mine if forgetful == "Mine" else cls, "setup", lambda self: None)
    monkeypatch.setattr(registry, "strategy_class", lambda name: mine)
    with pytest.raises(RunError, match=rf"^{forgetful}\.setup does not call Mixing\.setup"):
        serial_run('strategy="fedfomo" validation-fraction=0.2')


class Sending(BaseStrategy):
    """Its plan has an array that clients send."""

    def plan(self, round_, client):
        return replace(self.exchange(round_, self.layout.names), sends={"c/one": (3,)})


class Giving(BaseClient):
    """It sends such an array."""

    given = np.zeros(3)

    def after_training(self, plan):
        self.sends["c/one"] = self.given
        return Costs()


class GivingMore(Giving):
    """It sends a row for each of four samples."""

    given = torch.zeros(4, 3)


@pytest.mark.parametrize(("kinds", "line"), [
    ((Sending, BaseClient), r"^the plan sends c/one, but no hook has put it into"),
    ((None, Giving), r"^self\.sends has c/one, which the plan does not send$"),
    ((Sending, GivingMore), r'^self\.sends\["c/one"\] is \(4, 3\), but the plan sends \(3,\)$'),
])  # fmt: skip
def test_an_array_that_the_plan_sends_and_a_hook_gives_is_the_same(kinds, line, rehearsed):
    with pytest.raises(ValueError, match=line):
        rehearsed(*kinds).rounds(1)


@pytest.mark.parametrize("prefix", ["model/", "last/", "norms/", "model/mine/"])
def test_what_others_keep_is_not_written_over(rehearsed, prefix):
    run = rehearsed()
    with pytest.raises(ValueError, match=rf'^remember\("{prefix}"\): is taken; use a prefix of'):
        run.make(0).remember(prefix, {"a": np.zeros(1)})
    assert not run.make(0).state


@pytest.mark.parametrize(("own", "anchored", "mu"), [
    (None, False, 0.0), (None, True, 0.5), (0.25, False, 0.25), (0.25, True, 0.25),
])  # fmt: skip
def test_the_server_trains_a_part_of_its_model_on_features(settings, own, anchored, mu):
    """Steps on all samples, of a loss of its own, beside the same in NumPy.

    The run's prox-mu pulls only to an anchor; one of the stage's own also to the model before.
    """
    z, y = np.random.default_rng(0).normal(size=(8, 512)), np.arange(8) % 3

    class OnFeatures(HeadThenBody):
        def after_round(self, round_):
            names, head = self.layout.names, self.layout.head
            stage = replace(self.stage(round_, head, epochs=2), lr=0.1, momentum=0.0)
            stage = stage if own is None else replace(stage, prox_mu=own)
            ones = {key: torch.ones(self.arrays[key].shape) for key in self.layout.keys_of(head)}
            doubled = Objective(
                lambda outputs, targets: 2 * cross_entropy(outputs, targets),
                forward=lambda model, x, layers: fedapps.method.run(model, x, head),
                start=names[0],  # the inputs are features, so nothing runs before
                anchor=ones if anchored else None,
            )
            self.before = {key: self.arrays[key].copy() for key in self.layout.keys_of(names)}
            samples = torch.tensor(z, dtype=torch.float32), torch.tensor(y)
            return self.train_here(round_, samples, stage, doubled)

    made = rehearse(OnFeatures, BaseClient, settings("batch-size=8 prox-mu=0.5"))
    made.rounds(1)
    before, now, head = made.strategy.before, made.strategy.arrays, made.layout.head
    weight, bias = start = [before[key].astype(float) for key in made.layout.keys_of(head)]
    to_weight, to_bias = (1.0, 1.0) if anchored else start
    for _ in range(2):
        odds = np.exp(z @ weight.T + bias)
        apart = odds / odds.sum(1, keepdims=True) - np.eye(len(bias))[y]
        weight = weight - 0.1 * (2 * apart.T @ z / len(y) + mu * (weight - to_weight))
        bias = bias - 0.1 * (2 * apart.mean(0) + mu * (bias - to_bias))
    for key, expected in zip(made.layout.keys_of(head), (weight, bias), strict=True):
        np.testing.assert_allclose(now[key], expected, atol=1e-6)
    for key in made.layout.keys_of(made.layout.body):
        np.testing.assert_array_equal(now[key], before[key])


def test_a_model_of_another_kind_is_that_of_a_run_with_it(settings):
    """Of the same samples; its weights are a function of its kind and the seed."""
    space = Workspace(settings('model="cnn" adapter-rank=2 seed=4'))
    for given, options in (
        ({"model": "lenet5"}, 'model="lenet5" seed=4'),
        ({"seed": 9}, 'model="cnn" seed=9'),
        ({}, 'model="cnn" seed=4'),
    ):
        own = Workspace(settings(options))
        other = space.another(**given)
        assert other.initial.keys() == own.initial.keys() and other.layout == own.layout
        for key, value in own.initial.items():
            np.testing.assert_array_equal(other.initial[key], value)
            np.testing.assert_array_equal(other.module.state_dict()[key].numpy(), value)
        names = own.layout.names
        assert other.profile.forward_macs(names) == own.trainer.profile.forward_macs(names)
    with pytest.raises(RunError, match="unknown model 'lenet': nearest is 'lenet5'"):
        space.another("lenet")


def test_a_client_without_an_objective_for_finetuning_is_told(rehearsed):
    class Training(BaseClient):
        def objective(self, phase):
            return super().objective(phase) if phase == "train" else None

    run = rehearsed(client=Training)
    run.rounds(1)
    with pytest.raises(TypeError, match=r"the objective of finetune is None: must be an Objective"):
        run.evaluate(client=0)


@pytest.mark.parametrize(("hook", "returned", "error", "line"), [
    ("plan", None, TypeError, r"^plan returned None: must return a Plan$"),
    ("aggregate", ({}, 3.0), TypeError, r"^round 1: aggregate returned a tuple: must return a"),
    ("download", None, TypeError, r"^round 1: download returned None: must return a dict"),
    ("download", {}, RunError, r"^round 1: download left out conv1\S*, which the plan has$"),
    ("select", None, TypeError, "^round 1: select returned None: must return a list of clients$"),
    ("evaluation_plan", None, TypeError, "^evaluation_plan returned None: must return a Plan$"),
    ("select", [0, 9], RunError, "^round 1: select gave client 9, which is not there$"),
    ("select", [2, 0, 2], RunError, r"^round 1: select gave a client twice: \[2, 0, 2\]$"),
])  # fmt: skip
def test_a_wrong_result_is_named(hook, returned, error, line, fedper_with):
    with pytest.raises(error, match=line):
        fedper_with(**{hook: lambda *_: returned})


FEDPER = registry.strategy_class("fedper")
PLAN, DOWNLOAD = FEDPER.plan, FEDPER.download
ONE = r"must be a Stage; pass each one as an argument of its own"


@pytest.mark.parametrize(("plan", "line"), [
    (lambda s, names, stage: s.exchange(1, names, [stage]), f"^exchange: a list {ONE}$"),
    (lambda s, names, stage: s.exchange(1, stage, names), f"^exchange: a tuple {ONE}$"),
    (lambda s, names, stage: s.exchange(1, stage), "^exchange: a Stage in place of the slice"),
    (lambda s, names, stage: Plan(round=1, download=names, stages=([stage],), upload=names),
     r"^plan returned stages = \(\[Stage\(.*\],\): must be a tuple of Stages$"),
    (lambda s, names, stage: Plan(round=1, download=names, stages=stage, upload=names),
     r"^plan returned stages = Stage\(.*\): must be a tuple of Stages$"),
])  # fmt: skip
def test_a_plan_with_the_wrong_things_is_named(fedper_with, plan, line):
    """Where the author's own line is in the traceback, if there is a call to make."""
    with pytest.raises(TypeError, match=line):
        fedper_with(
            plan=lambda self, r, c: plan(self, self.layout.names, self.stage(r, self.layout.names))
        )


UNSENT = " returned a plan that cannot be sent: "
SLICE = r'must be a tuple of layers, such as \("fc1",\)$'


@pytest.mark.parametrize(("change", "line"), [
    ({"epochs": -1}, r": stages\[0\]\.epochs = -1: must be an int >= 0$"),
    ({"epochs": 1.5}, r": stages\[0\]\.epochs = 1\.5: must be an int$"),
    ({"lr": -0.1}, r": stages\[0\]\.lr = -0\.1: must be a float >= 0\.0$"),
    ({"lr": float("nan")}, r": stages\[0\]\.lr = nan: must be a finite float$"),
    ({"layers": "fc2"}, rf": stages\[0\]\.layers = 'fc2': {SLICE}"),
    ({"layers": ("fc9",)}, r': stages\[0\]\.layers: layer "fc9": the model has conv1, .*fc2$'),
    ({"lr": np.float32(0.1)}, UNSENT + "Encoding objects of type numpy.float32 is unsupported$"),
])  # fmt: skip
@pytest.mark.parametrize("hook", ["plan", "evaluation_plan (or finetuning)", "newcomer_plan"])
def test_a_stage_that_cannot_be_done_is_named_before_round_1(fedper_with, hook, change, line):
    def changed(self, round_, client):
        stage = replace(self.stage(round_, self.layout.names), **change)
        return Plan(round=round_, download=self.layout.names, stages=(stage,), upload=())

    with pytest.raises(RunError, match=f"^{re.escape(hook)}{line}"):
        fedper_with('unseen-clients="0"', **{hook.partition(" ")[0]: changed})


@pytest.mark.parametrize(("sends", "line"), [
    ({"a/b": 3}, r": sends = {'a/b': 3}: must be a dict of shapes, such as {\"a/b\": \(10, 64\)}$"),
    ({"a/b": (3, 0.5)}, r": sends = {'a/b': \(3, 0\.5\)}: must be a dict of shapes, such as "),
    ({"ab": (3,)}, UNSENT + r"extra array ab \(3,\): needs a / in its name and sizes >= 0$"),
])  # fmt: skip
def test_a_further_array_that_cannot_be_sent_is_named_before_round_1(fedper_with, sends, line):
    with pytest.raises(RunError, match=f"^plan{line}"):
        fedper_with(plan=lambda *args: replace(PLAN(*args), sends=sends))


@pytest.mark.parametrize("field", ["download", "upload", "also_keep"])
@pytest.mark.parametrize(("layers", "line"), [
    ("fc2", f" = 'fc2': {SLICE}"), ((2,), rf" = \(2,\): {SLICE}"),
    (("fc9",), ': layer "fc9": the model has conv1, .*fc2$'),
])  # fmt: skip
def test_a_slice_that_is_none_is_named_with_its_field(fedper_with, field, layers, line):
    with pytest.raises(RunError, match=f"^plan: {field}{line}"):
        fedper_with(plan=lambda *args: replace(PLAN(*args), **{field: layers}))


def test_finetuning_and_evaluations_with_the_wrong_things_are_named(fedper_with):
    """A stage in place of a tuple; a plan of a round, which uploads."""
    line = r"^evaluation_plan \(or finetuning\) returned "
    with pytest.raises(TypeError, match=line + r"stages = Stage\(.*\): must be a tuple of Stages$"):
        fedper_with(finetuning=lambda self, r: self.stage(r, self.layout.head))
    uploads = r"a plan that uploads: use upload=\(\), and no sends$"
    with pytest.raises(RunError, match=line + uploads):
        fedper_with(evaluation_plan=PLAN)


LOSS = r"^loss returned {}: must return a tensor of one value, with its gradient$"
KEYS = r"^keeps returned {}: must return keys of the model, such as self.layout.keys_of\("
FIGURES = r"^extra_scores returned {}: must return a dict of floats, such as "


@pytest.mark.parametrize(("hook", "returned", "line"), [
    ("loss", None, LOSS.format("None")),
    ("loss", 0.5, LOSS.format("a float")),
    ("loss", torch.zeros(4, requires_grad=True), LOSS.format(r"a Tensor \[4\]")),
    ("loss", torch.tensor(0.5), LOSS.format(r"a Tensor \[\]")),
    ("keeps", None, KEYS.format("None")),
    ("keeps", ("fc2",), KEYS.format("fc2")),
    ("extra_scores", None, FIGURES.format("None")),
    ("extra_scores", 0.5, FIGURES.format("a float")),
    ("extra_scores", {"a": 1, "own": torch.tensor(0.5)}, FIGURES.format(r"own = a Tensor \[\]")),
    ("extra_scores", {"own": "high"}, FIGURES.format("own = a str")),
    ("module", None, r"^module returned None: must return an nn.Module, such as self.model$"),
])  # fmt: skip
def test_a_client_that_returns_something_else_is_named(rehearsed, hook, returned, line):
    run = rehearsed(client=type("Odd", (BaseClient,), {hook: lambda *_: returned}))
    with pytest.raises((TypeError, ValueError), match=line):
        run.rounds(1)
        run.evaluate(client=0)


@pytest.mark.parametrize(("change", "line"), [
    (lambda arrays: arrays.update({"new.weight": np.zeros(3)}),
     r"has new.weight \(3,\), but the model has no such key"),
    (lambda arrays: arrays.update({"fc2.fc.bias": np.zeros((3, 1))}),
     r"has fc2.fc.bias \(3, 1\), but the model has shape \(3,\)"),
    (lambda arrays: arrays.update({"fc2.fc.bias": np.full(3, np.nan)}),
     "has fc2.fc.bias, which is not finite"),
    (lambda arrays: arrays.pop("fc2.fc.bias"), "has no fc2.fc.bias, but the model has"),
], ids=["key", "shape", "finite", "missing"])  # fmt: skip
@pytest.mark.parametrize("hook", ["aggregate", "after_round"])
def test_what_a_hook_leaves_in_the_servers_model_is_named(fedper_with, hook, change, line):
    """Otherwise the run ended, and could be neither resumed nor opened, or clients were blamed."""
    own = getattr(FEDPER, hook)

    def changed(self, *arguments):
        found = own(self, *arguments)
        change(self.arrays)
        return {} if hook == "aggregate" else found

    with pytest.raises(RunError, match=rf"^round 1: self.arrays {line}$"):
        fedper_with(**{hook: changed})


@pytest.mark.parametrize(("hook", "when"), [
    ("setup", ""), ("aggregate", "round 1: "), ("after_round", "round 1: "),
])  # fmt: skip
def test_a_state_that_no_checkpoint_could_hold_is_named_at_once(fedper_with, hook, when, capsys):
    """Not after the rounds until a checkpoint is due, of which there is none here."""
    own = getattr(FEDPER, hook)

    def changed(self, *arguments):
        self.state["n"] = 3
        return own(self, *arguments)

    with pytest.raises(RunError, match=rf'^{when}self\.state\["n"\] is an int: must be a NumPy'):
        fedper_with("checkpoint-every=0", **{hook: changed})
    assert "round 1/" not in capsys.readouterr().out


def test_the_servers_model_stays_float32(fedper_with):
    def after_round(self, round_):
        self.arrays.update({key: value.astype(float) for key, value in self.arrays.items()})
        return TrainingStats()

    model = load_file(fedper_with(after_round=after_round) / "model.safetensors")
    assert {value.dtype for value in model.values()} == {np.dtype(np.float32)}


def test_a_newcomer_without_a_plan_is_named(fedper_with):
    with pytest.raises(TypeError, match=r"^newcomer_plan returned None: must return a Plan$"):
        fedper_with('unseen-clients="0"', newcomer_plan=lambda *_: None)


def with_nan(*args):
    return {k: np.where(v == v.max(), np.nan, v) for k, v in DOWNLOAD(*args).items()}


@pytest.mark.parametrize(("hooks", "line"), [
    ({"plan": lambda self, r, c: self.exchange(r, self.layout.body),
      "download": lambda self, *_: dict(self.arrays)}, r"gave fc2\S*, which the plan does not"),
    ({"download": with_nan}, r"of fedper gave conv1\S+, which is not finite$"),
    # such as the whole array of which a client should get its row; else each client would fail
    ({"plan": lambda *args: replace(PLAN(*args), receives={"own/v": (3,)}),
      "download": lambda *args: DOWNLOAD(*args) | {"own/v": np.zeros((6, 3), np.float32)},
      "setup": lambda self: self.state.update({"own/v": np.zeros((6, 3), np.float32)})},
     r"gave own/v \(6, 3\), but the plan \(3,\)$"),
], ids=["not in the plan", "not finite", "another shape"])  # fmt: skip
def test_a_wrong_download_is_named_on_the_server(hooks, line, fedper_with):
    with pytest.raises(RunError, match=rf"^round 1: download {line}"):
        fedper_with(**hooks)


def test_a_selection_may_be_what_numpy_draws(serial_run, tiny_npz, monkeypatch, read_csv):
    fedper = registry.strategy_class("fedper")
    monkeypatch.setattr(fedper, "select", lambda *_: np.array([1, 3]), raising=False)
    folder = serial_run(tiny_npz, 'strategy="fedper" num-rounds=1')
    assert [row["clients"] for row in read_csv(folder, "rounds.csv")] == ["2"]


@pytest.mark.parametrize(
    ("key", "model"), [("fc2.fc.bias", r"has shape \(3,\)"), ("fc9.bias", "has no such key")]
)
def test_an_aggregate_that_does_not_fit_is_told_what_would(settings, key, model):
    made = settings()
    layout = rehearse(HeadThenBody, BaseClient, made).layout
    right = rf"^round 7: aggregate gave {key} \(2,\), but the model {model}$"
    with pytest.raises(RunError, match=right):
        check_aggregate(7, {key: np.zeros(2)}, layout)


@pytest.mark.parametrize("free", [0, 1])
def test_each_stage_is_clipped_as_it_says(settings, free):
    """A step of at most lr x mu: both stages clipped stay within that, one of them does not."""
    keys = "max-norm=0.001 lr=0.1 batch-size=8 fraction-train=1 num-clients=2"
    made = settings(keys)

    class Twice(BaseStrategy):
        unclipped = ()

        def plan(self, round_, client):
            stage = self.stage(round_, self.layout.names, epochs=1)
            loose = replace(stage, clip=None)
            stages = [loose if place in self.unclipped else stage for place in (0, 1)]
            return self.exchange(round_, self.layout.names, *stages)

    def moved():
        run = rehearse(Twice, BaseClient, made)
        update = run.train(0, run.strategy.plan(1, 0))
        gaps = [update.arrays[k] - run.strategy.arrays[k] for k in update.arrays]
        return np.sqrt(sum(np.sum(gap**2) for gap in gaps)), update.metrics["batches"]

    norm, steps = moved()
    assert 0 < norm <= 1.001 * steps * 0.1 * 0.001
    Twice.unclipped = (free,)
    norm, steps = moved()
    assert norm > 2 * steps * 0.1 * 0.001


def test_a_slice_that_names_a_part_twice_has_its_keys_once(settings):
    space = Workspace(settings('model="lenet5"'))
    layout = space.layout
    twice = (*layout.body, *layout.norms_of(layout.names))
    assert layout.keys_of(twice) == layout.keys_of(layout.body)


@pytest.mark.parametrize("method", ["fedavg", "perfedavg"])
def test_a_methods_own_rate_follows_the_schedule_on_both_sides(method, settings):
    """A cosine over four rounds has come half way in the third; a newcomer's plan has none.

    Per-FedAvg's stages have a rate of its own, beta.
    """
    keys = f'strategy="{method}" num-rounds=4 lr=0.1 lr-schedule="cosine"'
    space = Workspace(settings(keys))
    strategy = registry.strategy_class(method)(space)
    client, plan = registry.client_class(method)(space, 0, {}), strategy.plan(3, 0)
    assert strategy.scheduled(0.3, 3) == client.scheduled(0.3, plan) == pytest.approx(0.15)
    assert client.scheduled(0.3, strategy.alone(plan)) == pytest.approx(0.3)


@pytest.mark.parametrize("schedule", ["constant", "step", "cosine"])
def test_a_methods_own_rate_is_lowered_as_that_of_the_stages_to_the_last_bit(schedule, settings):
    for lr in (0.1, 0.03, 0.005):
        space = Workspace(settings(f'num-rounds=7 lr={lr} lr-schedule="{schedule}"'))
        strategy = registry.strategy_class("fedavg")(space)
        client = registry.client_class("fedavg")(space, 0, {})
        for round_ in range(1, 8):
            plan = strategy.plan(round_, 0)
            for asked in (plan, strategy.alone(plan)):
                assert client.scheduled(0.3, asked) == 0.3 * asked.stages[0].lr / lr
