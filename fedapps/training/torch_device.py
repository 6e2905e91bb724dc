"""The torch device of a process, which the key `device` chooses."""

import torch

from fedapps.core.errors import RunError

GPU_HINT = (
    "fedapps run --federation-config 'num-supernodes=4 client-resources-num-cpus=2 "
    "client-resources-num-gpus=0.25'"
)


def pick_torch_device(name: str) -> torch.device:
    """Return the torch device for the key `device`; raises `RunError` for cuda without a GPU.

    On a GPU, convolutions are set to full float32 and to repeatable bits, as on CPUs. By default,
    cuDNN uses 10-bit mantissas (TF32) and adds up in any order.
    """
    if name == "cuda" and not torch.cuda.is_available():
        raise RunError(
            f'device = "cuda": no GPU is visible here; use "cpu", or give actors one: {GPU_HINT}'
        )
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda":
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cudnn.deterministic = True
    return torch.device(name)
