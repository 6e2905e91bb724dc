"""A device's personalized model, used outside of runs."""

import json
import os
import resource
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import load_file
from safetensors.torch import load_file as load_torch
from safetensors.torch import save_file
from torch import nn

from fedapps.__main__ import main
from fedapps.cli import predict
from fedapps.core import config, registry
from fedapps.core.errors import RunError
from fedapps.device import exporting, personalized
from fedapps.report.report import Report
from fedapps.serial import run_serial
from tests.device.helpers import DEVICES, RUN
from tests.support import ROOT
from tests.support.devices import node_configs
from tests.support.tiny import BASE


def test_predict_is_as_good_as_the_run(device_run, nodes, read_csv, tmp_path, capsys):
    names = 'class-names="ant,bee,cat"'
    folder = device_run(f'strategy="fedper" score-last=true local-epochs=3 {names}')
    reported = {row["client"]: row for row in read_csv(folder, "clients.csv")}
    out = tmp_path / "predictions.npz"
    for client, node in enumerate(nodes):
        images = ["--input", node["data"]]
        assert main(["predict", "--state-dir", node["state-dir"], *images]) == 0
        lines = capsys.readouterr().out.splitlines()
        words = [line.split()[1] for line in lines if line[0].isdigit()]
        main(["predict", "--state-dir", node["state-dir"], *images, "--output", str(out)])
        with np.load(node["data"]) as own, np.load(out) as predicted:
            right = predicted["labels"] == own["test_labels"]
            assert words == [predicted["class_names"][k] for k in predicted["labels"]]
            np.testing.assert_allclose(predicted["probabilities"].sum(1), 1, rtol=1e-5)
        assert right.mean() == float(reported[str(client)]["accuracy_personalized"])
    assert main(["predict", str(folder), "--client", "1", "--input", "x.npz"]) == 1
    assert "--client 1: clients of this run are devices" in capsys.readouterr().err
    assert main(["export", str(folder), "--output", str(tmp_path / "shared.safetensors")]) == 0
    said = capsys.readouterr().err
    assert "--client N" not in said and "not shared" in said and "in its state-dir" in said
    assert personalized.load(tmp_path / "shared.safetensors").about.names == ("ant", "bee", "cat")


@pytest.fixture
def models(nodes, monkeypatch):
    """The bytes of the second device's model after each round."""
    found, write = [], Report.round

    def look(report, row):
        write(report, row)
        found.append((Path(nodes[1]["state-dir"]) / personalized.FILE).read_bytes())

    monkeypatch.setattr(Report, "round", look)
    return found


def test_a_round_without_personalization_leaves_the_personalized_model(device_run, models):
    rounds = 'num-rounds=4 evaluate-every=3 evaluate-rounds="1-4"'
    options = f'strategy="fedbabu" finetune-epochs=2 {rounds}'
    device_run(options.replace("every=3", "every=1").replace("-rounds=4", "-rounds=1"))
    (before,) = models
    device_run(options)
    first, second, third, last = models[1:]
    assert first == second == before
    assert len({second, third, last}) == 3


def test_a_model_that_nobody_fine_tunes_is_written_in_each_evaluation(device_run, models):
    options = 'strategy="fedper" finetune-epochs=0 num-rounds=3 evaluate-every=1'
    device_run(options)
    device_run(options.replace("every=1", "every=0"), 'evaluate-rounds="1-2"')
    assert len(set(models[:3])) == 3 and len(set(models[3:])) == 3


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_diverged_personal_model_leaves_the_old(value, device_run, models, monkeypatch, capsys):
    cls = registry.client_class("fedbabu")
    personalize = cls.personalize

    def diverge(self, plan):
        done = personalize(self, plan)
        if plan.round == 2:
            self.model.fc2.fc.bias.data[0] = value
        return done

    monkeypatch.setattr(cls, "personalize", diverge)
    device_run('strategy="fedbabu" num-rounds=3 evaluate-every=1')
    first, second, third = models
    assert first == second != third
    assert "personalization diverged (fc2.fc.bias): " in capsys.readouterr().out


def test_images_of_another_shape_are_refused(device_run, nodes, make_npz, tmp_path, capsys):
    device_run('strategy="fedper" num-rounds=1')
    path = make_npz(tmp_path / "x.npz", side=9)
    assert main(["predict", "--state-dir", nodes[0]["state-dir"], "--input", str(path)]) == 1
    line = f"error: {path}: images of [C, H, W] = [1, 9, 9]; the model takes [1, 8, 8]\n"
    assert capsys.readouterr().err == line


@pytest.mark.parametrize("command", ["predict", "export"])
def test_without_a_personalized_model_there_is_a_line(command, tmp_path, capsys):
    option = {"predict": ["--input", "x.npz"], "export": ["--output", "x.pt2"]}[command]
    assert main([command, "--state-dir", str(tmp_path), *option]) == 1
    assert capsys.readouterr().err == (
        f"error: {tmp_path}: no model is there; must be a run directory, a .safetensors file, or "
        "the folder of a device, which writes personalized.safetensors when it is evaluated\n"
    )


def test_a_broken_model_file_is_a_line(tmp_path):
    (tmp_path / personalized.FILE).write_bytes(b"x" * 100)
    with pytest.raises(RunError, match=r"personalized\.safetensors: cannot be read \("):
        personalized.load(tmp_path)


@pytest.fixture(scope="module")
def trained(union, tmp_path_factory):
    """A personalized model and the state folder that it comes from, for all tests of a module."""
    folder = tmp_path_factory.mktemp("trained")
    data = [union.folder / f"{client}.npz" for client in range(DEVICES)]
    keys = config.parse([BASE, RUN, f'strategy="fedrod" num-rounds=1 runs-dir="{folder}"'])
    run_serial(keys, node_configs=node_configs(data, folder), plots=False)
    return personalized.load(folder / "state-0"), folder / "state-0"


def test_a_strangers_model_file_takes_no_more_memory_than_it_has(trained, tmp_path):
    for settings, told in (
        ({"num-classes": 10**9}, "num-classes = 1000000000, but 3 names"),
        ({"num-classes": 10**9, "class-names": "a,b"}, "num-classes = 1000000000, but 3 names"),
        ({"model": "resnet18"}, r"the settings ask for \d{8,} values, the file has \d+"),
        ({"model": "no-such"}, "unknown model 'no-such'"),
        ({"brand-new": 1}, "another version of fedapps, with the key brand-new, has written it: "),
    ):
        with pytest.raises(RunError, match=rf"cannot be read \({told}"):
            personalized.load(forged(trained[1], settings, tmp_path / "forged.safetensors"))


IMAGES = {"shape": [1, 8, 8], "dtype": "float32", "choices": 0, "image": True}
LABELS = {"shape": [], "dtype": "int64", "choices": 3, "image": False}


HEADERS = (
    {"inputs": IMAGES | {"shape": [1, 200000, 200000]}}, {"inputs": IMAGES | {"shape": [-1]}},
    {"inputs": IMAGES | {"shape": [1, 8, 12]}}, {"targets": LABELS | {"choices": 10**9}},
    {"targets": LABELS | {"shape": [10**9], "choices": 2}}, {"inputs": 1}, {"mean": [0.5, 0.5]},
    {"std": []}, {"std": [0.0]}, {"std": [-1.0]}, {"config": {"task": "other"}},
)  # fmt: skip


def test_a_strangers_model_file_cannot_ask_for_other_samples(trained, tmp_path):
    for header in HEADERS:
        with pytest.raises(RunError, match=r"cannot be read \("):
            personalized.load(forged(trained[1], {}, tmp_path / "forged.safetensors", header))


def test_a_strangers_model_file_cannot_ask_for_huge_images(trained, monkeypatch):
    monkeypatch.setattr(personalized, "MOST_PIXELS", 63)  # those of this model have 64
    with pytest.raises(RunError, match="cannot be read"):
        personalized.load(trained[1])


def test_a_strangers_model_file_opens_no_other_file_and_makes_no_folder(trained, tmp_path):
    model, state = trained
    root = tmp_path / "downloads"
    settings = {"dataset": "mnist", "data-root": str(root), "runs-dir": str(root)}
    os.mkfifo(tmp_path / "waits")
    settings |= {"initial-model": str(tmp_path / "waits"), "evaluate-rounds": "1-1000000000000"}
    found = personalized.load(forged(state, settings, tmp_path / "forged.safetensors"))
    assert not root.exists()
    pixels = torch.rand(3, 1, 8, 8)
    with torch.no_grad():
        assert torch.equal(found(pixels), model(pixels))


def test_a_terminal_obeys_nothing_of_a_strangers_model_file(trained, make_npz, tmp_path, capsys):
    obeyed = [f"\x1b]0;gone\a\x9b2J{number}" for number in range(3)]
    header = {"names": obeyed, "initial": ["\x1b[31mfc"]}
    path = forged(trained[1], {}, tmp_path / "forged.safetensors", header)
    images = ["--input", str(make_npz(tmp_path / "x.npz"))]
    assert main(["predict", str(path), *images]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("0 ?]0;gone??2J") and (out + err).replace("\n", "").isprintable()
    assert "no better than chance: ?[31mfc;" in err
    predict._note("a column \x1b[31mof a stranger")
    assert capsys.readouterr().err == "note: a column ?[31mof a stranger\n"


def forged(state, settings, path, header=None):
    """Write a device's model with other settings or other values in its header."""
    with safe_open(state / personalized.FILE, "pt") as file:
        about = json.loads(file.metadata()["fedapps"])
    about["config"] |= settings
    about |= header or {}
    tensors = load_torch(state / personalized.FILE)
    save_file(tensors, path, {"fedapps": json.dumps(about)})
    return path


@pytest.mark.filterwarnings("error:No complete tensor")
def test_export_round_trips(trained, tmp_path):
    model, state = trained
    for suffix in ("pt2", "safetensors"):
        output = ["--output", str(tmp_path / f"model.{suffix}")]
        assert main(["export", "--state-dir", str(state), *output]) == 0
    with ZipFile(tmp_path / "model.pt2") as whole:  # no file of this machine is named
        found = b"".join(map(whole.read, whole.namelist()))
    assert b"forward" in found and str(ROOT).encode() not in found
    program = torch.export.load(tmp_path / "model.pt2").module()
    for size in (1, 5, 64):
        pixels = torch.rand(size, 1, 8, 8)
        with torch.no_grad():
            torch.testing.assert_close(program(pixels), model(pixels), rtol=0, atol=1e-5)
    arrays = load_file(tmp_path / "model.safetensors")
    assert arrays.keys() == model.module.state_dict().keys()
    for key, value in model.module.state_dict().items():
        np.testing.assert_array_equal(arrays[key], value.numpy())


def test_a_program_that_the_disk_does_not_take_is_a_line(trained, tmp_path):
    """Its file may not grow so far; a full disk says so with another reason."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**10, limits[1]))
    try:
        with pytest.raises(RunError, match=r"^cannot write .*model\.pt2: File too large$"):
            exporting.export(trained[0], tmp_path / "model.pt2")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not [*tmp_path.glob("*.pt2*")]


class Rows(nn.Module):
    """Takes the values of a sample, row by row of the batch, in one of three ways."""

    def __init__(self, how):
        super().__init__()
        self.how = how

    def forward(self, x):
        y = x.flatten(1)
        if self.how == "value":
            return y if y.sum() > 0 else -y
        return y[torch.arange(len(x) if self.how == "len" else x.shape[0])]


@pytest.mark.parametrize(("how", "why"), [
    ("len", r"\w+: .*\bbatch\b.*"),
    ("value", r"\w+: .*\bdata-dependent\b.*"),
    ("shape", ""),
])  # fmt: skip
def test_a_model_that_cannot_be_traced_is_a_line(how, why, trained, tmp_path):
    """And one that asks for the number of samples as torch wants it can be."""
    model = personalized.Personalized(Rows(how), trained[0].about)
    exporting.export(model, tmp_path / "model.safetensors")
    if not why:
        exporting.export(model, tmp_path / "model.pt2")
        program, pixels = torch.export.load(tmp_path / "model.pt2").module(), torch.rand(5, 1, 8, 8)
        torch.testing.assert_close(program(pixels), model(pixels))
        return
    needs = "--output: .pt2 and .onnx need a model that torch can trace for any number of samples"
    cure = r"in forward, write x\.shape\[0\] for len\(x\), or export \.safetensors"
    with pytest.raises(RunError, match=rf"^{needs} \({why}\); {cure}$"):
        exporting.export(model, tmp_path / "model.pt2")
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


def test_a_model_that_onnx_cannot_express_is_a_line(trained, tmp_path, monkeypatch):
    """torch writes it as a program; the reason is below errors that name steps, in colours."""

    def refuse(*_, **__):
        try:
            try:
                raise ValueError("No ONNX function found for airy_ai")
            except ValueError as error:
                raise RuntimeError("Error when translating node\nand its trace") from error
        except RuntimeError as error:
            raise RuntimeError("Failed. \033[96mThis is step 3/3\033[0m\n\n...") from error

    monkeypatch.setattr(exporting.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(torch.onnx, "export", refuse)
    why = r"ONNX cannot express this model \(No ONNX function found for airy_ai\)"
    with pytest.raises(RunError, match=rf"^--output: {why}; export \.pt2 or \.safetensors$"):
        exporting.export(trained[0], tmp_path / "model.onnx")
    assert not [*tmp_path.glob("*.onnx*")]


def test_onnx_needs_its_extra(trained, tmp_path, monkeypatch):
    model, _ = trained
    monkeypatch.setattr(exporting.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RunError, match=r"needs onnx; pip install onnx onnxscript$"):
        exporting.export(model, tmp_path / "model.onnx")
    with pytest.raises(RunError, match=r"must end in \.safetensors, \.pt2, \.onnx$"):
        exporting.export(model, tmp_path / "model.h5")


def test_onnx_gives_the_same_outputs(trained, tmp_path):
    why = "2026-11-21: ONNX is an extra that the tests do not install; passes where it is there"
    for package in ("onnx", "onnxscript"):
        pytest.importorskip(package, reason=why)
    runtime = pytest.importorskip("onnxruntime", reason=why)
    model, _ = trained
    exporting.export(model, tmp_path / "model.onnx")
    here = str(Path(exporting.__file__).parents[2])
    assert here.encode() not in (tmp_path / "model.onnx").read_bytes()
    session = runtime.InferenceSession(tmp_path / "model.onnx")
    for size in (1, 7):
        pixels = torch.rand(size, 1, 8, 8)
        (logits,) = session.run(None, {"pixels": pixels.numpy()})
        with torch.no_grad():
            np.testing.assert_allclose(logits, model(pixels).numpy(), rtol=0, atol=1e-5)
