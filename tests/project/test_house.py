"""The house: packages import downwards only, and files stay small."""

import ast
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import ROOT

# From the ground up: a package imports from those before it and from itself.
FLOORS = (
    "core",
    "launcher",
    "data",
    "tasks",
    "models",
    "training",
    "method",
    "secure",
    "wire",
    "drawing",
    "report",
    "engine",
    "split",
    "device",
    "client_app",  # from here on also modules that Flower and people start
    "server_app",
    "serial",
    "compare",
    "python_api",  # what `import fedapps` offers
    "launch",
    "cli",
    "__main__",
)


def imports(path: Path) -> Iterator[str]:
    """Yield the modules that a file imports, also inside functions and for types alone."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module and not node.level, f"{path}: relative imports hide what is used"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def package_of(module: str) -> str:
    """Return the package of fedapps that a module belongs to, or nothing."""
    words = module.split(".")
    return words[1] if words[0] == "fedapps" and len(words) > 1 else ""


@pytest.mark.parametrize("package", FLOORS)
def test_a_package_imports_downwards_only(package):
    below = FLOORS[: FLOORS.index(package) + 1]
    place = ROOT / "fedapps" / package
    for path in sorted(place.rglob("*.py")) or [place.with_suffix(".py")]:
        for module in imports(path):
            used = package_of(module)
            assert not used or used in below, f"{path.relative_to(ROOT)} imports {module}"


def test_every_package_has_a_floor():
    packages = {path.parent.name for path in (ROOT / "fedapps").glob("*/__init__.py")}
    modules = {path.stem for path in (ROOT / "fedapps").glob("*.py")} - {"__init__"}
    assert packages | modules == set(FLOORS)


def module_of(path: Path) -> str:
    """Return the dotted name of a file's module."""
    words = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(words[:-1] if words[-1] == "__init__" else words)


def above(module: str) -> Iterator[str]:
    """Yield the packages that a module is in."""
    while module := module.rpartition(".")[0]:
        yield module


def test_no_two_modules_need_each_other():
    files = {module_of(path): path for path in (ROOT / "fedapps").rglob("*.py")}
    edges = {
        name: {used for used in imports(path) if used in files and used not in (name, *above(name))}
        for name, path in files.items()
    }

    def reachable(start: str) -> set[str]:
        seen, todo = set[str](), [*edges[start]]
        while todo:
            if (module := todo.pop()) not in seen:
                seen.add(module)
                todo += edges[module]
        return seen

    assert not [name for name in files if name in reachable(name)]


@pytest.mark.parametrize("folder", ["strategies", "clients"])
def test_methods_import_the_authors_interface_alone(folder):
    """Those of split learning `fedapps.split` too; a client knows its own strategy's settings."""
    for path in sorted((ROOT / folder).glob("[a-z]*.py")):
        own = {"fedapps.method", "fedapps.split", f"strategies.{path.stem}"}
        modules = {n for n in imports(path) if n.split(".")[0] in ("fedapps", "strategies")}
        allowed = {name for name in modules if name in own or name.rpartition(".")[0] in own}
        assert modules == allowed, f"{path.name} imports {modules - allowed}"


def test_files_are_small():
    """A file does one thing; one that has grown past this does two."""
    for folder in ("fedapps", "strategies", "clients", "experiments", "deploy"):
        for path in (ROOT / folder).rglob("*.py"):
            lines = len(path.read_text("utf-8").splitlines())
            assert lines <= 300, f"{path.relative_to(ROOT)} has {lines} lines"


BLAS = {"dot", "vdot", "inner", "matmul", "tensordot"}
BY_TORCH = {"strategies/pfedhn.py", "fedapps/training/clipping.py"}  # its threads are a key
OF_CLIENTS = {"fedapps/method/robust.py"}  # a number for each pair: too few for two threads


@pytest.mark.parametrize("folder", ["strategies", "clients", "fedapps/training", "fedapps/method"])
def test_no_digits_depend_on_the_threads_of_blas(folder):
    """Products of whole models in NumPy are sums of products instead."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        place = str(path.relative_to(ROOT))
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
                assert place in BY_TORCH | OF_CLIENTS, f"{place}, line {node.lineno}: @"
            elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "np":
                assert node.attr not in BLAS, f"{place}, line {node.lineno}: np.{node.attr}"


EXPERIMENTS = ("papers", "run", "outcomes", "figures", "publish")  # from the ground up


def test_the_packages_of_experiments_import_downwards_only():
    packages = {path.parent.name for path in (ROOT / "experiments").glob("*/__init__.py")}
    assert packages == set(EXPERIMENTS)
    for floor, package in enumerate(EXPERIMENTS):
        for path in (ROOT / "experiments" / package).glob("*.py"):
            used = {name.split(".")[1] for name in imports(path) if name.startswith("experiments.")}
            above = used.intersection(EXPERIMENTS[floor + 1 :])
            assert not above, f"{path.relative_to(ROOT)} imports {above}"
    for path in (ROOT / "fedapps").rglob("*.py"):  # the command and the check of the app's place
        used = {name for name in imports(path) if name.split(".")[0] == "experiments"}
        assert used <= {"experiments", "experiments.__main__", "experiments.__main__.main"}


@pytest.mark.parametrize("timeout", [True, False], ids=["linux", "macos"])
def test_what_has_to_hold_can_be_checked_without_gnu_timeout(timeout, tmp_path):
    """Nothing is installed or tested: `make` only prints its arguments here."""
    (tmp_path / "make").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "make").chmod(0o755)
    for name in ("bash", "dirname", "id") + ("timeout",) * timeout:
        (tmp_path / name).symlink_to(shutil.which(name))
    command = [str(tmp_path / "bash"), str(ROOT / ".ci/run")]
    path = {"PATH": str(tmp_path)}
    told = subprocess.run(command, env=path, capture_output=True, text=True, check=True).stdout
    assert told == 'lint\ntest ARGS=-m "thorough or not thorough"\n'
