"""Work in a process that belongs to others, such as a notebook, and leave it as it was."""

import logging
import os
import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

from fedapps.core.errors import RunError
from fedapps.training.torch_device import same_kernels
from fedapps.training.workspace import workspace

_turn = threading.RLock()  # a process has one workspace, so its threads take turns
_lost = False  # in a fork, if a thread had the turn that is not there


def _in_fork() -> None:
    global _lost
    if _turn.acquire(blocking=False):
        _turn.release()
    else:
        _lost = True


os.register_at_fork(after_in_child=_in_fork)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Compute as in a process of its own, and restore what is set for all of this one.

    These are torch's threads, kernels, modes and random numbers, and filters of warnings and logs.
    Raises `RunError` in a fork that would wait for ever for a thread of the process it is of.
    """
    if _lost:
        raise RunError(
            "this process was forked while a run or a prediction was going on in another thread,"
            ' and would wait for it for ever; start processes with "spawn", or before the thread'
        )
    flower = logging.getLogger("flwr")
    gpus = range(torch.cuda.device_count())
    with _turn, warnings.catch_warnings(), _plain_torch(), torch.random.fork_rng(gpus):
        threads, filters = torch.get_num_threads(), [*flower.filters]
        try:
            yield
        finally:
            torch.set_num_threads(threads)
            workspace.cache_clear()  # the next one sets the number of threads again
            flower.filters[:] = filters


@contextmanager
def _plain_torch() -> Iterator[None]:
    """Have torch's modes as when it was imported; restore them, and the kernels."""
    dtype, at = torch.get_default_dtype(), torch.get_default_device()
    with same_kernels(), ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        for kind in filter(torch.is_autocast_enabled, ("cpu", "cuda")):
            stack.enter_context(torch.autocast(kind, enabled=False))
        if at.type != "cpu":  # as a context, it takes time in each call of torch
            stack.enter_context(torch.device("cpu"))
        stack.callback(torch.set_default_dtype, dtype)
        torch.set_default_dtype(torch.float32)
        yield
