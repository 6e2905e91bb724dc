"""What Flower's hub would get of this project, and that it runs as it arrives there."""

import importlib
import io
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from flwr.cli.build import build_fab_from_files
from flwr.cli.utils import collect_files, filter_paths_for_publish

from fedapps.core import flower, project
from fedapps.launcher.inputs import staged
from tests.support import ROOT

publish = importlib.import_module("flwr.cli.app_cmd.publish")  # its package has a function so named
PROGRAM = """
import sys, fedapps
from fedapps.cli import main
print(fedapps.__file__)
sys.exit(main(["serial", "-c", sys.argv[1]]))
"""


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A folder with the files that `flwr app publish` would send."""
    folder = tmp_path_factory.mktemp("hub") / "fedapps"
    with staged(ROOT) as copy:  # without environments and caches, which take long to look at
        for name, path in filter_paths_for_publish(collect_files(copy)).items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, folder / name)
    return folder


@pytest.fixture(scope="module")
def bundle(published):
    """The app's bundle (FAB), built from what is published, and what Flower says of it."""
    content, metadata = build_fab_from_files(collect_files(published))
    return zipfile.ZipFile(io.BytesIO(content)), metadata


def test_flower_would_publish_it(published, capsys):
    """Its own checks, which end the command: name, description, license, sizes, encoding."""
    publish._validate_app_name(published.name, "directory")
    publish._validate_description(project.pyproject()["project"]["description"])
    publish._validate_files(publish._collect_file_paths(published))
    out = capsys.readouterr().out
    assert "Validation passed" in out and "Skip" not in out


@pytest.mark.parametrize("row", ["benchmark-digits/a-new-row-s0.json", "a-new-table.jsonl"])
def test_git_keeps_the_results_that_the_hub_does_not_get(published, row):
    assert not [*(published / "experiments" / "results").rglob(f"*{Path(row).suffix}")]
    path = f"experiments/results/cpu/{row}"
    ignored = subprocess.run(["git", "check-ignore", "--quiet", path], cwd=ROOT)
    assert ignored.returncode != 0, "git would not add it"


def test_a_reader_of_the_hub_finds_the_way(published):
    for name in ("README.md", "LICENSE", "CHANGELOG.md", "docs", "strategies", "tests"):
        assert (published / name).exists(), name


def test_the_bundle_has_format_1_and_all_of_the_code(bundle):
    fab, metadata = bundle
    target = metadata.flwr_version_target
    assert metadata.fab_format_version == 1 and target.startswith(f"{flower.TESTED}.")
    assert f"flwr=={target}" in (ROOT / "requirements.lock").read_text("utf-8").split()
    names = set(fab.namelist())
    code = ("fedapps", "strategies", "clients", "experiments", "models")
    ours = {p.relative_to(ROOT).as_posix() for part in code for p in (ROOT / part).rglob("*.py")}
    assert names - {".info/CONTENT"} == {"LICENSE", "pyproject.toml"} | ours


@pytest.mark.slow
def test_the_unpacked_bundle_runs(bundle, tmp_path, data_root, read_csv):
    fab, _ = bundle
    app = tmp_path / "app"
    fab.extractall(app)
    options = (
        f"strategy=fedper num-clients=4 num-rounds=1 local-epochs=1 finetune-epochs=1 "
        f"runs-dir={tmp_path}/runs data-root={data_root}"
    )
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, options], cwd=app, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    first, *_, last = done.stdout.splitlines()
    assert Path(first) == app / "fedapps" / "__init__.py"  # not the installed package
    assert len(read_csv(Path(last), "rounds.csv")) == 1
    versions = tomllib.loads((app / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    assert versions == project.version()
