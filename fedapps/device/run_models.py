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
        plan = run.newcomer_plan()
        about = msgspec.structs.replace(about, newcomer=plan, initial=run.initial)
    return Personalized(own, about).eval()


def untrained(model: Personalized, run: FinishedRun | None = None) -> str:
    """Warn of what a shared model lacks because clients keep it, and say what to do; "" if nothing.

    Layers that no client shares stay as initialized, also in a file that the model is exported to.
    `run` is where the model is from, if it is not from a file.
    """
    if not model.about.is_scaled:
        return (
            "each device scaled its values by its own mean and deviation, which nobody else knows,"
            " so what this model makes of raw values can be no better than chance; each device"
            " keeps its own model in its state-dir, and `fedapps adopt` personalizes this one"
        )
    if not model.about.initial:
        return ""
    own = "name a client to take its own"
    if run is None:
        own = "the model of a client has its own"
    elif run.space.settings.on_devices:
        own = "each device keeps its own in its state-dir, which can be given instead"
    return (
        "these layers are not shared, at least in part (such as BatchNorms), so they have initial"
        f" values, and predictions can be no better than chance: {', '.join(model.about.initial)};"
        f" {own}, and `fedapps adopt` trains them on a newcomer's data"
    )
