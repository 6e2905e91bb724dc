"""The models of a finished run, in the form in which a device keeps its own.

A device itself does not import this: it opens no run directory.
"""

import copy

import msgspec

from fedapps.device.personalized import Personalized, metadata
from fedapps.engine.finished import FinishedRun
from fedapps.models.adapters import merged


def of_run(run: FinishedRun, client: int | None) -> Personalized:
    """Return a client's model of a finished run, or the shared one if `client` is None.

    The model is on the CPU and in eval mode. Raises `RunError` if the run has no such model.
    """
    module = run.shared() if client is None else run.client(client).module()
    own = merged(copy.deepcopy(module)).cpu()  # a copy, because the workspace uses its model again
    about = metadata(run.space, client)
    if client is None:
        about = msgspec.structs.replace(about, newcomer=run.newcomer_plan())
    return Personalized(own, about).eval()
