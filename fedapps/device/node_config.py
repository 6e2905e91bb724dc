"""The keys of a device's node-config. This loads fast, so that a mistake shows at the start."""

from collections.abc import Collection

from fedapps.core.errors import RunError
from fedapps.core.words import did_you_mean

KEYS = ("client-id", "data", "state-dir")
OPTIONAL = ("model-key", "dp-budget")
EXAMPLE = """--node-config 'client-id=7 data="/path/train.npz" state-dir="/path/state"'"""
_OTHERS = {"num-partitions", "partition-id", "workers"}  # of simulations and of any SuperNode


def is_device(keys: Collection[str]) -> bool:
    """Tell whether a node-config with these keys is that of a device with data of its own.

    Raises `RunError` if it is, but a key is missing or unknown. An unknown key is not passed over:
    a device whose `model-key` is misspelt would take part in a run that this key refuses.
    """
    if not any(key in keys for key in KEYS):
        return False
    for key in KEYS:
        if key not in keys:
            raise RunError(f"node-config: {key} is missing; give all three: {EXAMPLE}")
    known = (*KEYS, *OPTIONAL)
    for key in keys:
        if key not in known and key not in _OTHERS:
            hint = did_you_mean(key, known) or f": must be one of {', '.join(known)}"
            raise RunError(f"node-config: unknown key {key}{hint}")
    return True
