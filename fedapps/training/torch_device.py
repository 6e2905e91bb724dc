"""The torch device of a process, which the key `device` chooses."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from fedapps.core.errors import RunError

_memory: Any = torch.utils.deterministic  # its type stub is empty
GPU_HINT = (
    "fedapps run --federation-config 'num-supernodes=4 client-resources-num-cpus=2 "
    "client-resources-num-gpus=0.25'"
)


def pick_torch_device(name: str) -> torch.device:
    """Return the torch device for the key `device`; raises `RunError` for cuda without a GPU.

    A GPU computes in full float32 and gives the same bits again, as CPUs do. By default, cuDNN
    uses 10-bit mantissas (TF32), and several kernels add up in any order. What PyTorch cannot do
    in a fixed order warns.
    """
    if name == "cuda" and not torch.cuda.is_available():
        raise RunError(
            f'device = "cuda": no GPU is visible here; use "cpu", or give actors one: {GPU_HINT}'
        )
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # else cuBLAS warns
        torch.backends.cudnn.allow_tf32, torch.backends.cudnn.deterministic = False, True
        torch.use_deterministic_algorithms(True, warn_only=True)
        _memory.fill_uninitialized_memory = False  # a kernel more for each tensor
    return torch.device(name)


@contextmanager
def same_kernels() -> Iterator[None]:
    """Restore how this process computes on a GPU, which `pick_torch_device` sets."""
    cudnn, mode = torch.backends.cudnn, torch.get_deterministic_debug_mode()
    given = (cudnn.allow_tf32, cudnn.deterministic, _memory.fill_uninitialized_memory)
    try:
        yield
    finally:
        cudnn.allow_tf32, cudnn.deterministic, _memory.fill_uninitialized_memory = given
        torch.set_deterministic_debug_mode(mode)
