"""A model of one's own: found as a file or by its path, checked, and trained like the others."""

import os
import random
import re
import shutil
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import fedapps
from fedapps import cli, models
from fedapps.core import config, registry
from fedapps.core.changes import folder_name
from fedapps.core.errors import RunError
from fedapps.data.spec import Spec, image_spec
from fedapps.device import personalized, run_models
from fedapps.device.adopting import adopt
from fedapps.engine import best, checks
from fedapps.engine.finished import FinishedRun
from fedapps.engine.rounds import Rounds
from fedapps.models import own
from fedapps.models.training_pass import check_training
from fedapps.training.workspace import Workspace
from tests.support import kinds

NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.stem = nn.Linear(inputs.size, 6)
        self.mid = nn.Linear(6, 6)
        self.fc = nn.Linear(6, outputs.shape[-1])
        self.layers = {"body": ("stem", "mid"), "head": ("fc",)}

    def forward(self, x):
        x = torch.relu(self.stem(x.flatten(1)))
        return self.fc(x + torch.relu(self.mid(x)))

def _helper(): ...

def make(inputs, outputs):
    return Net(inputs, outputs)
"""
NORMED = (
    NET.replace("self.stem(x.flatten(1))", "self.norm(self.stem(x.flatten(1)))")
    .replace("self.fc = ", "self.norm = nn.BatchNorm1d(6)\n        self.fc = ")
    .replace('"mid")', '"mid", "norm")')
)
EXPERTS = NET.replace(
    "return self.fc(x + torch.relu(self.mid(x)))",
    """few = x.sum(1) > SUM
        y = x.clone()
        y[few] = self.mid(x[few])
        return self.fc(y if few.any() else x)""",
)
PACKED = """
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

takes = "tokens"

class Net(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.embed = nn.Embedding(inputs.choices, 4)
        self.mix = nn.GRU(4, 4, batch_first=True)
        self.fc = nn.Linear(4, outputs.shape[-1])

    def forward(self, x):
        y, there = self.embed(x), x != 0
        lengths = there.sum(1).cpu()
        y = pack_padded_sequence(y, lengths, batch_first=True, enforce_sorted=False)
        return self.fc(self.mix(y)[1][-1])

def make(inputs, outputs):
    return Net(inputs, outputs)
"""
PACKED_SERIES = (
    PACKED.replace('"tokens"', '"series"')
    .replace("nn.Embedding(inputs.choices, 4)", "nn.Linear(inputs.shape[-1], 4)")
    .replace("x != 0", "(x != 0).any(-1)")
)
MASKED = """
import torch
from torch import nn

takes = "tokens"

class Net(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.embed = nn.Embedding(inputs.choices, 4)
        layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
        self.mix = nn.TransformerEncoder(layer, 1)
        self.fc = nn.Linear(4, outputs.shape[-1])

    def forward(self, x):
        there = (x != 0)[..., None]
        y = self.mix(self.embed(x), src_key_padding_mask=x == 0) * there
        return self.fc(y.sum(1) / there.sum(1))

def make(inputs, outputs):
    return Net(inputs, outputs)
"""
NO_GRADIENT = "no gradient in 130 random samples"
RUN = "num-rounds=2 fraction-train=1.0 local-epochs=1 finetune-epochs=1 num-clients=4"
INPUTS, OUTPUTS = Spec((5,)), 3


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """Write models/mine.py of an app; return write(text, name="mine") -> its path."""
    monkeypatch.setattr(own, "APP", tmp_path)
    (tmp_path / "models").mkdir()

    def write(text=NET, name="mine"):
        path = tmp_path / "models" / f"{name}.py"
        path.write_text(text)
        return path

    return write


def forwards(text):
    """A model whose forward pass does what the text says before it returns its outputs `y`."""
    return NET.replace(
        "        return self.fc(x + torch.relu(self.mid(x)))",
        f"        y = self.fc(x + torch.relu(self.mid(x)))\n        {text}\n        return y",
    )


def counting(made, changed):
    """A model that makes something, which its forward pass then changes."""
    return forwards(changed).replace("self.layers", f"{made}\n        self.layers")


def check_written(folder, client):
    """A file of a model predicts what the model of the run predicts (`client` None: shared)."""
    model, path = run_models.of_run(FinishedRun.open(folder), client), folder / "m.safetensors"
    path.write_bytes(personalized.packed(model.module, model.about))
    x = torch.randn(3, 5)
    assert torch.equal(personalized.load(path)(x), model(x))


def test_a_file_that_was_edited_within_a_second_is_read_anew(mine, monkeypatch):
    """Python takes compiled code for that of a file of the same second and length."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    now = time.time()
    for width in (6, 8):
        path = mine(NET.replace("6", str(width)))
        os.utime(path, (now, now))
        assert models.build("mine", INPUTS, OUTPUTS, seed=0).mid.out_features == width
    assert {path.name for path in path.parent.iterdir()} == {"mine.py"}


@pytest.mark.parametrize(("made", "changed"), [
    ("self.register_buffer('n', torch.ones(3), persistent=False)", "y = y * self.n"),
    ("self.n = None", "self.n = self.n or len(x[0])"),
    ("self.n = None", "self.n = y"),
    ("self.register_buffer('n', torch.tensor(0))", "self.n.add_(self.training)"),
    ("self.mid.mean = nn.BatchNorm1d(3)", "y = self.mid.mean(y)"),
    ("", "y = y + torch.randn(1) * self.training"),
    ("", "assert not self.training or x.sum() > 1e9"),
])  # fmt: skip
def test_what_may_be_kept_between_forward_passes(mine, made, changed):
    """Constants, caches, what the last pass was like, buffers of the state, and torch's draws.

    Nor is a model refused that cannot train on random samples.
    """
    mine(counting(made, changed))
    model = models.build("mine", INPUTS, OUTPUTS, seed=0)
    mine()
    plain = models.build("mine", INPUTS, OUTPUTS, seed=0).state_dict()
    state = model.state_dict()
    assert all(torch.equal(state[key], value) for key, value in plain.items())
    assert not any(state[key].any() for key in state if key in ("n", "mid.mean.running_mean"))
    check_training("mine", model, INPUTS)
    assert all(torch.equal(model.state_dict()[key], value) for key, value in state.items())
    assert not model.training


@pytest.mark.parametrize(("forward", "drawn"), [
    ("torch.nn.functional.dropout(x, 0.3, self.training)", True),
    ("x + torch.randn_like(x) * self.training", True),
    ("torch.relu(x)", False),
])  # fmt: skip
def test_split_learning_takes_no_model_that_draws(mine, forward, drawn, tmp_path, flat_config):
    """However it draws: no module says so."""
    mine(f"""
import torch
from torch import nn

class Body(nn.Linear):
    def forward(self, x):
        x = super().forward(x.flatten(1))
        return {forward}

def make(inputs, outputs):
    return nn.Sequential(Body(inputs.size, 6), nn.Linear(6, outputs.shape[-1]))
""")
    words = kinds.options(tmp_path, "table"), RUN, 'model="mine" strategy="sflv2"'
    space = Workspace(config.read(flat_config(*words)))
    with pytest.raises(RunError, match="draws random numbers") if drawn else nullcontext():
        registry.strategy_class("sflv2")(space)


def test_a_file_and_its_path_are_the_same_model(mine):
    path = mine()
    states = [
        models.build(name, INPUTS, OUTPUTS, seed=3).state_dict()
        for name in ("mine", "models/mine.py", "models/mine.py:make", f"{path}:make")
    ]
    torch.manual_seed(3)
    first = nn.Linear(5, 6)
    assert torch.equal(states[0]["stem.weight"], first.weight)
    for state in states[1:]:
        assert all(torch.equal(state[key], value) for key, value in states[0].items())
    assert own.names() == ("mine",)
    assert models.size("mine", INPUTS, OUTPUTS) == 5 * 6 + 6 + 6 * 6 + 6 + 6 * 3 + 3


@pytest.mark.parametrize(("text", "line"), [
    ("def make(", r"mine\.py: SyntaxError: .*never closed"),
    ("import nothing_like_it", r"mine\.py: ModuleNotFoundError: .*nothing_like_it"),
    ("x = 1", r"mine\.py must have one function, or one named make, has none without a leading _"),
    (NET.replace("make", "one") + "\ndef two(): ...",
     r"must have one .*, has one, two; model = .*/mine\.py:NAME names one"),
    ("import beside", r"beside' \(mine.py, line 1\); .* one file: copy .* beside\.py into it"),
    (NET + "\ntakes = 'pictures'", "takes = 'pictures': must be some of images, tables"),
    ("def make(inputs, outputs): return 3", "returned a int: must return an nn.Module"),
    ("def make(inputs, outputs): return 1 / 0", r"for float32 samples .* ZeroDivisionError"),
    (NET.replace("outputs.shape[-1]", "7"), r"2 of .* give \[2, 7\]: must be \[2, 3\]"),
    (NET.replace("flatten(1)", "flatten()[None]"),
     r"for float32 samples .* RuntimeError: .*mat1.* \(mine\.py, line 14\)"),
    (NET.replace('("stem", "mid"), "head": ("fc",)', '("*",)'), "has the layers body"),
    ("from torch import nn\n"
     "def make(inputs, outputs): return nn.Linear(inputs.size, outputs.shape[-1])",
     r"is one layer, a Linear: must have two or more, such as the children of an nn\.Sequential"),
    (NET.replace('("fc",)', '("fcc",)'), r'layer head: .* called "fcc", did you mean fc\?'),
    (NET.replace(', "head": ("fc",)', ''), "fc.weight is in no layer"),
    (NET.replace("return Net(inputs, outputs)", "return Net(inputs, outputs).double()"),
     "stem.weight is torch.float64: must be float32"),
    (NET.replace("self.layers", "self.mid.weight.data[0, 0] = torch.inf; self.layers"),
     "mid.weight has values that are not finite"),
    ("import random" + NET.replace(
        "self.layers", "self.mid.bias.data[0] = random.random(); self.layers"),
     "mid.bias differs the next time"),
    (NET.replace("self.mid =", "self.stem.table = nn.Embedding(2, 2, sparse=True); self.mid ="),
     r"stem\.table has sparse=True: its gradients must be dense, so leave this out"),
    (forwards("return y, y"), "forward returned a tuple: must return a Tensor"),
    (forwards("self.mid.bias.data += 1"), "forward in eval mode changes mid.bias"),
    (forwards("y = y + torch.randn(1)"), "forward in eval mode gives other outputs the second"),
    (NET.replace("x = torch.relu(self.stem", "x += 1; x = torch.relu(self.stem"),
     "forward changes its input in place"),
])  # fmt: skip
def test_what_cannot_be_used_is_said_in_one_line(mine, text, line):
    mine(text).with_name("beside.py").touch()
    with pytest.raises(RunError, match=f'^model = "mine": .*{line}'):
        models.build("mine", INPUTS, OUTPUTS, seed=0)


@pytest.mark.parametrize(("made", "changed", "line"), [
    ("self.register_buffer('n', torch.zeros(()), persistent=False)", "self.n.add_(self.training)",
     "changes n: only persistent buffers"),
    ("self.n = 0", "self.n += self.training", "changes n: only persistent buffers"),
    ("self.n = 0", "self.n += 1", "changes n: only persistent buffers"),
    ("self.n = [0]", "self.n[0] += self.training; y = y * self.n[0]",
     "gives other outputs the second time: only weights, samples and torch"),
    ("self.draw = torch.Generator()",
     "y = y * torch.rand(1, generator=self.draw) if self.training else y",
     "gives other outputs the second time: only weights, samples and torch"),
    ("", "y = y * np.random.rand() if self.training else y",
     "draws from numpy.random: only weights, samples and torch"),
    ("self.order = None",
     "if self.training and self.order is None: self.order = np.random.permutation(6)\n"
     "        y = y if self.order is None else y[:, self.order]",
     "draws from numpy.random: only weights, samples and torch"),
])  # fmt: skip
def test_what_passes_from_client_to_client_ends_a_run(
    mine, made, changed, line, tmp_path, flat_config
):
    mine("import numpy as np" + counting(made, changed))
    before = torch.get_rng_state()
    settings = config.read(flat_config(kinds.options(tmp_path, "table"), RUN, 'model="mine"'))
    with pytest.raises(RunError, match=f'^model = "mine": forward in training {line}'):
        Rounds(registry.strategy_class("fedavg")(Workspace(settings)))
    assert torch.equal(before, torch.get_rng_state())


def test_a_layer_that_is_seldom_left_out_is_seen(mine):
    """By its draw, whatever comes of it."""
    mine("import random" + forwards("y = y * (not self.training or random.random() > 0.1)"))
    model = models.build("mine", INPUTS, OUTPUTS, seed=0)
    for seed in range(20):
        random.seed(seed)
        with pytest.raises(RunError, match=r"forward in training draws from random: only weights"):
            check_training("mine", model, INPUTS)


@pytest.mark.parametrize("strategy", ["fedavg", "sflv2"])
def test_what_another_thread_draws_is_not_the_models(
    mine, strategy, tmp_path, flat_config, monkeypatch
):
    """As Ray and gRPC do, once in a while, while a ServerApp starts; and nobody gets it again."""
    mine("""
from torch import nn

def make(inputs, outputs):
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs.size, 6), nn.Linear(6, outputs.shape[-1]))
""")
    words = kinds.options(tmp_path, "table"), RUN, f'model="mine" strategy="{strategy}"'
    space = Workspace(config.read(flat_config(*words)))
    plain, drawn = nn.Sequential.forward, []

    def interrupted(self, x):
        if self.training and not drawn:
            drawn.append(random.random())
        return plain(self, x)

    monkeypatch.setattr(nn.Sequential, "forward", interrupted)
    Rounds(registry.strategy_class(strategy)(space))
    assert drawn
    assert random.random() != drawn[0]


def test_a_run_of_an_earlier_version_whose_model_counts_is_of_use(
    mine, tmp_path, serial_run, monkeypatch, capsys
):
    """It was not refused then; it goes on with a warning."""
    mine(counting("self.n = 0", "self.n += self.training"))
    options = kinds.options(tmp_path, "table"), RUN, 'model="mine" strategy="fedper"'
    with monkeypatch.context() as patch:
        patch.setattr(checks, "check_training", lambda *_: None)
        folder = serial_run(*options)
    told = 'model = "mine": forward in training changes n'
    with pytest.raises(RunError, match=f"^{told}"):
        serial_run(*options)
    check_written(folder, 1)
    capsys.readouterr()
    serial_run(*options, f'num-rounds=3 resume="{folder}"')
    assert f"warning: {told}" in capsys.readouterr().out


@pytest.mark.parametrize(("name", "line"), [
    ("models/none.py:make", r"none\.py is not there; each process needs this file"),
    ("models/mine.py:build", r"must have a function build, has make"),
    ("../mine.py:make", "must be below the folder of the app, or absolute"),
])  # fmt: skip
def test_a_path_that_does_not_fit_is_refused(mine, name, line):
    mine()
    with pytest.raises(RunError, match=line):
        models.build(name, INPUTS, OUTPUTS, seed=0)


def test_a_file_in_the_working_directory_is_found_and_its_path_told(tmp_path, monkeypatch):
    """In a script, a file beside it is meant; a relative path is one in the app."""
    path = tmp_path / "beside.py"
    path.write_text(NET)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunError) as caught:
        models.build("beside.py", INPUTS, OUTPUTS, seed=0)
    assert str(caught.value).endswith(
        f'copy yours there, or give the whole path {path}, in Python Path("beside.py")'
    )
    models.build(str(path), INPUTS, OUTPUTS, seed=0)


def test_names_are_looked_for_among_all_models(mine):
    mine()
    with pytest.raises(ValueError, match=r"nearest is 'mine'; one .*/models, or .*-tiny, mine$"):
        models.build("mina", INPUTS, OUTPUTS, seed=0)
    mine(name="cnn")
    with pytest.raises(ValueError, match=r"models/cnn\.py has the name of another model"):
        models.build("cnn", image_spec((1, 8, 8)), 3, seed=0)


def test_a_model_says_what_it_takes(mine):
    mine(NET + "\ntakes = 'series'")
    with pytest.raises(ValueError, match="'mine': takes series, but the data are"):
        models.build("mine", INPUTS, OUTPUTS, seed=0)
    assert models.build("mine", Spec((4, 2)), OUTPUTS, seed=0).stem.in_features == 8


def test_devices_take_no_path_from_the_server(mine):
    """Neither as a file to run nor as a folder to write to."""
    path = mine()
    for name in (f"{path}:make", "~/mine.py"):
        with pytest.raises(RunError, match="devices use no path from the server"):
            config.read(config.defaults() | {"dataset": "device", "model": name})
    assert config.read(config.defaults() | {"dataset": "device", "model": "models/mine.py"})
    assert [folder_name(x) for x in ("models/mine.py:make", "a/../../b", "lenet5-1")] == [
        "mine", "b", "lenet5-1",
    ]  # fmt: skip


@pytest.mark.parametrize("method", ["fedper", "fedseq"])
def test_a_run_with_it_and_what_its_model_predicts(mine, method, tmp_path, serial_run, read_csv):
    """The body alone has travelled; the client's model is used without the run."""
    mine()
    options = kinds.options(tmp_path, "table"), RUN, f'model="mine" strategy="{method}"'
    folder = serial_run(*options)
    body = 4 * (5 * 6 + 6 + 6 * 6 + 6)
    assert [int(row["bytes_up"]) for row in read_csv(folder, "rounds.csv")][:2] == [4 * body] * 2
    check_written(folder, 1)


@pytest.mark.parametrize(("text", "words"), [
    (NORMED, 'strategy="fedap"'),
    (NET, 'clip-mode="sample" max-norm=0.5'),
    (NET, "adapter-rank=2"),
])  # fmt: skip
def test_modules_called_with_keywords_train_alike(
    mine, text, words, tmp_path, serial_run, read_model
):
    """Also where something looks at what BatchNorms and linear layers get."""
    named = text
    for name in ("stem", "norm", "mid", "fc"):
        named = named.replace(f"self.{name}(", f"self.{name}(input=")
    found = []
    for place, source in enumerate((text, named)):
        mine(source)
        options = kinds.options(tmp_path, "table"), RUN, f'model="mine" {words}'
        found.append(read_model(serial_run(*options, f"run-name=r{place}")))
    assert found[0].keys() == found[1].keys() and len(found[0]) > 3
    assert all(np.array_equal(value, found[1][key]) for key, value in found[0].items())


def test_a_model_that_computes_while_it_is_made_can_be_read_again(mine, tmp_path, serial_run):
    """Such as one with a rate for each layer, as timm has: a meta tensor has no values."""
    rates = "self.rates = [rate.item() for rate in torch.linspace(0, 1, 3)]; self.layers"
    mine(NET.replace("self.layers", rates))
    state = torch.get_rng_state()
    assert models.size("mine", INPUTS, OUTPUTS) == 5 * 6 + 6 + 6 * 6 + 6 + 6 * 3 + 3
    assert torch.equal(torch.get_rng_state(), state)
    folder = serial_run(kinds.options(tmp_path, "table"), RUN, 'model="mine"')
    check_written(folder, None)


def test_the_command_lists_and_tries_models_of_ones_own(mine, capsys):
    mine()
    mine("def make(inputs, outputs): return 3", "broken")
    assert cli.main(["models", "--markdown"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = dict(line[2:].split(" | ", 1) for line in lines if " | " in line)
    assert rows["mine"].startswith("images, tables, series, tokens, values | body, head | 18,")
    assert "must return an nn.Module" in rows["broken"]
    assert cli.main(["models", "--check", "mine", "--shape", "1,9,9"]) == 0
    lines = [x for x in capsys.readouterr().out.splitlines() if x.startswith("mine: ")]
    assert "mine: fedavg learns images [1, 9, 9] with body, head" in lines
    assert "mine: fedper learns images [1, 9, 9] with body" in lines
    named = {line.split()[1].rstrip(":") for line in lines}  # other lines are warnings
    split = {"fedfc", "sflv1", "sflv2", "splitlearning"}
    assert {*registry.names()} - split <= named and not split & named
    assert len(lines) == 1 + len(registry.names()) - len(split)  # what all have in common, once


def test_the_command_tries_all_methods_though_some_fail(mine, capsys):
    """With an error of the author's code in what only some of them do."""
    odd = "assert not torch.is_grad_enabled() or self.stem.weight.requires_grad, 'no frozen body'"
    mine(forwards(odd) + "\ntakes = 'tables'")
    assert cli.main(["models", "--check", "mine", "--shape", "7"]) == 0
    lines = [x for x in capsys.readouterr().out.splitlines() if x.startswith("mine: ")]
    assert "mine: fedrep: fails: AssertionError: no frozen body" in lines
    for method in ("fedavg", "scaffold"):
        assert f"mine: {method} learns tables [7] with body, head" in lines


TABLES = NET + "\ntakes = 'tables'"
EACH_STEP = NET.replace("inputs.size", "1 if inputs.is_whole else inputs.shape[-1]").replace(
    "x.flatten(1)", "x[..., None].float() if x.dim() == 2 else x"
)


@pytest.mark.parametrize(("text", "words", "told"), [
    (EACH_STEP, ["--targets", "tokens", "--shape", "8"], "learns tokens [8] with body, head"),
    (EACH_STEP, ["--targets", "steps", "--shape", "8,2"], "learns series [8, 2] with body, head"),
    (TABLES, ["--targets", "numbers", "--shape", "7"], "learns tables [7] with body, head"),
    (TABLES, ["--targets", "truths", "--shape", "7"], "learns tables [7] with body, head"),
    (PACKED, [], "learns tokens [64] with embed, mix, fc"),
    (PACKED_SERIES, ["--shape", "8,2"], "learns series [8, 2] with embed, mix, fc"),
    (MASKED, [], "learns tokens [64] with embed, mix, fc"),
])  # fmt: skip
def test_the_command_tries_models_for_targets_of_each_kind(
    mine, capsys, monkeypatch, text, words, told
):
    monkeypatch.setattr(registry, "names", lambda: ("fedavg", "fedbabu"))
    mine(text)
    assert cli.main(["models", "--check", "mine", *words]) == 0
    assert f"mine: fedavg {told}\n" in capsys.readouterr().out


@pytest.mark.parametrize(("text", "words", "line"), [
    (NET + "\ntakes = 'series'", ["--shape", "3,8,8"], "--shape 3,8,8: mine takes series"),
    (TABLES, ["--targets", "steps"],
     "--targets steps: mine takes tables; steps are for series, tokens\n"),
    (counting("self.n = 0", "self.n += self.training"), ["--shape", "7"],
     "forward in training changes n: only persistent buffers may change\n"),
    (forwards("assert not self.training"), ["--shape", "7"], "cannot train: AssertionError"),
    (NET, ["--shape", "a"], '--shape = "a": must be channels,height,width'),
    (forwards("assert not x.is_floating_point()"), ["--targets", "tokens"],
     'if it takes no series, say what it takes, such as takes = "tokens"'),
    (NET.replace("x.flatten(1)", "x").replace("inputs.size", "inputs.shape[0]"), [],
     'if it takes no images, say what it takes, such as takes = "tables"'),
    (NET.replace("self.layers", "self.bn = nn.BatchNorm1d(6, track_running_stats=False); "
                 "self.layers").replace('"mid")', '"mid", "bn")').replace(
                     "self.stem(x.flatten(1))", "self.bn(self.stem(x.flatten(1)))"),
     ["--shape", "7"], "a BatchNorm must keep running statistics, which single samples need"),
])  # fmt: skip
def test_the_command_says_what_is_wrong(mine, capsys, text, words, line):
    mine(text)
    assert cli.main(["models", "--check", "mine", *words]) != 0
    assert line in capsys.readouterr().err


@pytest.mark.parametrize(("text", "lost"), [
    (NET, []),
    (EXPERTS.replace("SUM", "1.0"), []),
    (EXPERTS.replace("SUM", "50"), ["mid.weight", "mid.bias"]),
    (forwards("y = y if torch.rand(()) < 0.5 else y.detach()"), []),
    (NET.replace("torch.relu(self.mid(x))", "self.mid(x).detach()"), ["mid.weight", "mid.bias"]),
])  # fmt: skip
def test_a_branch_that_few_samples_take_has_gradients(mine, text, lost):
    mine(text)
    model, state = models.build("mine", INPUTS, OUTPUTS, seed=0), torch.get_rng_state()
    keys = [key for key, _ in model.named_parameters()]
    told = own.without_gradient(model, INPUTS, keys)
    assert told.partition(":")[0] == (f"{NO_GRADIENT} for {', '.join(lost)}" if lost else "")
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_run_warns_of_what_trains_badly(mine, tmp_path, serial_run, capsys):
    """A body without gradient, and outputs that have been through a softmax."""
    stem = "self.stem(x.flatten(1))"
    mine(forwards("y = y.softmax(-1)").replace(stem, f"{stem}.detach()"))
    serial_run(kinds.options(tmp_path, "table"), RUN, 'model="mine"')
    lines = capsys.readouterr().out.splitlines()
    told = [line for line in lines if line.startswith("warning: model")]
    assert len(told) == 2 and f"{NO_GRADIENT} for stem.weight, stem.bias: they" in told[0]
    assert "sum to 1 like probabilities" in told[1]


def test_a_run_tells_the_rest_of_a_model_that_random_samples_do_not_train(
    mine, tmp_path, serial_run, capsys
):
    """It trains on the run's own, of which some values are negative."""
    text = counting("self.ls = [self.mid, nn.Linear(6, 6)]", "y = y.softmax(-1)")
    mine(text.replace("    x =", "    assert not self.training or x.min() < 0\n        x ="))
    serial_run(kinds.options(tmp_path, "table"), RUN, 'model="mine"')
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(": ")[2] for line in lines if line.startswith("warning: model")] == [
        "cannot train", "outputs sum to 1 like probabilities, but the loss takes logits",
        "ls holds layers that PyTorch does not see, so they are neither trained nor sent",
    ]  # fmt: skip


def listed(attribute, where="self"):
    """Return NET with one attribute more, such as layers in a list, which forward does not use."""
    return NET.replace("self.layers", f"{where}.{attribute}; self.layers")


@pytest.mark.parametrize(("text", "name"), [
    (listed("ls = [nn.Linear(6, 6), nn.ReLU()]"), "ls"),
    (listed("ls = {'a': (nn.Linear(6, 6),)}"), "ls"),
    (listed("ls = [[nn.BatchNorm1d(6)]]", "self.mid"), "mid.ls"),
    (listed("ls = [nn.ReLU(), nn.Dropout()]"), ""),
    (listed("ls = [self.stem, self.mid]"), ""),
    (listed("ls = [nn.Linear(6, 6).requires_grad_(False)]"), ""),
    (listed("ls = [1, 'a', None, {'b': torch.ones(2)}]"), ""),
    (NET, ""),
])  # fmt: skip
def test_layers_in_a_plain_list_are_told(mine, text, name):
    """They are used, but neither trained nor sent: PyTorch does not see them."""
    mine(text)
    told = own.unseen_layers(models.build("mine", INPUTS, OUTPUTS, seed=0))
    line = f"{name} holds layers that PyTorch does not see, so they are neither trained nor sent:"
    assert told == (f"{line} use nn.ModuleList or nn.ModuleDict" if name else "")


def test_a_run_and_the_command_tell_of_layers_in_a_list(mine, tmp_path, serial_run, capsys):
    text = listed("ls = [nn.Linear(6, 6)]").replace("self.mid(x)", "self.mid(self.ls[0](x))")
    mine(text + "\ntakes = 'tables'")
    serial_run(kinds.options(tmp_path, "table"), RUN, 'model="mine"')
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "PyTorch" in line]
    assert line.startswith('warning: model = "mine": ls holds layers')
    assert cli.main(["models", "--check", "mine", "--shape", "7"]) == 0
    assert "mine: ls holds layers that PyTorch does not see" in capsys.readouterr().out


def test_an_exported_model_runs_the_file_in_models_alone(
    mine, tmp_path, tmp_path_factory, serial_run
):
    """Never the path that it names, because it can be a stranger's."""
    path = tmp_path_factory.mktemp("away") / "elsewhere.py"
    path.write_text(NET)
    folder = serial_run(kinds.options(tmp_path, "table"), RUN, f'model="{path}:make"')
    shared, file = run_models.of_run(FinishedRun.open(folder), None), tmp_path / "m.safetensors"
    file.write_bytes(personalized.packed(shared.module, shared.about))
    assert str(path.parent).encode() not in file.read_bytes()
    rule = "each process needs this file: copy yours there"
    with pytest.raises(RunError, match=f"{tmp_path}/models/elsewhere.py is not there; {rule}"):
        personalized.load(file)
    mine(path.read_text(), "elsewhere")
    path.unlink()
    x = torch.randn(3, 5)
    loaded = personalized.load(file)
    assert torch.equal(loaded(x), shared(x))
    own_data = kinds.options(tmp_path, "table").partition('dataset="')[2].partition('"')[0]
    found = adopt(shared, Path(own_data), tmp_path / "state", {})
    assert found.settings.model == "models/elsewhere.py:make"


def test_an_exported_model_by_name_says_which_file_it_needs(mine, tmp_path, serial_run):
    """At the beginning of the error, because a long one is cut off."""
    mine()
    folder = serial_run(kinds.options(tmp_path, "table"), RUN, 'model="mine"')
    shared, file = run_models.of_run(FinishedRun.open(folder), None), tmp_path / "m.safetensors"
    file.write_bytes(personalized.packed(shared.module, shared.about))
    (tmp_path / "models" / "mine.py").unlink()
    with pytest.raises(RunError) as error:
        personalized.load(file)
    told = (
        "unknown model 'mine': if it is your own, put mine.py into models/ of this project's folder"
        " here, and install it again (docs/devices.md#use-the-personalized-model)"
    )
    assert str(error.value) == f"{file}: cannot be read ({told})"


@pytest.mark.parametrize("place", [
    "in it", "beside it", "below the app", "of a colon", "best", "..", "link",
])  # fmt: skip
def test_code_that_can_have_come_with_a_run_is_not_run(place, tmp_path, serial_run, monkeypatch):
    """Whoever unpacks a stranger's run directory has not read its files; its tables are of use."""
    monkeypatch.chdir(tmp_path)
    folder = serial_run(kinds.options(tmp_path, "table"), RUN, f"runs-dir={tmp_path / 'theirs'}")
    code = (folder if place == "in it" else folder.parent) / "net.py"
    code = code.with_name("n:et.py") if place == "of a colon" else code
    name = f"/proc/self/cwd/{code.relative_to(tmp_path)}"
    if place == "below the app":
        monkeypatch.setattr(config, "APP", tmp_path)
        code, name = folder / "net.py", f"theirs/{folder.name}/net.py:make"
    code.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n{NET}")
    settings = (folder / "config.toml").read_text()
    (folder / "config.toml").write_text(re.sub('model = ".*"', f'model = "{name}"', settings))
    wanted = re.escape("lies beside the run, so this code can have come with it")
    if place == "best":
        shutil.copytree(folder, folder / "best")
        folder = folder / "best"
    if place == "..":
        monkeypatch.chdir(folder / "checkpoint")
        folder = Path("..")
    if place == "link":
        (tmp_path / "linked").symlink_to(folder)
        folder = tmp_path / "linked"
    resume = f'resume = "{folder.absolute()}"'
    told = re.sub("^resume = .*", resume, (folder / "config.toml").read_text(), flags=re.M)
    (folder / "resume.toml").write_text(told)  # names the model, too, but is the stranger's
    for use in (FinishedRun.open, lambda run: config.parse([resume.replace(" ", "")]),
                lambda run: config.parse([str(run / "resume.toml")])):  # fmt: skip
        with pytest.raises(RunError, match=wanted):
            use(folder)
    assert cli.main(["predict", str(folder), "--input", "x.csv"]) == 1
    assert cli.main(["evaluate", str(folder)]) == 1
    assert cli.main(["plot", str(folder)]) == 0 and not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["net.py", "net.py:make"])
def test_whoever_has_read_the_code_beside_a_run_can_use_it(name, tmp_path, monkeypatch):
    """As those can whose own runs lie beside their models; states of clients are found again."""
    (tmp_path / "net.py").write_text(NET)
    monkeypatch.chdir(tmp_path)
    flat = config.parse([kinds.options(tmp_path, "table"), RUN])
    model = f"{tmp_path}/{name}"
    made = fedapps.run(flat, progress=False, strategy="fedper", runs_dir=".", model=model)
    run = str(made.path)
    with pytest.raises(RunError, match=rf"add --trust {tmp_path}/net\.py"):
        fedapps.load(run).model(0)
    assert best.look(made.path).endswith(f"-c evaluate-on=test --trust {tmp_path}/net.py")
    found = [got.model(0).state_dict() for got in (made, fedapps.load(run, trust="net.py"))]
    assert all(torch.equal(found[0][key], value) for key, value in found[1].items())
    export = ["export", run, "--output", "a.safetensors"]
    for command in (["evaluate", run], export):
        assert [cli.main([*command, *more]) for more in ([], ["--trust", "net.py"])] == [1, 0]
    resume = ["serial", "--resume", run, "-c", "num-rounds=3"]
    assert [cli.main([*resume, *more]) for more in ([], ["-c", f"model={model}"])] == [1, 0]
    longer = {"resume": run, "num_rounds": 4, "progress": False}
    with pytest.raises(RunError, match="add --trust"):
        fedapps.run({"model": model}, **longer)  # such as the config of a run
    fedapps.run(**longer, model=model)
    assert fedapps.load(run).rounds["round"].max() == 4 and fedapps.load(run).events.empty


def test_the_example_of_the_page_works(mine, capsys):
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text("utf-8")
    code = page.partition("```python\n# models/mine.py\n")[2].partition("```")[0]
    mine(code)
    assert cli.main(["models", "--check", "mine"]) == 0
    told = capsys.readouterr().out
    assert "mine: fedper learns" in told
    # it learns the head in its warm-up
    assert "mine: pfedsim learns images [3, 32, 32] with 0, 1, 2\n" in told
    image = models.build("mine", image_spec((1, 12, 12)), 4, seed=0)
    assert image(torch.zeros(2, 1, 12, 12)).shape == (2, 4)
    assert np.isfinite(sum(p.sum().item() for p in image.parameters()))
