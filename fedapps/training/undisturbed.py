"""Work in a process that belongs to others, such as a notebook, and leave it as it was."""

import logging
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fedapps.training.torch_device import same_kernels
from fedapps.training.workspace import workspace

_turn = threading.RLock()  # a process has one workspace, so its threads take turns


@contextmanager
def undisturbed() -> Iterator[None]:
    """Restore torch's threads, kernels and random numbers, and the filters of warnings and logs."""
    flower = logging.getLogger("flwr")
    gpus = range(torch.cuda.device_count())
    with _turn, warnings.catch_warnings(), torch.random.fork_rng(gpus), same_kernels():
        threads, filters = torch.get_num_threads(), [*flower.filters]
        try:
            yield
        finally:
            torch.set_num_threads(threads)
            workspace.cache_clear()  # the next one sets the number of threads again
            flower.filters[:] = filters
