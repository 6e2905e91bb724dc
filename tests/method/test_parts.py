"""A client's parts: modules of its own beside the model."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fedapps import client_app, models
from fedapps.core.draws import generator
from fedapps.core.errors import RunError
from fedapps.engine.store import EARLIER_RUN
from fedapps.method import BaseClient, BaseStrategy, Costs, Objective, copied, rehearse, run
from fedapps.models.blocks import of_images
from fedapps.models.grouping import freeze_as_built

KEYS = "num-clients=3 fraction-train=1.0 local-epochs=1"


class Averaged(BaseStrategy):
    """The whole model is averaged."""

    def plan(self, round_, client):
        return self.exchange(round_, self.layout.names, self.stage(round_, self.layout.names))


class Gated(BaseClient):
    """It multiplies its logits by a gate of its own, and has a second head that stays as it is."""

    def setup(self):
        self.gate = self.part("gate/", lambda: nn.Linear(1, 10))
        self.head = self.part("head/", lambda: copied(self.model, self.layout.head))

    def of_one_run(self):
        return ("gate/",)

    def objective(self, phase):
        return Objective(forward=self.gated, parameters=tuple(self.gate.parameters()))

    def gated(self, model, x, layers):
        return run(model, x, layers) * self.gate(x.new_ones(len(x), 1))


def values(module):
    return {key: value.clone() for key, value in module.state_dict().items()}


def same(one, two):
    return one.keys() == two.keys() and all(torch.equal(one[key], two[key]) for key in one)


@pytest.fixture
def made():
    return rehearse(Averaged, Gated, KEYS)


def test_a_rehearsal_takes_keys_as_a_run_from_python_does(made):
    keys = {"num_clients": 3, "fraction-train": 1.0, "local_epochs": np.int64(1)}
    assert rehearse(Averaged, Gated, keys).strategy.settings == made.strategy.settings


@pytest.mark.parametrize(("pair", "wrong"), [
    ((Gated, Averaged), "Gated'> is no subclass of BaseStrategy; give the strategy's class, then"),
    ((Averaged, Averaged), "Averaged'> is no subclass of BaseClient; give the strategy's class"),
    (("fedavg", Gated), "'fedavg' is no subclass of BaseStrategy; give the strategy's class"),
])  # fmt: skip
def test_what_is_no_pair_of_classes_is_refused(pair, wrong):
    with pytest.raises(RunError) as caught:
        rehearse(*pair, KEYS)
    assert str(caught.value).startswith("rehearse: ") and wrong in str(caught.value)


@pytest.mark.parametrize("keys", [None, 5, ["num-clients=3"], Path("keys.toml")])
def test_what_has_no_keys_is_refused(keys):
    with pytest.raises(RunError) as caught:
        rehearse(Averaged, Gated, keys)
    told = f"rehearse: {keys!r} are no keys; give a text as for --run-config, a mapping or Settings"
    assert str(caught.value) == told


def test_new_weights_are_a_function_of_seed_and_client(made):
    """Whatever was drawn before; and who draws next does not notice."""

    def expected(seed, client):
        torch.manual_seed(int(generator(seed, "part-gate/", client).integers(2**63)))
        return values(nn.Linear(1, 10))

    found = [expected(0, 0), expected(0, 2)]
    torch.manual_seed(7)
    ahead = torch.rand(3)
    torch.manual_seed(7)
    assert same(values(made.make(0).gate), found[0]) and same(values(made.make(2).gate), found[1])
    assert torch.equal(torch.rand(3), ahead)
    assert not same(*found)
    other = rehearse(Averaged, Gated, f"{KEYS} seed=1")
    assert same(values(other.make(0).gate), expected(1, 0))


def test_a_copy_of_the_models_layers_begins_with_the_initial_values(made):
    """Not with those of whichever client was here before; and all of it can be trained."""
    space = made.strategy.workspace
    made.train(1, made.strategy.plan(1, 1))
    head = made.make(0).head
    for key, value in head.state_dict().items():
        np.testing.assert_array_equal(value, space.initial[key])
        assert (space.model.state_dict()[key] != value).any()
    space.trainer.freeze_all_but(())
    assert all(p.requires_grad for p in made.make(0).head.parameters())
    assert made.make(0).head.training and made.make(0).gate.training


def test_a_copy_counts_its_batches_from_0_whoever_was_here_before():
    """What a client keeps would otherwise depend on which process has trained whom."""

    class Copying(BaseClient):
        def setup(self):
            self.copy = self.part("copy/", lambda: copied(self.model))

    def kept(*clients):
        made = rehearse(Averaged, Copying, f'{KEYS} model="conv4"')
        for client in clients:
            copy = made.make(client).copy.state_dict()
            counts = [int(n) for key, n in copy.items() if key.endswith("num_batches_tracked")]
            assert counts and not any(counts)
            made.train(client, made.strategy.plan(1, client))
        return made.clients[clients[-1]]

    assert same(kept(1, 0), kept(0))


@pytest.mark.parametrize(("before", "width"), [(1, 1), (3, 16)], ids=["other shape", "same shape"])
def test_a_part_with_the_names_of_the_model_is_no_copy_of_it(before, width, monkeypatch):
    """Entries of an nn.Sequential are numbered, so a gate's are called like the model's."""

    def numbered(shape, classes):
        first, last = nn.Linear(torch.Size(shape).numel(), 16), nn.Linear(16, classes)
        last.bias.requires_grad_(False)
        model = nn.Sequential(nn.Flatten(), first, nn.ReLU(), last)
        freeze_as_built(model)
        return model

    class Numbered(Gated):
        def setup(self):
            gate = nn.Linear(width, 10)
            self.first = values(gate)
            others = (nn.Flatten() for _ in range(before))
            self.gate = self.part("gate/", lambda: nn.Sequential(*others, gate))

    monkeypatch.setitem(models.MODELS, "numbered", of_images(numbered))
    client = rehearse(Averaged, Numbered, f'{KEYS} model="numbered"').make(0)
    assert client.gate.state_dict().keys() <= client.model.state_dict().keys()
    assert same(values(client.gate[-1]), client.first)
    assert all(parameter.requires_grad for parameter in client.gate.parameters())


def test_a_copy_in_a_part_and_a_second_model_have_the_initial_values_of_their_own(made):
    client = made.make(0)
    space = client.workspace
    second = space.another(seed=1)
    copy = client.part("copy/", lambda: nn.ModuleDict({"a": copied(copied(client.model))}))
    other = client.part("other/", lambda: copied(second.module))
    for key, value in space.initial.items():
        np.testing.assert_array_equal(copy["a"].state_dict()[key], value)
        np.testing.assert_array_equal(other.state_dict()[key], second.initial[key])
    assert any((second.initial[key] != value).any() for key, value in space.initial.items())


def test_what_is_frozen_in_the_model_is_frozen_in_a_copy():
    client = rehearse(Averaged, BaseClient, f"{KEYS} adapter-rank=2").make(0)
    copy = client.part("copy/", lambda: copied(client.model))
    frozen = {key for key, parameter in copy.named_parameters() if not parameter.requires_grad}
    named = {key for key, _ in client.model.named_parameters()}
    assert frozen == named - client.layout.parameters != set()


def test_a_part_that_is_asked_for_again_is_the_same_one(made):
    class Asking(BaseClient):
        @property
        def gate(self):
            return self.part("gate/", lambda: nn.Linear(1, 10))

        def objective(self, phase):
            return Objective(
                forward=lambda model, x, layers: run(model, x, layers) * self.gate(x[:, 0, 0, :1]),
                parameters=tuple(self.gate.parameters()),
            )

        def after_training(self, plan):
            self.trained = values(self.gate)
            return Costs()

    made = rehearse(Averaged, Asking, KEYS)
    client = made.make(0)
    first = values(client.gate.eval())
    assert client.gate is client.gate and not client.gate.training
    made.train(0, made.strategy.plan(1, 0))
    kept = {key: made.clients[0][f"gate/{key}"] for key in first}
    assert not same(kept, first) and same(values(made.make(0).gate), kept)


@pytest.mark.parametrize("prefix", ["gate", "gate/usage", "gate/", ""])
def test_prefixes_that_overlap_with_a_parts_are_refused(prefix, made):
    """At once, and not in the next round, in which the part would find what is not its own."""
    client, told = made.make(0), f'^%s\\("{prefix}"\\): overlaps the part "gate/"; use a prefix of'
    with pytest.raises(ValueError, match=told % "remember"):
        client.remember(prefix, {"x": np.zeros(1)})
    assert not client.state
    if prefix != "gate/":
        with pytest.raises(ValueError, match=told % "part"):
            client.part(prefix, lambda: nn.Linear(1, 1))
    client.remember("gates/", {"x": np.zeros(1)})


def test_what_is_remembered_under_a_prefix_is_no_entry_of_a_part_that_comes_later(made):
    client = made.make(0)
    client.remember("late/usage/", {"x": np.zeros(1)})
    told = r'^part\("late/"\): "late/usage/x" is kept, but is no entry of this part; use a prefix'
    with pytest.raises(ValueError, match=told):
        client.part("late/", lambda: nn.Linear(1, 1))
    assert "late/" not in client.parts


def test_a_prefix_of_the_core_is_refused(made):
    client = made.make(0)
    line = r"^part\(\"model/\"\): is taken; use a prefix of your own"
    with pytest.raises(ValueError, match=line):
        client.part("model/", lambda: nn.Linear(1, 1))


def test_a_client_keeps_the_parts_of_another_methods_client():
    """Also those that the other one makes after it was made."""

    class Outer(BaseClient):
        def setup(self):
            self.inner = self.other("fedrod")
            self.mine = self.part("mine/", lambda: nn.Linear(1, 1))

        def objective(self, phase):
            return self.inner.objective(phase)

    made = rehearse(Averaged, Outer, f'{KEYS} strategy="fedavg"')
    made.train(0, made.strategy.plan(1, 0))
    parts = {key.partition("/")[0] for key in made.clients[0]}
    assert {"mine", "personal"} <= parts


def test_a_devices_next_run_begins_without_the_parts_of_one_run(made, monkeypatch):
    """Also if `setup` has made them."""
    first = values(made.make(0).gate)
    made.train(0, made.strategy.plan(1, 0))
    state = made.clients[0]
    state["head/fc2.fc.bias"] += 1
    monkeypatch.setattr(client_app.registry, "client_class", lambda name: Gated)
    request = type("Request", (), {"client": 0})
    begun = client_app._client(made.strategy.workspace, request, EARLIER_RUN, state)
    assert same(values(begun.gate), first)
    assert torch.equal(begun.head.state_dict()["fc2.fc.bias"], state["head/fc2.fc.bias"])
    goes_on = client_app._client(made.strategy.workspace, request, 1, state)
    assert not same(values(goes_on.gate), first)


def test_what_a_client_predicts_with_is_in_eval_mode_and_then_as_before(made):
    """Scores use the running statistics of a part's BatchNorm, as an exported model does."""

    class Normed(BaseClient):
        def setup(self):
            self.norm = self.part("norm/", lambda: nn.BatchNorm1d(10))

        def module(self):
            return nn.Sequential(self.model, self.norm)

    client = rehearse(Averaged, Normed, KEYS).make(0)
    client.norm.running_mean += 3
    client.norm.running_var *= 4
    x, targets = client.test_data
    with torch.no_grad():
        logits = client.model.eval()(x)
        expected = (logits - 3) / (4 + client.norm.eps) ** 0.5
        torch.testing.assert_close(client.predict(x), expected)
    right = (expected.argmax(1) == targets).double().mean().item()
    assert client.score(client.test_data).value == right
    whole = client.module()
    whole.requires_grad_(False)
    assert client.score(client.test_data, whole).value == right
    assert client.norm.training and not any(p.requires_grad for p in whole.parameters())
