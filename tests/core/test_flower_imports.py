"""What we take of Flower beyond its promises is taken in one place, and is there."""

import ast
import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedapps.core import flower
from fedapps.device import supernode as device
from fedapps.device import warm
from fedapps.launcher import superlink as launcher
from fedapps.wire import superlink as server
from tests.support import ROOT

PUBLIC = {
    "flwr.app", "flwr.client", "flwr.clientapp", "flwr.serverapp", "flwr.serverapp.strategy",
    "flwr.simulation",
}  # fmt: skip
# warm.py is run as a plain file, in a process in which nothing of fedapps may be loaded.
MAY = {"fedapps/core/flower.py", "fedapps/device/warm.py"}
PACKAGES = ("fedapps", "strategies", "clients", "experiments", "deploy")
SOURCES = [path for name in PACKAGES for path in sorted((ROOT / name).rglob("*.py"))]


def imported(path):
    """Return the modules of Flower that a file imports, also by a text that is a module's name."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            if node.module == "flwr":  # modules, or nothing that is public
                found |= {f"flwr.{alias.name}" for alias in node.names}
    return {name for name in found if name.partition(".")[0] == "flwr"}


@pytest.mark.parametrize("given", [
    {}, {"FLWR_TELEMETRY_ENABLED": "1", "FLWR_DISABLE_UPDATE_CHECK": ""},
])  # fmt: skip
@pytest.mark.parametrize("program", ["supernode", "superlink", "run"])
def test_flower_reports_nothing_unless_it_is_told_to(program, given, monkeypatch, tmp_path):
    """Before it is loaded, because it reads the first of the two variables only then."""
    for name in ("FLWR_TELEMETRY_ENABLED", "FLWR_DISABLE_UPDATE_CHECK", "PATH"):
        monkeypatch.setenv(name, os.environ.get(name, ""))  # the processes of other tests have it
    for name in ("FLWR_TELEMETRY_ENABLED", "FLWR_DISABLE_UPDATE_CHECK"):
        monkeypatch.delenv(name)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(os, "umask", lambda _: 0)
    monkeypatch.setattr(sys, "argv", ["flower-supernode"])
    monkeypatch.setattr(device, "shorten_backoff", lambda: sys.exit("Flower is loaded"))
    monkeypatch.setattr(server, "answer_sooner", lambda: sys.exit("Flower is loaded"))
    if program == "run":
        env = launcher.environment(tmp_path)
    else:
        with pytest.raises(SystemExit, match="Flower is loaded"):
            (device if program == "supernode" else server).main()
        env = os.environ
    wanted = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"} | given
    assert {name: env[name] for name in wanted} == wanted


def test_only_one_module_imports_what_flower_does_not_promise():
    found = {path.relative_to(ROOT).as_posix(): imported(path) - PUBLIC for path in SOURCES}
    assert len(found) > 300 and {path for path, names in found.items() if names} <= MAY


def test_what_is_taken_of_flower_is_there_and_typed():
    """Names for the type checker and those for Python are the same."""
    tree = ast.parse((ROOT / "fedapps/core/flower.py").read_text("utf-8"))
    blocks = [node for node in tree.body if isinstance(node, ast.If)]
    (block,) = [node for node in blocks if ast.unparse(node.test) == "TYPE_CHECKING"]
    typed = {alias.name: node.module for node in block.body for alias in node.names}
    assert typed == flower._HOMES
    for name in typed:
        assert getattr(flower, name) is not None


def test_the_version_that_is_known_to_work_is_the_locked_one():
    lock = (ROOT / "requirements.lock").read_text("utf-8")
    assert f"\nflwr=={flower.TESTED}." in lock


@pytest.mark.parametrize(("module", "other"), [
    ("fedapps.core.flower", "flwr"),
    ("fedapps.device.supernode", "torch"),  # its process never needs it
    ("fedapps.device.node_config", "torch"),  # `fedapps supernode` names a mistake at once
])  # fmt: skip
def test_nothing_large_is_imported_before_it_is_needed(module, other):
    code = f"import sys, {module}; sys.exit('{other}' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_nothing_of_fedapps_is_in_the_process_that_forks():
    code = "import sys; sys.argv = ['x']; import runpy; runpy.run_path(sys.stdin.read())"
    code += "; sys.exit(any(name.partition('.')[0] == 'fedapps' for name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], input=warm.__file__, text=True)
    assert done.returncode == 0


def test_a_name_that_this_flower_lacks_is_one_line(monkeypatch):
    monkeypatch.delattr(importlib.import_module("flwr.supercore.exit"), "ExitCode")
    monkeypatch.delitem(vars(flower), "ExitCode", raising=False)
    with pytest.raises(ImportError) as caught:
        flower.ExitCode  # noqa: B018
    text = str(caught.value)
    assert text.startswith(f"Flower {flower.version()} has no flwr.supercore.exit.ExitCode (")
    assert text.endswith(f"pip install 'flwr=={flower.TESTED}.*'") and "\n" not in text
    with pytest.raises(AttributeError):
        flower.Walk  # noqa: B018


def test_a_command_that_flower_lacks_is_one_line():
    assert callable(flower.command("flower-superexec"))
    with pytest.raises(ImportError, match="has no command flower-hyperlink"):
        flower.command("flower-hyperlink")


def test_flower_finds_its_other_programs_without_a_path():
    """As a supervisor starts a program, or who types .venv/bin/fedapps."""
    code = """if True:
        import shutil
        from fedapps.core import flower
        from fedapps.wire.superlink import main
        flower.command = lambda name: lambda: print(shutil.which("flower-superexec"), flush=True)
        main()
    """
    env = os.environ | {"PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert str(Path(sys.executable).parent / "flower-superexec") in done.stdout.splitlines()
