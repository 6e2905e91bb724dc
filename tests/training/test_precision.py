"""PyTorch's switches of precision: those of a notebook are not a run's, and stay as they were."""

import subprocess
import sys

# Each setting is tried in a fork, because PyTorch cannot unset all that it has set.
PROGRAM = """
import os, sys, warnings
import torch
import torch._inductor.config  # which PyTorch imports to be deterministic, for each fork anew
from torch import backends
from torch.backends import cudnn, mkldnn
from fedapps.training.torch_device import pick_torch_device
from fedapps.training.undisturbed import undisturbed

warnings.simplefilter("ignore")
CPU = [lambda of=of: of.fp32_precision for of in (mkldnn.matmul, mkldnn.conv, mkldnn.rnn)]
GPU = [lambda of=of: of.fp32_precision for of in (backends.cuda.matmul, cudnn.conv, cudnn.rnn)]
ABOVE = [lambda: backends.fp32_precision, lambda: cudnn.fp32_precision]
OLD = [
    lambda: cudnn.allow_tf32, lambda: backends.cuda.matmul.allow_tf32,
    torch.get_float32_matmul_precision,
]

def look(*reads):
    found = []
    for read in reads:
        try:
            found.append(read())
        except RuntimeError:  # old and newer switches were mixed
            found.append("mixed")
    return found

def check(setting, name):
    torch.cuda.is_available = lambda: True
    exec(setting)
    before = look(*CPU, *GPU, *ABOVE, *OLD)
    with undisturbed():
        pick_torch_device(name)
        assert {*look(*CPU)} <= {"none", "ieee"}, look(*CPU)
        if name == "cuda":
            assert {*look(*GPU)} <= {"none", "ieee"}, look(*GPU)
            assert look(*OLD) == [False, False, "highest"], look(*OLD)
    after = look(*CPU, *GPU, *ABOVE, *OLD)
    assert after == before, (before, after)
    if "backends.fp32" in setting and ";" not in setting and name == "cpu":
        backends.fp32_precision = "ieee"  # reaches all that have said nothing themselves
        assert {*look(*CPU, *GPU)} == {"ieee"}, look(*CPU, *GPU)

failed = False
for setting in sys.argv[1:]:
    for name in ("cpu", "cuda"):
        child = os.fork()
        if not child:
            try:
                check(setting, name)
            except BaseException as error:
                print(setting, name, repr(error), flush=True)
                os._exit(1)
            os._exit(0)
        failed |= os.waitpid(child, 0)[1] != 0
sys.exit(failed)
"""
SETTINGS = [
    "pass",
    "torch.set_float32_matmul_precision('high')",
    "backends.cuda.matmul.allow_tf32 = True",
    "cudnn.allow_tf32 = False",
    "backends.fp32_precision = 'tf32'",
    "backends.fp32_precision = 'ieee'",
    "backends.fp32_precision = 'bf16'",
    "backends.fp32_precision = 'ieee'; cudnn.conv.fp32_precision = 'tf32'",
    "backends.fp32_precision = 'tf32'; cudnn.allow_tf32 = False",
    "cudnn.fp32_precision = 'ieee'",
    "cudnn.fp32_precision = 'tf32'; torch.set_float32_matmul_precision('medium')",
    "cudnn.conv.fp32_precision = 'ieee'",
    "cudnn.rnn.fp32_precision = 'ieee'; cudnn.allow_tf32 = True",
    "cudnn.conv.fp32_precision = 'ieee'; cudnn.rnn.fp32_precision = 'ieee'",
    "backends.cuda.matmul.fp32_precision = 'tf32'",
    "mkldnn.matmul.fp32_precision = 'bf16'; mkldnn.conv.fp32_precision = 'bf16'",
]


def test_a_run_has_full_precision_whatever_a_notebook_has_set_and_restores_it():
    """The switches that PyTorch 2.9 has, beside the older ones, of which reading can fail then."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *SETTINGS], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
