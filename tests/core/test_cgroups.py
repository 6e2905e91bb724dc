"""Limits of containers and batch jobs: of all cgroups up to the root, the least counts."""

import os
from types import SimpleNamespace

import psutil
import pytest

from fedapps.core import cgroups, memory

HYBRID = "12:cpu,cpuacct:/slurm/job_7\n5:memory:/slurm/job_7\n0::/init.scope\n"


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """Return tree(own, files), which makes a machine of 8 cores with these cgroups."""
    monkeypatch.setattr(cgroups, "ROOT", tmp_path / "cgroup")
    monkeypatch.setattr(cgroups, "OWN", tmp_path / "own")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {*range(8)}, raising=False)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=10**15))

    def make(own, files):
        (tmp_path / "own").write_text(own)
        for name, text in files.items():
            path = tmp_path / "cgroup" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    return make


@pytest.mark.parametrize(("own", "files", "cores"), [
    ("0::/\n", {}, 8),
    ("0::/\n", {"cpu.max": "200000 100000\n"}, 2),
    ("0::/\n", {"cpu.max": "max 100000\n"}, 8),
    ("0::/user/job\n", {"user/job/cpu.max": "max 100000", "user/cpu.max": "250000 100000"}, 3),
    ("0::/user/job\n", {"user/job/cpu.max": "5000 100000", "user/cpu.max": "250000 100000"}, 1),
    ("0::/user/job\n", {"user/other/cpu.max": "100000 100000"}, 8),
    (HYBRID, {
        "cpu/slurm/cpu.cfs_quota_us": "400000", "cpu/slurm/cpu.cfs_period_us": "100000",
        "cpu/slurm/job_7/cpu.cfs_quota_us": "-1", "cpu/slurm/job_7/cpu.cfs_period_us": "100000",
    }, 4),
    # the path is one outside of the container
    (HYBRID, {"cpu/cpu.cfs_quota_us": "600000", "cpu/cpu.cfs_period_us": "200000"}, 3),
])  # fmt: skip
def test_the_cores_of_a_job(own, files, cores, tree):
    tree(own, files)
    assert cgroups.cores() == cores


def limits(folder, most, now, names=("memory.max", "memory.current")):
    texts = dict(zip((*names, "memory.stat"), (most, now, "anon 3"), strict=True))
    return {f"{folder}{name}": str(text) for name, text in texts.items()}


@pytest.mark.parametrize(("own", "files", "left"), [
    ("0::/a/b\n", limits("a/b/", "max", 5) | limits("a/", 1000, 400), 600),
    ("0::/a/b\n", limits("a/b/", 500, 100) | limits("a/", 1000, 400), 400),
    ("0::/\n", limits("", 1000, 1200), 0),
    (
        "0::/\n",
        limits("", 1000, 700) | {"memory.stat": "anon 9\ninactive_file 30\nactive_file 20\n"},
        350,
    ),
    (
        HYBRID,
        limits("memory/slurm/job_7/", 900, 0, ("memory.limit_in_bytes", "memory.usage_in_bytes")),
        900,
    ),
    (
        HYBRID,
        {
            "memory/slurm/memory.limit_in_bytes": "9000",
            "memory/slurm/memory.usage_in_bytes": "8500",
            "memory/slurm/memory.stat": (
                "inactive_file 0\nactive_file 40\ntotal_inactive_file 7000\ntotal_active_file 300"
            ),
        },
        500 + 7000 + 300,
    ),
])  # fmt: skip
def test_the_memory_of_a_job(own, files, left, tree):
    tree(own, files)
    assert memory.available() == left


def test_a_system_without_cgroups(tree, tmp_path, monkeypatch):
    tree("", {})
    (tmp_path / "own").unlink()
    assert cgroups.cores() == 8 and memory.available() == 10**15
    monkeypatch.delattr(os, "sched_getaffinity")
    assert cgroups.cores() == os.cpu_count()
