"""A run that starts from the weights of a file: what is put where, and what is refused."""

import hashlib
import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from fedapps.core import config
from fedapps.core.errors import RunError
from fedapps.device import personalized, run_models
from fedapps.engine.finished import FinishedRun
from fedapps.models import build
from fedapps.serial import run_serial
from fedapps.training.workspace import Workspace

RUN = "num-rounds=2 num-clients=4 fraction-train=0.5 local-epochs=1 finetune-epochs=0"
SHAPE = (1, 8, 8)


@pytest.fixture
def space(flat_config, tiny_npz):
    """Return make(path, *options) -> the workspace of a run that starts from a file."""

    def make(path, *options):
        flat = flat_config(tiny_npz, RUN, 'model="lenet5"', f'initial-model="{path}"', *options)
        return Workspace(config.read(flat))

    return make


@pytest.fixture
def weights(tmp_path):
    """Return write(**changes) -> a file of lenet5's weights from seed 7; None leaves one out."""

    def write(classes=3, **changes):
        state = {
            k: v.numpy() for k, v in build("lenet5", SHAPE, classes, seed=7).state_dict().items()
        }
        state |= {key.replace("__", "."): value for key, value in changes.items()}
        path = tmp_path / "weights.safetensors"
        save_file({k: v for k, v in state.items() if v is not None}, path)
        return path

    return write


def test_all_weights_are_those_of_the_file(space, weights):
    path = weights()
    resident = space(path).resident
    given = load_file(path)
    assert {k for k in given if "num_batches" not in k} == resident.initial.keys()
    assert all(np.array_equal(given[key], value) for key, value in resident.initial.items())
    assert resident.source == hashlib.sha256(path.read_bytes()).hexdigest()
    assert resident.fresh == ()


@pytest.mark.parametrize("head", ["other", "absent"])
def test_a_head_of_another_shape_or_none_starts_from_the_seed(space, weights, head):
    absent = {"classifier__fc__weight": None, "classifier__fc__bias": None}
    path = weights(classes=9) if head == "other" else weights(**absent)
    resident = space(path, "seed=4").resident
    given, drawn = load_file(path), build("lenet5", SHAPE, 3, seed=4).state_dict()
    for key, value in resident.initial.items():
        wanted = drawn[key].numpy() if key.startswith("classifier") else given[key]
        assert np.array_equal(value, wanted), key
    assert resident.fresh == ("classifier",)


@pytest.mark.parametrize(("changes", "line"), [
    ({"fc1__fc__weight": None, "fc1__fc__bias": None}, r"lacks fc1\.fc\.weight, fc1\.fc\.bias;"),
    ({"fc9__x": np.ones(2, np.float32)}, r"has other names: fc9\.x; give the weights of the same"),
    ({"fc2__fc__bias": np.ones(2, np.float32)}, r"fc2\.fc\.bias \(2,\) instead of \(84,\)"),
    ({"fc2__fc__bias": np.full(84, np.nan, np.float32)}, r"fc2\.fc\.bias has values that are not"),
])  # fmt: skip
def test_weights_of_another_model_are_refused(space, weights, changes, line):
    with pytest.raises(RunError, match=f"^initial-model = .*{line}"):
        space(weights(**changes))


def test_long_lists_of_names_are_cut(space, tmp_path):
    save_file({"x": np.ones(1, np.float32)}, tmp_path / "one.safetensors")
    with pytest.raises(RunError, match=r"lacks (conv\S+, ){5}\.\.\.; give"):
        space(tmp_path / "one.safetensors")


@pytest.mark.parametrize(("path", "line"), [
    ("/nowhere/w.safetensors", "is not there; each process needs it"),
    ("w.safetensors", "must be absolute"),
])  # fmt: skip
def test_a_file_that_is_not_there(space, path, line):
    with pytest.raises(RunError, match=f'^initial-model = "{path}": .*{line}'):
        space(path)


def test_a_file_that_is_no_model(space, tmp_path):
    (tmp_path / "w.safetensors").write_bytes(b"nothing")
    with pytest.raises(RunError, match="cannot be read"):
        space(tmp_path / "w.safetensors")


def test_a_run_goes_on_from_the_model_of_another(serial_run, tiny_npz, read_model, capsys):
    """Two rounds of FedBABU, whose head is never sent; a device uses a client's model alone."""
    first = serial_run(tiny_npz, RUN, 'strategy="fedavg" seed=1')
    path = f'initial-model="{first}/model.safetensors"'
    second = serial_run(tiny_npz, RUN, path, 'strategy="fedbabu"')
    before, after = read_model(first), read_model(second)
    head = [key for key in before if key.startswith("fc2")]
    assert all(np.array_equal(before[key], after[key]) for key in head)
    assert all((before[key] != after[key]).any() for key in before.keys() - head)
    assert "start from the seed" not in capsys.readouterr().out


def test_a_run_says_which_layers_start_from_the_seed(serial_run, tiny_npz, weights, capsys):
    serial_run(tiny_npz, RUN, f'model="lenet5" initial-model="{weights(classes=5)}" num-rounds=1')
    line = "initial-model: these layers start from the seed: classifier"
    assert line in capsys.readouterr().out.splitlines()


def test_a_run_resumes_with_the_same_file_only(serial_run, tiny_npz, weights, read_model):
    path = weights()
    options = tiny_npz, RUN, f'model="lenet5" strategy="fedbabu" initial-model="{path}"'
    whole = serial_run(*options, "num-rounds=3")
    part = serial_run(*options)
    run_serial(config.parse([f'resume="{part}" num-rounds=3']), 1)
    assert all(np.array_equal(v, read_model(part)[k]) for k, v in read_model(whole).items())
    weights(fc2__fc__bias=np.ones(84, np.float32))
    with pytest.raises(RunError, match="the model's code or initial values have changed since"):
        run_serial(config.parse([f'resume="{part}" num-rounds=4']), 1)


def test_a_run_that_began_on_another_processor_resumes_with_a_warning(serial_run, tiny_npz, caplog):
    folder = serial_run(tiny_npz, RUN, "num-rounds=1")
    about = json.loads((folder / "run.json").read_text())
    about["fingerprints"]["model"] = "0123456789abcdef"
    (folder / "run.json").write_text(json.dumps(about))
    run_serial(config.parse([f'resume="{folder}" num-rounds=2']), 1)
    warned = [line for line in caplog.messages if "last digits of the initial model" in line]
    assert len(warned) == 1
    assert "those with which the run began" in warned[0]


def test_an_exported_model_needs_no_file(serial_run, tiny_npz, weights, tmp_path):
    path = weights()
    folder = serial_run(tiny_npz, RUN, f'model="lenet5" initial-model="{path}"')
    model = run_models.of_run(FinishedRun.open(folder), None)
    (tmp_path / "out.safetensors").write_bytes(personalized.packed(model.module, model.about))
    path.unlink()
    again = personalized.load(tmp_path / "out.safetensors").module.state_dict()
    assert all((again[key] == value).all() for key, value in model.module.state_dict().items())
