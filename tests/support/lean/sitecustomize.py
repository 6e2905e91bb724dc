"""Lets a process find only the packages of deploy/device-requirements.lock, as on a device.

Python imports a module of this name when it starts, if its folder is on PYTHONPATH.
"""

import re
import sys
from importlib.machinery import PathFinder
from importlib.metadata import packages_distributions
from pathlib import Path

LOCK = Path(__file__).parents[3] / "deploy" / "device-requirements.lock"


def one_name(package):
    """Packages are written in several ways."""
    return re.sub(r"[-_.]+", "-", package).lower()


def hidden():
    """The modules that no package of the lock has."""
    lines = LOCK.read_text("utf-8").splitlines()
    there = {"fedapps"} | {one_name(line.partition("==")[0]) for line in lines if "==" in line}
    homes = packages_distributions()
    return {module for module, of in homes.items() if there.isdisjoint(map(one_name, of))}


class Finder(PathFinder):
    """Finds what Python finds, except for what is hidden."""

    hidden = frozenset(hidden())

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.partition(".")[0] in cls.hidden:
            return None
        return super().find_spec(name, path, target)


sys.meta_path[:] = [Finder if finder is PathFinder else finder for finder in sys.meta_path]
