"""Which versions of Flower the engines work with: `make flower-matrix`.

For the locked version of Flower, the newest on the package index and the nightly there is an
environment below .flower-matrix/, made of requirements.lock with Flower replaced. In each run the
tests of what we take of Flower and of the engines (serial and Ray), and with `--deployment` those
of deployments. A table says what came of it; the logs lie beside the environments.

    python -m tests.support.flower_matrix [--deployment] [locked] [newest] [nightly]
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.support import ROOT

FOLDER = ROOT / ".flower-matrix"
LOCK = ROOT / "requirements.lock"
TESTS = (
    "tests/core/test_flower_changes.py", "tests/core/test_flower_imports.py",
    "tests/apps/test_flower.py", "tests/methods/test_methods.py",
)  # fmt: skip
DEPLOYMENT = ("-n", "5", "--dist", "load", "-m", "deployment", "tests/deploy")  # 8 minutes
EXTRAS = "[dp,simulation]"
NAMES = ("locked", "newest", "nightly")


@dataclass(frozen=True)
class Row:
    """What came of one version."""

    name: str
    package: str
    installed: str  # "yes", or "no" and what was missing
    tests: str  # pytest's last line
    deployment: str = "not asked for"

    def __str__(self) -> str:
        cells = (self.name, self.package, self.installed, self.tests, self.deployment)
        return f"| {' | '.join(cells)} |"


def call(log: Path, *command: object) -> tuple[int, list[str]]:
    """Run a command in the project; its output goes to the end of a log and is returned."""
    # A test's own Flower: no SuperLink, home or address of somebody else's.
    env = {key: value for key, value in os.environ.items() if not key.startswith("FLWR_")}
    env |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    env |= {"UV_SYSTEM_CERTS": env.get("UV_SYSTEM_CERTS", "1")}
    done = subprocess.run(
        [*map(str, command)], cwd=ROOT, env=env, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    with log.open("a") as file:
        file.write(f"$ {' '.join(map(str, command))}\n{done.stdout}\n")
    return done.returncode, [line for line in done.stdout.splitlines() if line.strip()]


def package(name: str, uv: str, log: Path) -> str:
    """Return the package and version of a name, as flwr==1.41.0.

    The newest is looked for by itself: with all that it needs uv would take an older one in silence
    where something is missing.
    """
    if name == "locked":
        lines = LOCK.read_text("utf-8").splitlines()
        return next(line for line in lines if line.startswith("flwr=="))
    wanted = FOLDER / f"{name}.in"
    wanted.write_text("flwr\n" if name == "newest" else "flwr-nightly\n")
    options = ("--quiet", "--upgrade", "--no-deps", "--no-header", "--no-annotate")
    status, output = call(log, uv, "pip", "compile", *options, wanted)
    if status:
        raise SystemExit(f"no package was found: {' '.join(output)}")
    return next(line for line in output if line.startswith("flwr"))


def install(name: str, wanted: str, uv: str, log: Path) -> str:
    """Make an environment; return "yes", or "no" and what could not be had."""
    python = FOLDER / name / "bin" / "python"
    rest = FOLDER / f"{name}.txt"
    lines = LOCK.read_text("utf-8").splitlines(keepends=True)
    rest.write_text("".join(line for line in lines if not line.startswith("flwr==")))
    pip = (uv, "pip", "install", "--quiet", "--python", python)
    steps = (
        (uv, "venv", "--quiet", "--clear", "--python", sys.executable, python.parent.parent),
        (*pip, "--requirement", rest),
        (
            *pip,
            wanted.replace("==", f"{EXTRAS}=="),
        ),  # which may need other versions of what is locked
        (*pip, "--no-deps", "--editable", ROOT),
    )
    for step in steps:
        status, output = call(log, *step)
        if status:
            said = " ".join(" ".join(output).split()).replace("|", "/")
            cause = re.search(r"Because (.*?), we can conclude", said)  # as uv names what it lacks
            return f"no: {cause[1] if cause else said[:200]}"
    return "yes"


def try_version(name: str, uv: str, deployment: bool) -> Row:
    """Install one version and run the tests with it."""
    log = FOLDER / f"{name}.log"
    log.unlink(missing_ok=True)
    wanted = package(name, uv, log)
    print(f"{name}: {wanted} (log: {FOLDER.name}/{log.name})", flush=True)
    installed = install(name, wanted, uv, log)
    if installed != "yes":
        return Row(name, wanted, installed, "none")
    python = FOLDER / name / "bin" / "python"
    pytest = (python, "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile")
    suites = (TESTS, DEPLOYMENT) if deployment else (TESTS,)
    last = [call(log, *pytest, *suite)[1][-1].strip("= ") for suite in suites]
    return Row(name, wanted, installed, *last)


def main() -> int:
    """Try the versions that are asked for and print the table; 1 if one that installs fails."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.support.flower_matrix", description=__doc__
    )
    parser.add_argument("names", nargs="*", metavar="|".join(NAMES), help="versions [all]")
    parser.add_argument("--deployment", action="store_true", help="also test deployments")
    options = parser.parse_args()
    names = options.names or NAMES
    if unknown := [name for name in names if name not in NAMES]:
        parser.error(f"{', '.join(unknown)}: must be of {', '.join(NAMES)}")
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if uv is None:
        parser.error("uv was not found; run make flower-matrix")
    FOLDER.mkdir(exist_ok=True)
    rows = [try_version(name, uv, options.deployment) for name in names]
    print("\n| Flower | package | installed | engines | deployment |\n|---|---|---|---|---|")
    print(*rows, sep="\n")
    return int(any(word in str(row) for row in rows for word in ("failed", "error")))


if __name__ == "__main__":
    sys.exit(main())
