"""The torch device of a process, which the key `device` chooses."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch

from fedapps.core.errors import RunError

_memory: Any = torch.utils.deterministic  # its type stub is empty
FULL = "highest"  # precision of products of matrices
GPU_HINT = (
    "fedapps run --federation-config 'num-supernodes=4 client-resources-num-cpus=2 "
    "client-resources-num-gpus=0.25'"
)


def pick_torch_device(name: str) -> torch.device:
    """Return the torch device for the key `device`; raises `RunError` for cuda without a GPU.

    Products of matrices have full float32 precision, which a process or NVIDIA's images can have
    lowered. A GPU gives the same bits again, as CPUs do. By default, cuDNN uses 10-bit mantissas
    (TF32), and several kernels add up in any order. What PyTorch cannot do in a fixed order warns.
    """
    torch.set_float32_matmul_precision(FULL)
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
    """Begin with full precision; restore how this process computes, as `pick_torch_device` sets."""
    cudnn, mode = torch.backends.cudnn, torch.get_deterministic_debug_mode()
    given = (cudnn.allow_tf32, cudnn.deterministic, _memory.fill_uninitialized_memory)
    of_cpu = getattr(torch.backends.mkldnn, "matmul", None)
    of_products: tuple[Any, ...] = (torch.backends.cuda.matmul, of_cpu)
    newer = [(of, of.fp32_precision) for of in of_products if hasattr(of, "fp32_precision")]
    precision = ""
    with suppress(RuntimeError):  # it was set in the newer way, which PyTorch 2.9 has
        precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(FULL)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(precision or FULL)
        for of, was in newer:
            of.fp32_precision = was
        cudnn.allow_tf32, cudnn.deterministic, _memory.fill_uninitialized_memory = given
        torch.set_deterministic_debug_mode(mode)
