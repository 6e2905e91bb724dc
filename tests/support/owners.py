"""Whose files they are: states that tell of their client, folders of another user."""

import errno
import os
import re
from pathlib import Path

from safetensors import safe_open
from safetensors.numpy import save_file


def rewrite(paths, pattern, new):
    """Change what files of states tell of who wrote them; the tensors stay."""
    for path in paths:
        with safe_open(path, "np") as file:
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (no mapping)
            digest, _, told = file.metadata()["blake2b"].partition(" ")
        changed = re.sub(pattern, new, told)
        assert changed != told
        save_file(tensors, path, {"blake2b": f"{digest} {changed}"})


def hide(patch, folder):
    """Let nobody list a folder, as if it were another user's; the tests can be those of root."""
    names = os.listdir

    def private(path):
        if Path(path) == folder:
            raise PermissionError(errno.EACCES, "Permission denied")
        return names(path)

    patch.setattr(os, "listdir", private)
