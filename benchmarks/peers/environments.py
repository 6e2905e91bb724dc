"""The environment of pfl-research: a folder with this Python and this PyTorch."""

import platform
import re
import subprocess
import sys
from pathlib import Path

import torch

PFL = "pfl[pytorch]==0.6.0"


def environment(folder: Path) -> tuple[Path, str]:
    """Return the folder of its programs, and why they cannot be installed, or nothing.

    What is there already is kept. PyTorch has the version that this process has, so that all
    compute with the same kernels.
    """
    place = folder / "pfl"
    done = place / PFL
    if done.exists():
        return place / "bin", ""
    uv = [sys.executable, "-m", "uv", "--quiet"]
    version = torch.__version__.partition("+")[0]
    for command in (
        [*uv, "venv", "--clear", "--python", sys.executable, str(place)],
        [*uv, "pip", "install", "--python", str(place), PFL, f"torch=={version}"],
    ):
        result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode:
            needs = re.search(r"does not satisfy\s+(Python\S+)", result.stderr)
            this = f"needs {needs[1]}, and this is {platform.python_version()}" if needs else ""
            return place, f"{PFL} {this or result.stderr.strip().splitlines()[-1]}"
    done.touch()
    return place / "bin", ""
