"""The code on a GPU: on a real one where there is one, and everywhere on a pretended one."""

import os
import threading
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from fedapps.core import registry
from fedapps.core.config import read
from fedapps.device import personalized
from fedapps.serial import run_serial
from fedapps.tasks import CLASSIFICATION
from fedapps.training import run_data
from fedapps.training.draw import Draw
from fedapps.training.evaluation import score
from fedapps.training.plan import Clip, Stage
from fedapps.training.torch_device import pick_torch_device
from fedapps.training.undisturbed import undisturbed
from fedapps.training.workspace import Workspace
from tests.support import kinds
from tests.support.marks import LONG, THOROUGH
from tests.support.methods import needed
from tests.support.pretended_gpu import DEVICE, Gpu

METHODS = registry.names()
SOME = {"apfl", "fedala", "fedavg", "fedbabu", "fedcmd", "fedfc", "perfreezeclip", "pfedsim"}
WITH = {"perfreezeclip": "local-epochs=2"}  # it cannot divide one
VARIANTS = [
    'strategy="fedavg" augment="crop-flip" momentum=0.9 weight-decay=0.01 score-last=true',
    'strategy="fedavg" server-data=0.2 server-part="body" model="conv4" bn-stats="batch"',
    'strategy="fedavg" dp.mode="central"',
    'strategy="fedavg" dp.mode="local" model="mobilenet" num-rounds=1 batch-size=32',
    'strategy="fedbabu" model="resnet18" bn-local=true num-rounds=1 batch-size=32',
    'strategy="fedrep" prox-mu=0.1 clip-percentile=50.0 clip-mode="sample"',
    'strategy="fedcmd" model="lenet5" fedcmd.candidates="all" fedcmd.selection-fraction=0.5',
    'strategy="fedcmd" model="lenet5" fedcmd.label-encoding="onehot" fedcmd.weighting="uniform"',
    'strategy="perfedavg" perfedavg.mode="hf"',
    'strategy="sflv1" sflv1.sync="round" sflv1.oversample=true model="conv4"',
    'strategy="fedfc" fedfc.cuts="1,2,3,1,2,3" momentum=0.9',
    'strategy="fedrep" group=4 model="lenet5" momentum=0.9 prox-mu=0.1 clip-percentile=50.0',
    'strategy="fedseq" group="auto" model="cnn" augment="crop-flip"',
]
FILES = ("clients.csv", "classes.csv", "events.csv", "model.safetensors")


@pytest.fixture
def gpu(monkeypatch):
    """Return the pretended GPU, which `device="cuda"` means and which threads see, too."""
    made, run = Gpu(), threading.Thread.run

    def run_with_gpu(thread):
        with made:
            run(thread)

    monkeypatch.setattr(threading.Thread, "run", run_with_gpu)
    # a module that moves gets new parameters, as it does between real devices of two kinds
    monkeypatch.setattr(torch.__future__, "_overwrite_module_params_on_conversion", True)
    monkeypatch.setattr(
        run_data,
        "pick_torch_device",
        lambda name: DEVICE if name == "cuda" else pick_torch_device(name),
    )
    return made


def test_the_pretended_gpu_is_a_device_of_its_own(gpu):
    with gpu:
        x = torch.arange(6.0).view(3, 2).to(DEVICE)
        assert x.device == DEVICE
        assert (x + torch.tensor(1.0)).cpu().tolist() == [[1, 2], [3, 4], [5, 6]]
        with pytest.raises(RuntimeError, match="two devices"):
            x + torch.ones(3, 2)
        with pytest.raises(RuntimeError, match="two devices"):
            x.index_select(0, torch.tensor([1]))
        with pytest.raises(RuntimeError, match="numpy"):
            x.numpy()
        gpu.counts.clear()
        assert float(x.sum()) == 15
    assert gpu.counts == {"launches": 1, "waits": 1}


@pytest.mark.parametrize(
    "options",
    [
        (pytest.param if method in SOME else (THOROUGH, LONG)[place % 2])(
            f'strategy="{method}" {WITH.get(method) or needed(method)}'
        )
        for place, method in enumerate(METHODS)
    ]
    + [*map(THOROUGH, VARIANTS)],
)
def test_a_run_on_the_pretended_gpu_gives_the_same_numbers(options, serial_run, tiny_npz, gpu):
    run = partial(serial_run, tiny_npz, "evaluate-every=0", options)
    expected = run()
    with gpu:
        found = run('device="cuda"')
    assert gpu.counts["launches"] > 100
    for name in FILES:
        assert (found / name).read_bytes() == (expected / name).read_bytes(), name


@pytest.mark.parametrize("options", ["", "adapter-rank=1"])
def test_what_never_changes_is_not_sent_to_the_gpu_for_each_client(
    options, flat_config, tiny_npz, gpu
):
    """Frozen weights and the counters of BatchNorms; the rest has arrays of its own."""
    keys = f'{tiny_npz} model="lenet5" {options}'
    here = Workspace(read(flat_config(keys)))
    with gpu:
        space = Workspace(read(flat_config(keys, 'device="cuda"')))
        assert space.resident.fingerprint == here.resident.fingerprint
        gpu.counts.clear()
        space.reset({})
    assert len(space.resident.counters) > 0
    assert gpu.counts["copies"] == len(space.initial)


def test_a_device_with_a_gpu_keeps_its_model(flat_config, no_plots, make_npz, gpu, tmp_path):
    found = []
    for device in ("cpu", "cuda"):
        own, state = make_npz(tmp_path / f"{device}.npz"), tmp_path / device
        options = (
            'dataset="device" input-shape="1,8,8" num-classes=3 num-clients=1 fraction-train=1.0 '
            f'strategy="fedrod" device="{device}"'
        )
        nodes = [{"client-id": 0, "data": str(own), "state-dir": str(state)}]
        with gpu:
            run_serial(flat_config(options), node_configs=nodes)
        found.append(personalized.predict(personalized.load(state), own)[1])
    assert np.array_equal(*found)


@pytest.mark.parametrize(("config", "stage", "waits"), [
    ("", {}, 0),
    ('augment="crop-flip"', {"momentum": 0.9, "prox_mu": 0.1}, 0),
    ('model="lenet5"', {"weight_decay": 0.1}, 0),
    ("", {"clip": Clip(percentile=90, max_norm=1.0, mode="batch", history=100)}, 1),
    ("", {"clip": Clip(percentile=90, max_norm=1.0, mode="sample", history=100)}, 1),
])  # fmt: skip
def test_a_step_waits_for_its_norm_at_most(config, stage, waits, flat_config, tiny_npz, gpu):
    with gpu:
        space = Workspace(read(flat_config(tiny_npz, config, 'device="cuda"')))
        trainer, data, counts = space.trainer, space.samples(0, "train"), []
        for steps in (1, 2):
            gpu.counts.clear()
            stage_ = Stage(layers=space.layout.names, epochs=1, lr=0.1, max_steps=steps, **stage)
            done = trainer.train(data, (stage_,), Draw(0, "train", 1, 0))
            assert done.batches == steps
            counts.append(gpu.counts.copy())
    assert counts[1]["launches"] > counts[0]["launches"]
    assert counts[1]["copies"] == counts[0]["copies"]
    assert counts[1]["waits"] - counts[0]["waits"] == waits


def test_a_gpu_computes_in_float32_and_repeatably_until_the_run_is_over(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")  # what it was is put back
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")

    def kernels():
        cudnn, fills = torch.backends.cudnn, torch.utils.deterministic.fill_uninitialized_memory
        mode = torch.get_deterministic_debug_mode()
        return cudnn.allow_tf32, cudnn.deterministic, mode, fills

    before = kernels()
    with undisturbed():
        assert pick_torch_device("cpu").type == "cpu"
        assert kernels() == before == (True, False, 0, True)
        assert pick_torch_device("auto").type == "cuda"
        assert kernels() == (False, True, 1, False)
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert kernels() == before


# Gradients go through a recurrent layer that is not trained, or of a model that was.
RECURRENT = [
    ("series", 'strategy="fedas" model="gru"'),
    ("tokens", 'strategy="fedseq" fedseq.schedule="vanilla" model="lstm-char"'),
]
FEW = "num-rounds=2 num-clients=2 fraction-train=1.0 local-epochs=1 finetune-epochs=1"


@pytest.fixture
def cudnn(monkeypatch):
    """Whether recurrent layers were in training mode, for each gradient that they got.

    cuDNN refuses one in eval mode. With `group`, our own layers are in their place.
    """
    modes, forward = [], {cls: cls.forward for cls in (nn.GRU, nn.LSTM)}

    def watched(module, *args):
        found, mode = forward[type(module)](module, *args), module.training
        if found[0].requires_grad:
            found[0].register_hook(lambda gradient: modes.append(mode))
        return found

    for cls in forward:
        monkeypatch.setattr(cls, "forward", watched)
    return modes


@pytest.mark.parametrize(("kind", "keys"), RECURRENT)
def test_recurrent_layers_take_gradients_as_cudnn_wants(kind, keys, serial_run, tmp_path, cudnn):
    serial_run(kinds.options(tmp_path, kind), f"{FEW} {keys}")
    assert cudnn and all(cudnn)


@pytest.mark.parametrize("cls", [nn.GRU, nn.LSTM])
def test_a_gradient_that_cudnn_refuses_is_seen(cls, cudnn):
    for mode in (True, False):
        cls(2, 2).train(mode)(torch.ones(1, 1, 2))[0].sum().backward()
    assert cudnn == [True, False]


on_a_gpu = pytest.mark.skipif(
    not torch.cuda.is_available(),
    reason="2026-11-27: no GPU is visible here; docs/engines.md says what passed on an H200",
)


@on_a_gpu
@pytest.mark.parametrize("group", [0, 4])
@pytest.mark.parametrize("method", METHODS)
def test_a_gpu_repeats_its_numbers_and_is_near_the_cpus(
    method, group, serial_run, read_model, tiny_npz
):
    needs = WITH.get(method) or needed(method)
    options = f'{tiny_npz} strategy="{method}" {needs} group={group}'
    devices = ("cpu", "cuda", "cuda")
    cpu, first, again = (serial_run(options, f'device="{device}"') for device in devices)
    for name in FILES:
        assert (again / name).read_bytes() == (first / name).read_bytes(), name
    expected, found = read_model(cpu), read_model(first)
    for key, value in expected.items():
        # a few steps of SGD in float32, where only the order of sums differs
        np.testing.assert_allclose(found[key], value, rtol=1e-3, atol=1e-4, err_msg=key)


@on_a_gpu
@pytest.mark.parametrize(("kind", "keys"), RECURRENT)
def test_a_gpu_trains_recurrent_layers(kind, keys, serial_run, read_model, tmp_path):
    data, options = kinds.options(tmp_path, kind), f"{FEW} {keys}"
    cpu, cuda = (
        read_model(serial_run(data, options, f'device="{device}"')) for device in ("cpu", "cuda")
    )
    for key, value in cpu.items():
        np.testing.assert_allclose(cuda[key], value, rtol=1e-3, atol=1e-4, err_msg=key)


@on_a_gpu
def test_a_gpu_scores_as_the_cpu_does(flat_config, tiny_npz):
    found = []
    for device in ("cpu", "cuda"):
        space = Workspace(read(flat_config(tiny_npz, f'device="{device}"')))
        space.model.eval()
        found.append(score(space.model, space.samples(0, "test"), CLASSIFICATION))
    cpu, cuda = found
    assert cuda.loss == pytest.approx(cpu.loss, rel=1e-5)
    assert np.array_equal(cuda.counts["right"], cpu.counts["right"])


@on_a_gpu
def test_a_gpu_convolves_in_float32():
    draws, found = torch.Generator().manual_seed(0), []
    images, kernels = (torch.randn(s, generator=draws) for s in ((10, 32, 12, 12), (64, 32, 5, 5)))
    with undisturbed():
        for device, dtype in ((pick_torch_device("cuda"), torch.float32), ("cpu", torch.float64)):
            inputs, weight = (
                t.to(device, dtype, copy=True).requires_grad_() for t in (images, kernels)
            )
            outputs = torch.nn.functional.conv2d(inputs, weight)
            outputs.square().sum().backward()
            found.append([t.detach().cpu().double() for t in (outputs, inputs.grad, weight.grad)])
    for single, double in zip(*found, strict=True):  # TF32 is 3e-4 off
        assert (single - double).abs().max() < 1e-5 * double.abs().max()
