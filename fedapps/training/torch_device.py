"""The torch device of a process, which the key `device` chooses."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch

from fedapps.core.errors import RunError

_memory: Any = torch.utils.deterministic  # its type stub is empty
_torch: Any = torch._C
FULL = "highest"  # precision of products of matrices
UNSET = "none"  # for the newer switches of precision: a backend and an operation of it
_ABOVE = (("generic", "all"), ("cuda", "all"), ("mkldnn", "all"))
_OF_CUDNN = (("cuda", "conv"), ("cuda", "rnn"))
_OF_OTHERS = (("cuda", "matmul"), ("mkldnn", "matmul"), ("mkldnn", "conv"), ("mkldnn", "rnn"))
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
    given = (cudnn.deterministic, _memory.fill_uninitialized_memory)
    with _full_precision():
        try:
            yield
        finally:
            cudnn.deterministic, _memory.fill_uninitialized_memory = given
            torch.set_deterministic_debug_mode(mode)


@contextmanager
def _full_precision() -> Iterator[None]:
    """Set PyTorch's switches of precision, old and newer ones, and restore them.

    The newer ones, which PyTorch 2.9 has, are in levels: what one leaves unset, the one above says.
    So they are unset from above, to find out what each says itself. Those of cuDNN have a default
    that cannot be set again, so they are left alone unless `pick_torch_device` has changed them.
    """
    newer = hasattr(torch._C, "_get_fp32_precision_getter")
    given = {switch: _said(switch) for switch in _OF_CUDNN * newer}
    own = {}
    for switch in (*_ABOVE, *_OF_OTHERS) * newer:
        own[switch] = _said(switch)
        _say(switch, UNSET)
    products, convolutions = torch.get_float32_matmul_precision(), _cudnn_is_short()
    torch.set_float32_matmul_precision(FULL)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(products)
        if _cudnn_is_short() != convolutions:
            torch.backends.cudnn.allow_tf32 = convolutions is not False
        for switch, value in own.items():
            _say(switch, value)
        for switch, value in given.items():
            for one in (UNSET, value):
                if _said(switch) != value:
                    _say(switch, one)


def _cudnn_is_short() -> bool | None:
    """Tell what the old switch of cuDNN says; None if newer ones say otherwise."""
    with suppress(RuntimeError):
        return bool(torch.backends.cudnn.allow_tf32)
    return None


def _said(switch: tuple[str, str]) -> str:
    return str(_torch._get_fp32_precision_getter(*switch))


def _say(switch: tuple[str, str], value: str) -> None:
    _torch._set_fp32_precision_setter(*switch, value)
