"""States of clients as an earlier version wrote them: each file tells whose state it is."""

import hashlib
import re

from safetensors import safe_open
from safetensors.numpy import save_file

from fedapps.core import changes, config


def name_before(folder, *unknown):
    """The name of a run for a version that counted all keys that it knew: no text-length.

    The digest of its keys is made here once more.
    """
    later = {"num-clients", "text-length", *unknown}
    growing = {"evaluate-clients", "evaluate-every", "evaluate-rounds", "num-rounds", "patience"}
    keys = changes.counted(config.stored(folder)).items()
    counted = {k: str(v) for k, v in keys if k not in {*growing, *later}}
    return hashlib.sha256(repr(sorted(counted.items())).encode()).hexdigest()[:8]


def rewrite(paths, pattern, new):
    """Change what files of states tell of who wrote them; the tensors stay."""
    for path in paths:
        with safe_open(path, "np") as file:
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (no mapping)
            digest, _, told = file.metadata()["blake2b"].partition(" ")
        changed = re.sub(pattern, new, told)
        assert changed != told
        save_file(tensors, path, {"blake2b": f"{digest} {changed}"})
